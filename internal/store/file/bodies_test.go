package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// largeBody returns a body that lies in a segment, another one for each name.
func largeBody(name string) []byte {
	return bytes.Repeat([]byte(name+"\n"), largeBytes/len(name)+1)
}

func largeAs(name string) idempotency.Settlement {
	s := completeAs(name)
	s.Response.Body = largeBody(name)
	return s
}

// keepAs claims a key and settles it so.
func keepAs(ctx context.Context, s *Store, name string, settlement idempotency.Settlement) error {
	claimed, err := s.Claim(ctx, claimOf(name))
	if err != nil {
		return fmt.Errorf("claim %s: %w", name, err)
	}
	if claimed.Verdict != idempotency.Proceed {
		return fmt.Errorf("claim %s: verdict %v", name, claimed.Verdict)
	}
	if err := s.Settle(ctx, key(name), claimed.Record, settlement); err != nil {
		return fmt.Errorf("settle %s: %w", name, err)
	}
	return nil
}

func keepLarge(t *testing.T, s *Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := keepAs(t.Context(), s, name, largeAs(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func replaysLarge(t *testing.T, s *Store, names ...string) {
	t.Helper()
	for _, name := range names {
		claimed, err := ask(s, name)
		if err != nil || claimed.Verdict != idempotency.ReplayKept || !bytes.Equal(claimed.Response.Body, largeBody(name)) {
			t.Fatalf("key %s: verdict %v, %v, or another body", name, claimed.Verdict, err)
		}
	}
}

// segments returns the segments of a store, by the names of their buckets and their own.
func segments(t *testing.T, s *Store) []string {
	t.Helper()
	root := s.fs.PathJoin(s.path, bodiesName)
	buckets, err := s.fs.List(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var found []string
	for _, bucket := range buckets {
		names, err := s.fs.List(s.fs.PathJoin(root, bucket))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, name := range names {
			found = append(found, bucket+"/"+name)
		}
	}
	slices.Sort(found)
	return found
}

// onlySegment returns the path of the only segment of a store in the file system.
func onlySegment(t *testing.T, s *Store) string {
	t.Helper()
	files := segments(t, s)
	if len(files) != 1 {
		t.Fatalf("the segments are %q, want one", files)
	}
	return filepath.Join(s.path, bodiesName, files[0])
}

func TestBodiesFromSomeSizeOnLieInSegments(t *testing.T) {
	for size, files := range map[int]int{0: 0, 512: 0, largeBytes - 1: 0, largeBytes: 1, 3 << 20: 1} {
		path := newPath(t)
		s := reopen(t, path)
		settlement := completeAs("a")
		settlement.Response.Body = bytes.Repeat([]byte{'x'}, size)
		if err := keepAs(t.Context(), s, "a", settlement); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if found := segments(t, s); len(found) != files {
				t.Errorf("%d bytes: the segments are %q, want %d", size, found, files)
			}
			got, err := ask(s, "a")
			if err != nil || got.Verdict != idempotency.ReplayKept || !bytes.Equal(got.Response.Body, settlement.Response.Body) {
				t.Errorf("%d bytes: verdict %v, %v, or another body", size, got.Verdict, err)
			}
			closeStore(t, s)
			s = reopen(t, path)
		}
	}
}

// What is large is on the disk once, and only its owner can read it.
func TestLargeBodiesAreWrittenOnce(t *testing.T) {
	s := reopen(t, newPath(t))
	const each, n = 2 << 20, 16
	for i := range n {
		settlement := completeAs("a")
		settlement.Response.Body = bytes.Repeat([]byte{byte(i)}, each)
		if err := keepAs(t.Context(), s, fmt.Sprint(i), settlement); err != nil {
			t.Fatal(err)
		}
	}
	if size := sizeOf(s.path); size < n*each || size > n*each+3*memTableBytes {
		t.Errorf("%d bytes of bodies take %d bytes on the disk", n*each, size)
	}
	for _, name := range segments(t, s) {
		info, err := os.Stat(filepath.Join(s.path, bodiesName, name))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 && os.PathSeparator == '/' {
			t.Errorf("the mode of %s is %v", name, mode)
		}
	}
}

// A body that is not the one that was kept is never replayed, and its key never runs
// again. The error says which file it is.
func TestDamagedBody(t *testing.T) {
	for name, damage := range map[string]func(path string, content []byte) error{
		"missing":   func(path string, _ []byte) error { return os.Remove(path) },
		"no bucket": func(path string, _ []byte) error { return os.RemoveAll(filepath.Dir(path)) },
		"no bodies": func(path string, _ []byte) error { return os.RemoveAll(filepath.Dir(filepath.Dir(path))) },
		"empty":     func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
		"cut":       func(path string, content []byte) error { return os.WriteFile(path, content[:len(content)-1], 0o600) },
		"moved": func(path string, content []byte) error {
			return os.WriteFile(path, append([]byte{'x'}, content...), 0o600)
		},
		"one bit": func(path string, content []byte) error {
			content[len(content)/2] ^= 1
			return os.WriteFile(path, content, 0o600)
		},
		"of another": func(path string, content []byte) error {
			return os.WriteFile(path, largeBody("b")[:len(content)], 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := reopen(t, newPath(t))
			keepLarge(t, s, "a")
			file := onlySegment(t, s)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(file, content); err != nil {
				t.Fatal(err)
			}
			claimed, err := ask(s, "a")
			if !isUnreadable(err) || claimed.Response != nil || claimed.Record != nil {
				t.Errorf("claim: %+v, %v; want an UnreadableError", claimed, err)
			}
			if err == nil || !strings.Contains(err.Error(), filepath.Base(file)) || !strings.Contains(err.Error(), s.path) {
				t.Errorf("the error does not name the file: %v", err)
			}
			if response, err := s.Response(t.Context(), key("a"), claimOf("a").Token); !isUnreadable(err) || response != nil {
				t.Errorf("response: %v, %v; want an UnreadableError", response, err)
			}
			keepLarge(t, s, "b")
			replaysLarge(t, s, "b")
			if err := s.Forget(t.Context(), key("a"), idempotency.Seen{}); err != nil {
				t.Errorf("forget: %v", err)
			}
			keepLarge(t, s, "a")
			replaysLarge(t, s, "a", "b")
		})
	}
}

// A body that cannot be read this time is no damage.
func TestBodyThatCannotBeReadNow(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepLarge(t, s, "a")
	for _, kind := range []errorfs.OpKind{errorfs.OpOpen, errorfs.OpFileStat, errorfs.OpFileReadAt} {
		fs.failBodies(kind, syscall.EIO)
		if _, err := ask(s, "a"); !errors.Is(err, syscall.EIO) || isUnreadable(err) {
			t.Errorf("operation %d fails: %v; want its error, and no UnreadableError", kind, err)
		}
		fs.fail(nil)
		replaysLarge(t, s, "a")
	}
}

// What is forgotten takes no room, although other bodies lie in the same segment.
func TestForgetRemovesBodies(t *testing.T) {
	s := reopen(t, newPath(t))
	released := releasedFor(time.Hour, 2*time.Hour)
	released.Response.Body = largeBody("busy")
	if err := keepAs(t.Context(), s, "a", released); err != nil {
		t.Fatal(err)
	}
	again := claimOf("a")
	again.Token = "token of the second run"
	claimed, err := s.Claim(t.Context(), again)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(t.Context(), key("a"), claimed.Record, largeAs("a")); err != nil {
		t.Fatal(err)
	}
	keepLarge(t, s, "b")
	before := roomOfBodies(t, s)
	if err := s.Forget(t.Context(), key("a"), idempotency.Seen{}); err != nil {
		t.Fatal(err)
	}
	if record, _, err := s.Lookup(t.Context(), key("a")); record != nil || err != nil {
		t.Errorf("lookup: %+v, %v; want nothing", record, err)
	}
	// Who has the key after that finds none of its bodies.
	if room := before - roomOfBodies(t, s); givesRoomBack && room < 2*largeBytes {
		t.Errorf("%d bytes of room were given back, want those of two bodies", room)
	}
	replaysLarge(t, s, "b")
	keepLarge(t, s, "a")
	replaysLarge(t, s, "a")
}

// bodiesLate is how long after it has expired a body is removed at the latest.
const bodiesLate = 2*sweepStep + bucketDelay + 2*sweepEvery

// Bodies that have expired are removed, and so are those whose record was never written.
// What else is there is left alone.
func TestSweepRemovesBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := reopen(t, path)
		const n = 2*segmentsAtOnce + 3
		for i := range n {
			keepLarge(t, s, fmt.Sprint(i), fmt.Sprint("beside ", i))
			s.database.bodies.closeBucket(bucketOf(clock().Add(time.Hour)))
		}
		lives := largeAs("lives")
		lives.Retention = 24 * time.Hour
		if err := keepAs(t.Context(), s, "lives", lives); err != nil {
			t.Fatal(err)
		}
		bucket, stray := bucketOf(clock().Add(-time.Hour)), segmentName(0xabc)
		unknown := []string{
			"notes.txt", bucket + "/notes.txt", bucket + "x/" + stray, "2026/" + stray,
			bucket + "/" + stray + "0", bucket + "/" + strings.ToUpper(stray), bucket + "/+" + stray[1:], bucket + "/" + stray[1:],
		}
		for _, name := range append(unknown, bucket+"/"+stray) {
			name = filepath.Join(path, bodiesName, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		left := func() map[string]string { return contents(t, filepath.Join(path, bodiesName)) }
		time.Sleep(2*sweepStep + 2*sweepEvery)
		synctest.Wait()
		if files := left(); len(files) != n+1+len(unknown) {
			t.Errorf("before they expire, %d files are left, want %d: %q", len(files), n+1+len(unknown), slices.Collect(maps.Keys(files)))
		}
		replaysLarge(t, s, "0", "lives")
		time.Sleep(time.Hour + bodiesLate)
		synctest.Wait()
		files := left()
		if len(files) != 1+len(unknown) {
			t.Errorf("afterwards %d files are left, want %d: %q", len(files), 1+len(unknown), slices.Collect(maps.Keys(files)))
		}
		for _, name := range unknown {
			if _, there := files[filepath.Join(path, bodiesName, name)]; !there {
				t.Errorf("%s was removed", name)
			}
		}
		buckets, err := os.ReadDir(filepath.Join(path, bodiesName))
		if err != nil {
			t.Fatal(err)
		}
		if len(buckets) != 5 { // that of the key that lives, three made here, and a file
			t.Errorf("%d buckets are left", len(buckets))
		}
		replaysLarge(t, s, "lives")
		keepLarge(t, s, "0")
		replaysLarge(t, s, "0")
	})
}

// The bodies of a run that was replaced stay until they expire, as their responses do.
func TestReplacedBodyStaysForThoseWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		keepLarge(t, s, "a")
		force := claimOf("a")
		force.Token, force.Force = "token of a forced run", true
		forced, err := s.Claim(t.Context(), force)
		if err != nil {
			t.Fatal(err)
		}
		settlement := largeAs("forced")
		settlement.Retention = 3 * time.Hour
		if err := s.Settle(t.Context(), key("a"), forced.Record, settlement); err != nil {
			t.Fatal(err)
		}
		for token, body := range map[string]string{claimOf("a").Token: "a", force.Token: "forced"} {
			response, err := s.Response(t.Context(), key("a"), token)
			if err != nil || response == nil || !bytes.Equal(response.Body, largeBody(body)) {
				t.Errorf("of the run %s: %v, or another body", body, err)
			}
		}
		time.Sleep(time.Hour + bodiesLate)
		synctest.Wait()
		if response, err := s.Response(t.Context(), key("a"), claimOf("a").Token); response != nil || err != nil {
			t.Errorf("of the replaced run, after its time: %v, %v", response, err)
		}
		if files := segments(t, s); len(files) != 1 {
			t.Errorf("the segments are %q, want that of the forced run", files)
		}
	})
}

