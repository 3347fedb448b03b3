package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	caddydedup "github.com/caddy-dedup/caddy-dedup"
)

// With this in its environment, the test's own binary is caddy-dedup.
const runMain = "DEDUP_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		// In place of -ldflags, which would need a build for each test.
		caddydedup.Version = os.Getenv("DEDUP_TEST_VERSION")
		caddy.CustomVersion = os.Getenv("DEDUP_TEST_CUSTOM_VERSION")
		main()
		return
	}
	os.Exit(m.Run())
}

// command returns a command line of caddy-dedup.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(os.Environ(), runMain+"=1")
	return c
}

// What the commands print is put together by Caddy.
func TestVersionCommand(t *testing.T) {
	const caddys = `v2\.\d+\.\d+\S*( h1:\S+)?`
	for name, c := range map[string]struct {
		args []string
		env  []string
		want string
	}{
		"version":       {[]string{"version"}, nil, `^caddy-dedup \S+( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"--version":     {[]string{"--version"}, nil, `^caddy-dedup \S+( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"environ":       {[]string{"environ"}, nil, `(?m)^caddy\.Version=caddy-dedup \S+.* with Caddy ` + caddys + `$`},
		"Version":       {[]string{"version"}, []string{"DEDUP_TEST_VERSION=v0.1.0"}, `^caddy-dedup v0\.1\.0( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"CustomVersion": {[]string{"version"}, []string{"DEDUP_TEST_CUSTOM_VERSION=our-build"}, `^our-build ` + caddys + `\n$`},
		"both":          {[]string{"version"}, []string{"DEDUP_TEST_CUSTOM_VERSION=our-build", "DEDUP_TEST_VERSION=v0.1.0"}, `^our-build ` + caddys + `\n$`},
	} {
		t.Run(name, func(t *testing.T) {
			command := command(t, c.args...)
			command.Env = append(command.Env, c.env...)
			out, err := command.Output()
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(c.want).Match(out) {
				t.Errorf("got %q; want what %q describes", strings.TrimSpace(string(out)), c.want)
			}
		})
	}
}

// Caddy's commands that replace the binary by one from its download server know the packages
// of the binary by the modules that it was built with, and this one's own is none of them.
func TestCommandsThatReplaceTheBinary(t *testing.T) {
	for _, args := range [][]string{
		{"upgrade"}, {"upgrade", "--keep-backup"}, {"add-package", "github.com/caddy-dns/cloudflare"}, {"remove-package", "github.com/caddy-dns/cloudflare"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			command := command(t, args...)
			out, err := command.CombinedOutput()
			if err == nil || command.ProcessState.ExitCode() != 1 || strings.Contains(string(out), "goroutine") {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{args[0], "Nothing was changed", "docs/install.md"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("got %q; want it to say %q", out, want)
				}
			}
		})
	}
}

// The program's help is about caddy-dedup.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}, {"help"}} {
		out, err := command(t, args...).Output()
		help := string(out)
		if err != nil || !strings.HasPrefix(strings.TrimSpace(help), "$ caddy-dedup proxy ") {
			t.Fatalf("%q: %v\n%s", args, err, help)
		}
		_, own, _ := strings.Cut(help, "Commands of caddy-dedup:\n")
		if !regexp.MustCompile(`^  proxy .*\n  keys .*\n  providers .*\n  health .*\n\nCommands of Caddy:\n`).MatchString(own) || !strings.Contains(own, "\n  run ") || !strings.Contains(own, "\n  completion ") {
			t.Errorf("%q: the commands are\n%s", args, own)
		}
		if strings.Contains(help, "caddyserver.com") || !strings.Contains(help, "https://github.com/caddy-dedup/caddy-dedup/tree/main/docs") {
			t.Errorf("%q: it names other documentation:\n%s", args, help)
		}
		for line := range strings.Lines(help) {
			if len(line) > 81 {
				t.Errorf("%q: a line has %d columns: %s", args, len(line)-1, line)
			}
		}
	}
}
