package file

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func isUnreadable(err error) bool {
	_, ok := errors.AsType[*idempotency.UnreadableError](err)
	return ok
}

// Whatever is damaged in a table, the process goes on, replays only responses as they were kept, and
// runs no key again.
func TestDamagedStoreNeverAnswersWrongly(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine")
	}
	const keys, rounds = 300, 30
	whole, table := oneTable(t, keys)
	sound := read(t, whole, table)
	random := rand.New(rand.NewPCG(11, 12))
	unreadable, replayed := 0, 0
	for range rounds {
		damaged := slices.Clone(sound)
		switch at := random.IntN(len(damaged) - 512); random.IntN(3) {
		case 0:
			damaged[at] ^= byte(1 + random.IntN(255))
		case 1:
			clear(damaged[at : at+512])
		default:
			copy(damaged[at:], sound[random.IntN(len(sound)-512):][:512])
		}
		fs := newMemory()
		must(t, storetest.ErrOf(vfs.Clone(whole, fs, storePath, storePath)))
		overwrite(t, fs, table, damaged)
		s, err := openIn(wallClock, fs, storePath, zap.NewNop())
		if err != nil {
			continue // refused
		}
		for i := range keys {
			name := fmt.Sprint(i)
			got, err := ask(t.Context(), s, name)
			switch {
			case isUnreadable(err):
				unreadable++
			case err != nil || got.Verdict != idempotency.ReplayKept || string(got.Response.Body) != name || got.Response.Status != 201:
				t.Fatalf("key %s: verdict %v, %v, or another response", name, got.Verdict, err)
			default:
				replayed++
			}
		}
		if _, _, err := s.List(t.Context(), "", keys); err != nil && !isUnreadable(err) {
			t.Errorf("list: %v", err)
		}
		if err := keepAs(t.Context(), s, "new", completeAs("new")); err != nil && !isUnreadable(err) {
			t.Errorf("a new key: %v", err)
		}
		_ = s.Close()
	}
	if unreadable == 0 || replayed == 0 {
		t.Errorf("%d unreadable and %d replayed: the damage was of one kind", unreadable, replayed)
	}
}

// The error for a damaged value names its key. The value is neither replayed nor replaced, and an
// operator can forget it.
func TestUnreadableValues(t *testing.T) {
	a := claimOf("a")
	set := func(t *testing.T, s *Store, name, value []byte) {
		must(t, s.database.db.Set(name, value, pebble.Sync))
	}
	change := func(at int) func(t *testing.T, s *Store) {
		return func(t *testing.T, s *Store) {
			value, err := s.database.get(valueName(a.Key, ""))
			must(t, err)
			value[(at+len(value))%len(value)] ^= 0x11
			set(t, s, valueName(a.Key, ""), value)
		}
	}
	for name, damage := range map[string]func(t *testing.T, s *Store){
		"record":   change(8),
		"response": change(-2),
		"nothing":  func(t *testing.T, s *Store) { set(t, s, valueName(a.Key, ""), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, newMemory(), storePath)
			for _, name := range []string{"a", "b"} {
				must(t, keepAs(t.Context(), s, name, completeAs(name)))
			}
			damage(t, s)
			for range 2 {
				got, err := ask(t.Context(), s, "a")
				if !isUnreadable(err) || got.Record != nil || got.Response != nil {
					t.Fatalf("claim: %+v, %v; want an UnreadableError", got, err)
				}
				if !strings.Contains(err.Error(), storePath) || !strings.Contains(err.Error(), a.Key.String()) {
					t.Errorf("the error %v does not name directory and key", err)
				}
			}
			replays(t, s, "b", "b")
			if page, _, err := s.List(t.Context(), "", 10); err != nil || len(page) != 2 {
				t.Errorf("list: %+v, %v; want both keys", page, err)
			}
			must(t, s.Forget(t.Context(), a.Key, idempotency.Precondition{}))
			claimed(t, s, a)
		})
	}
}

// List returns a complete page or an error.
func TestListThatCannotBeRead(t *testing.T) {
	fs := newFaulty(newMemory())
	s := openStore(t, fs, storePath)
	keep(t, s, 0, 2000)
	closeStore(t, s)
	s = openStore(t, fs, storePath)
	claimed(t, s, claimOf("open"))
	fs.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && op.Offset > 1000 {
			return errors.New("a bad sector")
		}
		return nil
	})
	if page, _, err := s.List(t.Context(), "", 10_000); err == nil || page != nil {
		t.Errorf("%d keys, %v", len(page), err)
	}
}

// flushTable writes what is in memory to a table. It fails the test if pebble stops writes.
func flushTable(t *testing.T, s *Store) {
	t.Helper()
	flushed := make(chan error, 1)
	go func() { flushed <- s.current().db.Flush() }()
	select {
	case err := <-flushed:
		must(t, err)
	case <-timeoutContext(t, time.Minute).Done():
		t.Fatal("the database takes no writes")
	}
}

