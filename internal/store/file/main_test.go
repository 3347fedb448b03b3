package file

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// childVariable is an environment variable. If it has the name of one of the
// children, the test binary runs that child, with the store's path in the first
// argument, and no tests.
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

// child returns a command that runs one of the children.
func child(t *testing.T, name, path string) *exec.Cmd {
	t.Helper()
	if children[name] == nil {
		t.Fatalf("there is no child %q", name)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], path)
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// startChild starts a child with which the test speaks.
func startChild(t *testing.T, name, path string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = child(t, name, path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, out
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "data", "keys") }

func reopen(t *testing.T, path string) *Store {
	t.Helper()
	return reopenIn(t, vfs.Default, path)
}

func reopenIn(t *testing.T, fs vfs.FS, path string) *Store {
	t.Helper()
	s, err := openIn(fs, path, zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func key(name string) idempotency.Key { return idempotency.Identity{ID: name}.Key() }

func claimOf(name string) idempotency.Claim {
	return idempotency.Claim{
		Key: key(name), Token: "token of " + name, ExecutionID: "execution of " + name,
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
}

func completeAs(body string) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: time.Hour,
		Response: &idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {body}}, Body: []byte(body)},
	}
}

// keep claims a key and completes it with its own name as the body.
func keep(ctx context.Context, s *Store, name string) error {
	claimed, err := s.Claim(ctx, claimOf(name))
	if err != nil {
		return fmt.Errorf("claim %s: %w", name, err)
	}
	if claimed.Verdict != idempotency.Proceed {
		return fmt.Errorf("claim %s: verdict %v", name, claimed.Verdict)
	}
	if err := s.Settle(ctx, key(name), claimed.Record, completeAs(name)); err != nil {
		return fmt.Errorf("settle %s: %w", name, err)
	}
	return nil
}

// keepMany keeps n keys. The name of a key is its number.
func keepMany(t *testing.T, s *Store, n int) {
	t.Helper()
	keepFrom(t, s, 0, n)
}

// keepFrom keeps the keys with these numbers.
func keepFrom(t *testing.T, s *Store, from, n int) {
	t.Helper()
	var next atomic.Int64
	next.Store(int64(from))
	var done sync.WaitGroup
	for range 64 {
		done.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := keep(t.Context(), s, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
}

// ask claims a key as a duplicate does.
func ask(s *Store, name string) (idempotency.Claimed, error) {
	c := claimOf(name)
	c.Token, c.ExecutionID = "token of a duplicate", "execution of a duplicate"
	return s.Claim(context.Background(), c)
}

// replays fails the test if the key does not replay its own name.
func replays(t *testing.T, s *Store, name string) {
	t.Helper()
	claimed, err := ask(s, name)
	if err != nil || claimed.Verdict != idempotency.ReplayKept || string(claimed.Response.Body) != name {
		t.Fatalf("key %s: verdict %v, response %v, %v", name, claimed.Verdict, claimed.Response, err)
	}
}

const patience = time.Minute

// poll returns when the condition is true.
func poll(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// askOnly does what [ask] does, but never writes a claim.
func askOnly(s *Store, name string) (idempotency.Claimed, error) {
	c := claimOf(name)
	c.Token = "token of a duplicate"
	claimed, _, err := s.database.decide(c, clock())
	return claimed, err
}

// releasedFor releases a key, and keeps its answer for those who waited.
func releasedFor(retention, answer time.Duration) idempotency.Settlement {
	s := completeAs("busy")
	s.State, s.Retention, s.AnswerFor = idempotency.Released, retention, answer
	return s
}

// inMemory is a disk in memory that leaves alone what is written to it. With the race
// detector, pebble's own inverts the caller's bytes, which no file system may do.
type inMemory struct{ vfs.FS }

func newMemory() vfs.FS { return inMemory{vfs.NewMem()} }

func (m inMemory) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := m.FS.Create(name, category)
	if err != nil {
		return nil, err
	}
	return copying{f}, nil
}

type copying struct{ vfs.File }

func (c copying) Write(p []byte) (int, error) { return c.File.Write(bytes.Clone(p)) }

func (c copying) WriteAt(p []byte, at int64) (int, error) { return c.File.WriteAt(bytes.Clone(p), at) }
