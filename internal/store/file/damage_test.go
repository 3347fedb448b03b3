package file

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func isUnreadable(err error) bool {
	_, ok := errors.AsType[*idempotency.UnreadableError](err)
	return ok
}

// Whatever is damaged in a table, the process goes on, replays only responses as they were kept, and
// runs no key again.
func TestDamagedStoreNeverAnswersWrongly(t *testing.T) {
	const keys, rounds = 600, 60
	whole := newPath(t)
	s := openStore(t, vfs.Default, whole)
	keep(t, s, 0, keys)
	closeStore(t, s)
	s = openStore(t, vfs.Default, whole) // which writes the log to a table
	closeStore(t, s)
	tables, err := filepath.Glob(filepath.Join(whole, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("tables: %v, %v", tables, err)
	}
	sound, err := os.ReadFile(tables[0])
	must(t, err)
	random := rand.New(rand.NewPCG(11, 12))
	unreadable, replayed := 0, 0
	for range rounds {
		damaged := append([]byte(nil), sound...)
		switch at := random.IntN(len(damaged) - 512); random.IntN(3) {
		case 0:
			damaged[at] ^= byte(1 + random.IntN(255))
		case 1:
			clear(damaged[at : at+512])
		default:
			copy(damaged[at:], sound[random.IntN(len(sound)-512):][:512])
		}
		path := newPath(t)
		must(t, os.CopyFS(path, os.DirFS(whole)))
		must(t, os.WriteFile(filepath.Join(path, filepath.Base(tables[0])), damaged, 0o600))
		s, err := Open(path, zap.NewNop())
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
		"version":  change(5), // of the record, behind flags and length
		"nothing":  func(t *testing.T, s *Store) { set(t, s, valueName(a.Key, ""), nil) },
		"of another key": func(t *testing.T, s *Store) {
			value, err := s.database.get(valueName(key("b"), ""))
			must(t, err)
			set(t, s, valueName(a.Key, ""), value)
		},
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
