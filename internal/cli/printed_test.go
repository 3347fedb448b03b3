package cli

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// What `proxy --print` shows is run by a Caddy that has never run before.
func TestCaddyRunsWhatIsPrinted(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dedup") // the test's own would be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	caddy := func(args ...string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), self, args...)
		command.Dir = dir
		command.Env = append(os.Environ(), runCaddy+"=1", "CADDY_ADMIN=",
			"XDG_DATA_HOME="+filepath.Join(dir, "data"), "XDG_CONFIG_HOME="+filepath.Join(dir, "config"))
		return command
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	printed, err := caddy("dedup", "proxy", "--from", at, "--to", "localhost:3000", "--print").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), printed, 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	run := caddy("run", "--config", "Caddyfile")
	run.Stderr = &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, said.Bytes())
		default:
		}
		if conn, err := net.Dial("tcp", at); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Error("it does not listen")
			break
		}
	}
	_ = run.Process.Kill()
	if err := <-ended; err == nil {
		t.Error("it ended well, and was killed")
	}
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