// Who asks for a response that has expired gets none, also when its body is gone.
func TestExpiredResponseIsNotDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		released := releasedFor(time.Hour, time.Minute)
		released.Response.Body = largeBody("busy")
		if err := keepAs(t.Context(), s, "a", released); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(onlySegment(t, s)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if response, err := s.Response(t.Context(), key("a"), claimOf("a").Token); response != nil || err != nil {
			t.Errorf("%v, %v", response, err)
		}
	})
}

// A body that is larger than any file may be, by the limit of the process or of the file
// system, is refused for good. Nobody waits for room for it, and no other key is refused.
func TestBodyLargerThanAFileMayBe(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	record, before := inFlight(t, s, "a"), s.current()
	fs.failBodies(errorfs.OpFileWriteAt, syscall.EFBIG)
	settlement := largeAs("a")
	if err := s.Settle(t.Context(), key("a"), record, settlement); !errors.Is(err, idempotency.ErrTooLarge) {
		t.Fatalf("settle: %v, want ErrTooLarge", err)
	}
	if err := keep(t.Context(), s, "b"); err != nil {
		t.Errorf("another key: %v", err)
	}
	settlement.Response = settlement.Response.Reduced()
	if err := s.Settle(t.Context(), key("a"), record, settlement); err != nil {
		t.Fatal(err)
	}
	replays(t, s, "b")
	if s.current() != before {
		t.Error("the database was given up")
	}
}
