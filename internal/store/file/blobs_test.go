package file

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// bodyBeside is a body that is put beside the tables, and not into a file of its own.
func bodyBeside(name string) []byte { return []byte(name + strings.Repeat("x", 4<<10)) }

// keepBeside keeps keys whose responses lie beside the tables, in so many files, and closes
// the store.
func keepBeside(t *testing.T, path string, n int) {
	t.Helper()
	s, err := Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	for i := range n {
		settlement := completeAs(fmt.Sprint(i))
		settlement.Response.Body = bodyBeside(fmt.Sprint(i))
		if err := keepAs(t.Context(), s, fmt.Sprint(i), settlement); err != nil {
			t.Fatal(err)
		}
		if err := s.database.db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// blobsIn returns the files beside the tables.
func blobsIn(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path, "*"+blobSuffix))
	if err != nil || len(found) == 0 {
		t.Fatalf("files beside the tables: %v, %v", found, err)
	}
	return found
}

// losses are what can be lost of a file.
var losses = map[string]func(name string) error{
	"all of it": os.Remove,
	"its end": func(name string) error {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		return os.Truncate(name, info.Size()-1)
	},
	"its content": func(name string) error { return os.Truncate(name, 0) },
}

// A store without one of the files with responses is refused, and left as it is.
func TestLostResponsesAreRefused(t *testing.T) {
	for what, lose := range losses {
		t.Run(what, func(t *testing.T) {
			path := newPath(t)
			keepBeside(t, path, 3)
			lost := blobsIn(t, path)[0]
			if err := lose(lost); err != nil {
				t.Fatal(err)
			}
			before := contents(t, path)
			s, err := Open(path, zap.NewNop())
			if err == nil {
				closeStore(t, s)
				t.Fatal("it opens")
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), filepath.Base(lost)) {
				t.Errorf("the error does not name what is damaged: %v", err)
			}
			if !maps.Equal(contents(t, path), before) {
				t.Error("it was changed")
			}
		})
	}
}

// If such a file is lost while the store is open, the keys of its responses cannot be read
// and can be forgotten, the sweeper goes on, and all other keys are kept.
func TestResponsesLostWhileOpen(t *testing.T) {
	for what, lose := range losses {
		t.Run(what, func(t *testing.T) {
			path := newPath(t)
			const n = 10
			keepBeside(t, path, n)
			s, err := Open(path, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			defer closeStore(t, s)
			if err := keep(t.Context(), s, "beside none"); err != nil {
				t.Fatal(err)
			}
			for _, lost := range blobsIn(t, path) {
				if err := lose(lost); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				if claimed, err := ask(s, "7"); !isUnreadable(err) {
					t.Fatalf("verdict %v, %v", claimed.Verdict, err)
				}
			}
			if page, _, err := s.List(t.Context(), "", 100); err != nil || len(page) != n+1 {
				t.Errorf("%d keys are listed, %v", len(page), err)
			}
			if err := s.sweepDue(); err != nil {
				t.Error(err)
			}
			if err := s.Forget(t.Context(), key("7"), idempotency.Seen{}); err != nil {
				t.Fatal(err)
			}
			if claimed, err := ask(s, "7"); err != nil || claimed.Verdict != idempotency.Proceed {
				t.Errorf("when it was forgotten: verdict %v, %v", claimed.Verdict, err)
			}
			replays(t, s, "beside none")
		})
	}
}

// A panic of pebble in one who reads is an error of that operation. It leaves no key locked,
// and the process goes on, whoever reads.
func TestPanicOfThoseWhoRead(t *testing.T) {
	s, err := Open(newPath(t), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	keepMany(t, s, 20)
	poll(t, "nobody reads in the background", func() bool { return s.database.filters.known.Load() != nil })
	if err := s.database.db.Close(); err != nil { // it panics from now on, whatever is asked
		t.Fatal(err)
	}
	seen, of := idempotency.Seen{}, key("7")
	for what, do := range map[string]func() error{
		"claim":    func() error { _, err := ask(s, "7"); return err },
		"renew":    func() error { return s.Renew(t.Context(), claimOf("7")) },
		"settle":   func() error { return s.Settle(t.Context(), of, &idempotency.Record{}, completeAs("7")) },
		"lookup":   func() error { _, _, err := s.Lookup(t.Context(), of); return err },
		"response": func() error { _, err := s.Response(t.Context(), of, "token of 7"); return err },
		"free":     func() error { _, err := s.Free(t.Context(), of, "", seen); return err },
		"list":     func() error { _, _, err := s.List(t.Context(), "", 10); return err },
		"sweep":    s.sweepDue,
		"filter":   func() error { _, err := s.addSome(s.database, newKeyFilter(), []byte{dataTable}); return err },
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", what)
		}
		if !s.database.locks.tryLock(of) {
			t.Errorf("%s leaves the key locked", what)
		}
		s.database.locks.unlock(of)
	}
	s.database.disk.fail(errors.New("as a test wants it"))
	poll(t, "the store is available again", func() bool { _, err := ask(s, "7"); return err == nil })
	replays(t, s, "7")
	closeStore(t, s)
}

const lostChild = "merge of lost responses"

func init() {
	children[lostChild] = func(path string) error {
		s, err := Open(path, zap.NewNop())
		if err != nil {
			return err
		}
		lost, err := filepath.Glob(filepath.Join(path, "*"+blobSuffix))
		for _, name := range lost {
			err = errors.Join(err, os.Remove(name))
		}
		if s.database.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false) == nil {
			err = errors.Join(err, errors.New("the merge did not read them"))
		}
		return errors.Join(err, keep(context.Background(), s, "afterwards"))
	}
}

// A merge in the background that meets such a loss does not end the process.
func TestMergeOfLostResponses(t *testing.T) {
	path := newPath(t)
	keepBeside(t, path, responseFiles+5) // so many that a merge copies them together
	if err := child(t, lostChild, path).Run(); err != nil {
		t.Error(err)
	}
}