// oneTable returns a disk in memory with a store that has so many keys in one table, and the path of that.
func oneTable(t *testing.T, keys int) (fs vfs.FS, table string) {
	t.Helper()
	fs = newMemory()
	s := openStore(t, fs, storePath)
	keep(t, s, 0, keys)
	flushTable(t, s)
	closeStore(t, s)
	names, err := fs.List(storePath)
	must(t, err)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	storetest.Equal(t, len(names), 1, "tables")
	return fs, fs.PathJoin(storePath, names[0])
}

func read(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	defer f.Close()
	content, err := io.ReadAll(f)
	must(t, err)
	return content
}

func overwrite(t *testing.T, fs vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	must(t, errors.Join(storetest.ErrOf(f.Write(content)), f.Sync(), f.Close()))
}

// With one flipped bit in a table, no merge succeeds. The store reports that, with the file, and goes
// on: it takes new keys, and replays what it can read.
func TestDamagedTableAcceptsNewKeys(t *testing.T) {
	const keys, tables, each = 600, 80, 5 // pebble stops writes at 12 tables by default
	fs, table := oneTable(t, keys)
	content := read(t, fs, table)
	content[len(content)/2] ^= 1
	overwrite(t, fs, table, content)
	s := openStore(t, fs, storePath)
	eventually(t, "the filter is built", func() bool { return s.filter.current.Load() != nil }) // new keys read nothing
	if reason, _ := s.Impairment(); reason != "" || s.Damages() != 0 {
		t.Errorf("damage before it was met: %q, %d", reason, s.Damages())
	}
	for i := range tables {
		keep(t, s, keys+i*each, keys+(i+1)*each)
		flushTable(t, s)
	}
	eventually(t, "damage is reported", func() bool { return s.Damages() > 0 })
	if reason, since := s.Impairment(); !strings.Contains(reason, table) || since.IsZero() {
		t.Errorf("reason %q since %v; want one that names %s", reason, since, table)
	}
	wantErr(t, s.Ready(t.Context()), nil)
	replaysAll(t, s, keys, keys+tables*each)
	unreadable := 0
	for i := range keys {
		got, err := ask(t.Context(), s, fmt.Sprint(i))
		switch {
		case isUnreadable(err):
			unreadable++
		case err != nil || got.Verdict != idempotency.ReplayKept:
			t.Fatalf("key %d: verdict %v, %v", i, got.Verdict, err)
		}
	}
	if unreadable == 0 || unreadable == keys {
		t.Errorf("%d of %d keys are unreadable", unreadable, keys)
	}
	if s.Damages() <= 1 {
		t.Error("reads of damaged blocks are not counted")
	}
}

// While tables cannot be read, the store says so with the name of one, and a merge that fails is repeated at intervals.
// A sector that could not be read for a while, a process that had no file descriptor, or a disk that did not tell its
// space, is no damage afterwards.
func TestTablesThatCannotBeRead(t *testing.T) {
	for name, err := range map[string]error{"a bad sector": syscall.EIO, "no file descriptor": syscall.EMFILE} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := newFaulty(newMemory())
				s := openStore(t, fs, storePath)
				synctest.Wait() // new keys read nothing when the filter is built
				fs.set(func(op errorfs.Op) error {
					if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") || op.Kind == errorfs.OpGetDiskUsage && errors.Is(err, syscall.EMFILE) {
						return fmt.Errorf("read %s: %w", op.Path, err)
					}
					return nil
				})
				for i := range 2 * mergeThreshold {
					keep(t, s, i, i+1)
					flushTable(t, s)
				}
				const pauses = 10
				time.Sleep(pauses * minMergePause)
				synctest.Wait()
				if reason, since := s.Impairment(); !strings.Contains(reason, ".sst") || since.IsZero() {
					t.Errorf("impaired since %v by %q; want a table's name", since, reason)
				}
				if s.Damages() == 0 {
					t.Error("nothing is counted")
				}
				if failed := s.database.db.Metrics().Compact.FailedCount; failed < pauses/2 || failed > pauses+2 { // two may start at once
					t.Errorf("%d merges have failed within %v", failed, pauses*minMergePause)
				}
				fs.set(nil)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if n := s.database.db.Metrics().Levels[0].Sublevels; n > mergeThreshold {
					t.Errorf("%d tables are left to merge", n)
				}
				if reason, since := s.Impairment(); reason != "" || !since.IsZero() {
					t.Errorf("impaired since %v by %q, after all tables are merged", since, reason)
				}
			})
		})
	}
}

// A merge of sound tables does not end the damage of another one.
func TestDamageStaysAfterAMerge(t *testing.T) {
	var s Store
	s.damages.mergeEnded(syscall.EIO)
	s.damages.add("a.sst is damaged", false)
	for _, err := range []error{nil, syscall.EIO, nil} {
		s.damages.mergeEnded(err)
		if reason, since := s.Impairment(); reason != "a.sst is damaged" || since.IsZero() {
			t.Errorf("impaired since %v by %q, after a merge ended with %v", since, reason, err)
		}
	}
}
