package integration

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// dashes part a Caddyfile from the JSON that it becomes, or from the error.
const dashes = "----------\n"

// Each file of testdata/adapt is a Caddyfile, a line of ten dashes, and what
// `caddy-dedup adapt` makes of it. A name that begins with "not_" is a mistake:
// its message names the word, the line and what is accepted.
func TestCaddyfileAdaptation(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".caddyfiletest")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caddyfile, want, found := strings.Cut(string(golden), dashes)
			if !found {
				t.Fatalf("%s has no line of ten dashes", file)
			}
			got, code := adapt(t, caddyfile)
			if mistake := strings.HasPrefix(name, "not_"); mistake != (code != 0) {
				t.Errorf("adapt ended with %d:\n%s", code, got)
			}
			if code != 0 && !strings.Contains(got, "Caddyfile:") {
				t.Errorf("the message names no line: %s", got)
			}
			if *update {
				if err := os.WriteFile(file, []byte(caddyfile+dashes+got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// adapt returns the indented JSON, or the message, that a Caddyfile becomes.
func adapt(t *testing.T, caddyfile string) (string, int) {
	t.Helper()
	dir := shortTempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "adapt", "--config", "Caddyfile")
	cmd.Dir, cmd.Env = dir, homeEnv(dir)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		// The message is the last of the log lines on stderr.
		var last entry
		for line := range strings.Lines(messages.String()) {
			var e entry
			if json.Unmarshal([]byte(line), &e) == nil && e.text("level") == "error" {
				last = e
			}
		}
		if last != nil {
			return last.text("msg") + "\n", cmd.ProcessState.ExitCode()
		}
		t.Fatalf("adapt failed without a message: %v\n%s", err, messages.String())
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, bytes.TrimSpace(out.Bytes()), "", "\t"); err != nil {
		t.Fatal(err)
	}
	return indented.String() + "\n", 0
}
