package file

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap/zaptest"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		s, err := Open(newPath(t), zaptest.NewLogger(t))
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return s
	}, storetest.Options{Around: synctest.Test, Advance: time.Sleep, Damage: damage})
}

// damage overwrites what is stored of a record.
func damage(t *testing.T, store idempotency.Store, key idempotency.Key) {
	store.(*Store).database.slots.ended(key)
	if err := store.(*Store).database.db.Set(recordName(key), []byte("damaged"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
}

func TestReopenedStoreKnowsItsKeys(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	if err := keep(t.Context(), s, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), claimOf("b")); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = reopen(t, path)
	replays(t, s, "a")
	if claimed, err := ask(s, "b"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Errorf("a key that was in flight: verdict %v, %v", claimed.Verdict, err)
	}
}

// The files are private, also those in a directory that is not.
func TestNewFilesArePrivate(t *testing.T) {
	made, given := newPath(t), t.TempDir()
	if err := os.Chmod(given, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{made, given} {
		s := reopen(t, path)
		keepMany(t, s, 10)
		if err := s.database.db.Flush(); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			info, err := file.Info()
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != 0o600 && info.Size() > 0 {
				t.Errorf("%s has mode %v, want 0600", file.Name(), info.Mode())
			}
		}
	}
	for _, dir := range []string{made, filepath.Dir(made)} {
		if info, err := os.Stat(dir); err != nil || info.Mode() != 0o700|os.ModeDir {
			t.Errorf("%s: %v, %v; want mode 0700", dir, info.Mode(), err)
		}
	}
}

// A response that is larger than the tables in memory.
func TestLargeResponse(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	claimed, err := s.Claim(t.Context(), claimOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	large := completeAs("a")
	large.Response.Body = bytes.Repeat([]byte("0123456789abcdef"), 2*memTableBytes/16)
	if err := s.Settle(t.Context(), key("a"), claimed.Record, large); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := ask(s, "a")
		if err != nil || got.Verdict != idempotency.ReplayKept || !bytes.Equal(got.Response.Body, large.Response.Body) {
			t.Fatalf("verdict %v, %v", got.Verdict, err)
		}
		closeStore(t, s)
		s = reopen(t, path)
	}
}

// Large responses are in files and small ones in batches whose room is used again. Each
// key has its own response all the same, before and after a restart.
func TestLargeResponsesShareNothing(t *testing.T) {
	const writers, each = 4, 8
	path := newPath(t)
	s := reopen(t, path)
	settlement := func(writer, n int) (name string, s idempotency.Settlement) {
		name = fmt.Sprint(writer, " ", n)
		s = completeAs(name)
		size := largeBytes/2*(1+(writer+n)%3) + n // one grows, and one becomes smaller
		if n == each-1 {
			// pebble takes the bytes of such a batch.
			s.Response.Header["Link"] = []string{strings.Repeat("x", memTableBytes/2+writer)}
		}
		s.Response.Body = bytes.Repeat([]byte(name), size/len(name))
		return name, s
	}
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			for n := range each {
				name, settlement := settlement(writer, n)
				claimed, err := s.Claim(t.Context(), claimOf(name))
				if err == nil {
					err = s.Settle(t.Context(), key(name), claimed.Record, settlement)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	writing.Wait()
	for range 2 {
		for writer := range writers {
			for n := range each {
				name, settlement := settlement(writer, n)
				got, err := ask(s, name)
				if err != nil || got.Verdict != idempotency.ReplayKept || !bytes.Equal(got.Response.Body, settlement.Response.Body) {
					t.Errorf("%s: verdict %v, %v, or another response", name, got.Verdict, err)
				}
			}
		}
		closeStore(t, s)
		s = reopen(t, path)
	}
}

func TestClosedStore(t *testing.T) {
	s := reopen(t, newPath(t))
	closeStore(t, s)
	if _, err := s.Claim(t.Context(), claimOf("a")); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("claim: %v, want ErrClosed", err)
	}
	if err := s.Renew(t.Context(), claimOf("a")); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("renew: %v, want ErrClosed", err)
	}
	closeStore(t, s)
}

// tamper changes stored values while the store is closed.
func tamper(t *testing.T, path string, change func(db *pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open(path, &pebble.Options{Comparer: comparer, FormatMajorVersion: formatVersion, Logger: &says{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := change(db); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableValuesAreNeverReplayedNorReplaced(t *testing.T) {
	k := key("a")
	recordOfA, responseOfA := recordName(k), responseName(k, claimOf("a").Token)
	for name, change := range map[string]func(db *pebble.DB) error{
		"a flipped record":            func(db *pebble.DB) error { return flip(db, recordOfA, -3) },
		"a record of another version": func(db *pebble.DB) error { return flip(db, recordOfA, len("ddr")) },
		"an empty record":             func(db *pebble.DB) error { return db.Set(recordOfA, nil, pebble.Sync) },
		"the record of another key": func(db *pebble.DB) error {
			value, closer, err := db.Get(recordName(key("b")))
			if err != nil {
				return err
			}
			defer closer.Close()
			return db.Set(recordOfA, value, pebble.Sync)
		},
		"a flipped response": func(db *pebble.DB) error { return flip(db, responseOfA, -1) },
		"a short response":   func(db *pebble.DB) error { return db.Set(responseOfA, []byte("short"), pebble.Sync) },
		"a missing response": func(db *pebble.DB) error { return db.Delete(responseOfA, pebble.Sync) },
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s := reopen(t, path)
			for _, name := range []string{"a", "b"} {
				if err := keep(t.Context(), s, name); err != nil {
					t.Fatal(err)
				}
			}
			closeStore(t, s)
			tamper(t, path, change)
			s = reopen(t, path)
			for range 2 { // the first time must not have repaired anything
				claimed, err := ask(s, "a")
				var unreadable *idempotency.UnreadableError
				if !errors.As(err, &unreadable) || claimed.Record != nil || claimed.Response != nil {
					t.Fatalf("claim: %+v, %v; want an UnreadableError", claimed, err)
				}
				if !strings.Contains(unreadable.Where, path) || !strings.Contains(unreadable.Where, k.String()) {
					t.Errorf("it names %q, want the directory and the key", unreadable.Where)
				}
			}
			replays(t, s, "b")
			page, _, err := s.List(t.Context(), "", 10)
			if err != nil || len(page) != 2 {
				t.Fatalf("list: %+v, %v; want both keys", page, err)
			}
			if strings.Contains(name, "record") {
				if err := s.Renew(t.Context(), claimOf("a")); !isUnreadable(err) {
					t.Errorf("renew: %v, want an UnreadableError", err)
				}
				if _, _, err := s.Lookup(t.Context(), k); !isUnreadable(err) {
					t.Errorf("lookup: %v, want an UnreadableError", err)
				}
				if !isUnreadable(page[0].Unreadable) && !isUnreadable(page[1].Unreadable) {
					t.Errorf("listed as %+v", page)
				}
			}
			if err := s.Forget(t.Context(), k, idempotency.Seen{}); err != nil {
				t.Fatalf("forget: %v", err)
			}
			if claimed, err := ask(s, "a"); err != nil || claimed.Verdict != idempotency.Proceed {
				t.Errorf("forgotten and claimed: verdict %v, %v", claimed.Verdict, err)
			}
		})
	}
}

func isUnreadable(err error) bool {
	var unreadable *idempotency.UnreadableError
	return errors.As(err, &unreadable)
}

// flip changes one byte of a value; a negative position counts from its end.
func flip(db *pebble.DB, name []byte, at int) error {
	value, closer, err := db.Get(name)
	if err != nil {
		return err
	}
	value = append([]byte(nil), value...)
	if err := closer.Close(); err != nil {
		return err
	}
	if at < 0 {
		at += len(value)
	}
	value[at] ^= 0x11
	return db.Set(name, value, pebble.Sync)
}
