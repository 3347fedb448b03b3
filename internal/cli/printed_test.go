package cli

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// With this in its environment, the test's own binary is a Caddy with the commands in it, as
// xcaddy builds one.
const runCaddy = "DEDUP_TEST_RUN_CADDY"

func TestMain(m *testing.M) {
	if os.Getenv(runCaddy) != "" {
		caddycmd.Main()
		return
	}
	os.Exit(m.Run())
}

// build returns a command line of such a Caddy.
func build(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(os.Environ(), runCaddy+"=1")
	return c
}

// A build of Caddy gains one command, with our documentation and a help that fits a terminal.
func TestCommandsOfABuild(t *testing.T) {
	for _, name := range []string{"", "proxy", "keys", "keys list", "keys show", "keys release", "keys complete", "keys forget", "providers", "health"} {
		if name != "" && caddycmd.Commands()[name].Name != "" {
			t.Errorf("a build gains %s", name)
		}
		help, err := build(t, append([]string{"dedup"}, append(strings.Fields(name), "--help")...)...).Output()
		if err != nil || strings.Contains(string(help), "caddyserver.com/docs") || !strings.Contains(string(help), docs) {
			t.Errorf("%s: %v: %s", name, err, help)
		}
		for line := range strings.Lines(string(help)) {
			if len(line) > 81 {
				t.Errorf("the help of %q has %d columns: %s", name, len(line)-1, line)
			}
		}
	}
}

// caddyIn runs such a Caddy where nothing has run before, and returns what it prints and what it leaves there.
func caddyIn(t *testing.T, args ...string) (out string, left []string, err error) {
	t.Helper()
	dir, command := t.TempDir(), build(t, args...)
	command.Dir, command.Env = dir, append(command.Env, "HOME="+dir, "XDG_DATA_HOME="+dir+"/data", "XDG_CONFIG_HOME="+dir+"/config")
	text, err := command.CombinedOutput()
	left, globErr := filepath.Glob(filepath.Join(dir, "*", "*"))
	if globErr != nil {
		t.Fatal(globErr)
	}
	return string(text), left, err
}

// To print a Caddyfile changes nothing on the machine, and opens no connection. It may be for another machine, which has
// the values of its placeholders.
func TestPrintsForAnotherMachine(t *testing.T) {
	for _, args := range [][]string{
		{"--from", "localhost", "--internal-certs"},
		{"--from", ":80", "--redis", "{env.DEDUP_NO_SUCH_URL}", "--dedup", "lease 1s"},
		{"--from", ":80", "--redis", "redis://no-such-host.invalid"},
	} {
		out, left, err := caddyIn(t, append([]string{"dedup", "proxy", "--to", "localhost:3000", "--print"}, args...)...)
		if err != nil || !strings.HasPrefix(out, "# What `caddy-dedup proxy` runs") || len(left) > 0 {
			t.Errorf("%q ended with %v, leaves %q and prints\n%s", args, err, left, out)
		}
	}
}

// Caddy shares a port with another process, and each would get a part of the duplicates.
func TestProxySharesNoPort(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	out, _, err := caddyIn(t, "dedup", "proxy", "--to", "localhost:3000", "--from", other.Addr().String())
	if err == nil || !strings.Contains(out, "--from: another process or flag has this port") || !strings.Contains(out, other.Addr().String()) {
		t.Errorf("it ended with %v:\n%s", err, out)
	}
}

// What `proxy --print` shows is run by a Caddy that has never run before: it makes the directory of its
// socket itself.
func TestCaddyRunsWhatIsPrinted(t *testing.T) {
	dir := deduptest.TempDir(t)
	file, output := filepath.Join(dir, "Caddyfile"), filepath.Join(dir, "output")
	run := func(to string, args ...string) {
		t.Helper()
		out, err := os.Create(to)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		command := build(t, args...)
		command.Stdout, command.Stderr = out, out // a file, which the process in the background does not hold open
		command.Env = append(command.Env, "CADDY_ADMIN=", "XDG_DATA_HOME="+filepath.Join(dir, "data"), "XDG_CONFIG_HOME="+dir)
		if err := command.Run(); err != nil {
			said, _ := os.ReadFile(to)
			t.Fatalf("%q: %v\n%s", args, err, said)
		}
	}
	run(file, "dedup", "proxy", "--from", fmt.Sprint("127.0.0.1:", freeport.Of(t)), "--to", "localhost:3000", "--print")
	run(output, "start", "--config", file) // it ends once that serves
	run(output, "stop", "--config", file)
}
