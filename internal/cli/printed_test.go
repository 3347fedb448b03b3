package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
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

// A build of Caddy gains one command, with our documentation and a help that fits a terminal.
func TestCommandsOfABuild(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "proxy", "keys", "keys list", "keys show", "keys release", "keys complete", "keys forget", "providers", "health"} {
		if name != "" && caddycmd.Commands()[name].Name != "" {
			t.Errorf("a build gains %s", name)
		}
		command := exec.CommandContext(t.Context(), self, append([]string{"dedup"}, append(strings.Fields(name), "--help")...)...)
		command.Env = append(os.Environ(), runCaddy+"=1")
		help, err := command.Output()
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
