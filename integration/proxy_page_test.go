package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// homeOfThePage is where the page of the command `proxy` has Caddy's data.
const homeOfThePage = "/home/me/.local/share/caddy"

// typed runs a command line of a page in a directory, as a shell does, and returns what
// it prints on standard output, with the names of the page.
func typed(t *testing.T, dir, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(homeEnv(dir), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "REDIS_PASSWORD=secret", "GITHUB_SECRET=secret")
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, messages.String())
	}
	return strings.ReplaceAll(string(out), filepath.Join(dir, "data", "caddy"), homeOfThePage)
}

// Every command of the page stands for a Caddyfile that is valid; one that is printed
// there is the one that is shown.
func TestCommandsOfThePageOfProxy(t *testing.T) {
	t.Parallel()
	dir := shortTempDir(t)
	if err := os.Symlink(binary, filepath.Join(dir, "caddy-dedup")); err != nil {
		t.Fatal(err)
	}
	printed, ran := "", 0
	for _, b := range docBlocks(t) {
		switch {
		case b.page != "proxy.md":
		case b.language == "caddyfile":
			if b.text != printed {
				t.Errorf("%s:%d: the command before it prints\n%s", b.page, b.line, printed)
			}
		case b.language == "sh":
			line := strings.TrimSpace(b.text)
			if !strings.HasPrefix(line, "caddy-dedup proxy ") || strings.Contains(line, "\n") {
				t.Fatalf("%s:%d: this is not one command of proxy, which this test could run", b.page, b.line)
			}
			if !strings.HasSuffix(line, " --print") {
				line += " --print"
			}
			printed = typed(t, dir, line)
			if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(printed), 0o600); err != nil {
				t.Fatal(err)
			}
			typed(t, dir, "caddy-dedup validate --config Caddyfile")
			ran++
		}
	}
	if ran < 15 {
		t.Errorf("the page has %d commands: are they where this test looks?", ran)
	}
}

// What the page says that the command says at its start is what it says.
func TestSummaryOfThePageOfProxy(t *testing.T) {
	t.Parallel()
	var shown string
	for _, b := range docBlocks(t) {
		if b.page == "proxy.md" && b.language == "text" {
			shown = b.text
		}
	}
	dir, port := shortTempDir(t), fmt.Sprint(freeport.Of(t))
	p := startProcess(t, dir, "proxy", "--from", ":"+port, "--to", "localhost:3000")
	want := strings.ReplaceAll(strings.ReplaceAll(shown, "8080", port), homeOfThePage, filepath.Join(dir, "data", "caddy"))
	eventually(t, "the proxy says how to reach it", func() bool { return strings.Contains(p.log.String(), "admin:  ") })
	if want == "" || !strings.Contains(p.log.String(), want) {
		t.Errorf("the page shows\n%s", want)
	}
}

// Each flag has its heading with its short name, and no other flag has one.
func TestFlagsOfThePageOfProxy(t *testing.T) {
	t.Parallel()
	help, code := command(t, shortTempDir(t), "proxy", "--help")
	if code != 0 {
		t.Fatal(help)
	}
	short := make(map[string]string)
	for _, flag := range regexp.MustCompile(`(?m)^ +(-\w, )?--([\w-]+)`).FindAllStringSubmatch(help, -1) {
		if flag[2] != "help" {
			short[flag[2]] = strings.TrimSuffix(flag[1], ", ")
		}
	}
	text, err := os.ReadFile("../docs/proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, section := range strings.Split(string(text), "\n### ")[1:] {
		name, rest, _ := strings.Cut(section, "\n")
		name = strings.TrimPrefix(strings.Trim(name, "`"), "--")
		headings = append(headings, name)
		of, known := short[name]
		begins := "\nDefault: "
		if of != "" {
			begins = "\nShort: `" + of + "`. Default: "
		}
		if !known {
			t.Errorf("the page has the flag --%s, and the command does not", name)
		} else if !strings.HasPrefix(rest, begins) {
			t.Errorf("--%s: its section does not begin with %q", name, begins)
		}
	}
	syntax, _, _ := strings.Cut(string(text), "\n## Flags\n")
	for name := range short {
		if !slices.Contains(headings, name) {
			t.Errorf("--%s has no heading", name)
		}
		if !strings.Contains(syntax, "--"+name) {
			t.Errorf("--%s is not in the syntax", name)
		}
	}
	if len(short) < 15 {
		t.Errorf("the command has %d flags: are they where this test looks?", len(short))
	}
}
