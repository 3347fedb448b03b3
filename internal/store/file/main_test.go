package file

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// Shared by the tests of all stores and of the engine.
var must, wantErr, eventually = storetest.Must, storetest.WantErr, deduptest.Eventually

// childVariable is an environment variable. If it names one of the children, the test binary runs
// that child with the path of a store as its argument, and no tests.
const childVariable = "CADDY_DEDUP_FILE_TEST_CHILD"

var children = map[string]func(path string) error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startChild starts a child process, and returns its standard input and output.
func startChild(t *testing.T, name, path string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], path)
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err = cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, in, out
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "data", "keys") }

// openStore opens a store until the test ends.
func openStore(t *testing.T, fs vfs.FS, path string) *Store {
	t.Helper()
	s, err := openIn(wallClock, fs, path, zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)))
	must(t, err)
	t.Cleanup(func() { wantErr(t, s.Close(), nil) })
	return s
}

// closeStore closes a store before the test ends.
func closeStore(t *testing.T, s *Store) {
	t.Helper()
	wantErr(t, s.Close(), nil)
}

func key(name string) idempotency.Key { return idempotency.Identity{ID: name}.Key() }

func claimOf(name string) idempotency.Claim {
	return idempotency.Claim{
		Key: key(name), Token: "token of " + name, ExecutionID: "execution of " + name,
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
}

// holding returns a claim that must survive the process.
func holding(name string) idempotency.Claim {
	c := claimOf(name)
	c.Hold = true
	return c
}

func completeAs(body string) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: time.Hour,
		Response: &idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {"etag"}}, Body: []byte(body)},
	}
}

// claimed makes a claim that proceeds, and returns its record.
func claimed(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	got, err := s.Claim(t.Context(), c)
	if err != nil || got.Verdict != idempotency.Proceed {
		t.Fatalf("claim: verdict %v, %v", got.Verdict, err)
	}
	return got.Record
}

// keepAs claims a key and settles it.
func keepAs(ctx context.Context, s *Store, name string, settlement idempotency.Settlement) error {
	got, err := s.Claim(ctx, claimOf(name))
	if err != nil {
		return fmt.Errorf("claim %s: %w", name, err)
	}
	if got.Verdict != idempotency.Proceed {
		return fmt.Errorf("claim %s: verdict %v", name, got.Verdict)
	}
	return s.Settle(ctx, key(name), got.Record, settlement)
}

// keep keeps the keys from..to-1, each with its number as name and body.
func keep(t *testing.T, s *Store, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		must(t, keepAs(t.Context(), s, fmt.Sprint(i), completeAs(fmt.Sprint(i))))
	}
}

// ask claims a key as a duplicate does.
func ask(ctx context.Context, s *Store, name string) (idempotency.Claimed, error) {
	c := claimOf(name)
	c.Token, c.ExecutionID = "token of a duplicate", "execution of a duplicate"
	got, err := s.Claim(ctx, c)
	if err == nil && got.Verdict == idempotency.ReplayKept && got.Record.LargeBody > 0 {
		got.Response, err = s.Response(ctx, c.Key, got.Record.Token)
	}
	return got, err
}

func replays(t *testing.T, s *Store, name, body string) {
	t.Helper()
	got, err := ask(t.Context(), s, name)
	if err != nil || got.Verdict != idempotency.ReplayKept || string(got.Response.Body) != body {
		t.Fatalf("key %s: verdict %v, %v, or another body", name, got.Verdict, err)
	}
}

// replaysAll calls replays for the keys that keep has kept.
func replaysAll(t *testing.T, s *Store, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		replays(t, s, fmt.Sprint(i), fmt.Sprint(i))
	}
}
