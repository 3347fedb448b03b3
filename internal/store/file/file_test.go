package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"
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
	if err := store.(*Store).write(func(tables *tables) error {
		return tables.put(tables.records, key[:], []byte("damaged"))
	}); err != nil {
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
	kept(t, s, "a")
	if claimed, err := ask(s, "b"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Errorf("a key that was in flight: verdict %v, %v", claimed.Verdict, err)
	}
}

func TestNewFileIsPrivate(t *testing.T) {
	path := newPath(t)
	reopen(t, path)
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestEmptyFileIsInitialised(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := reopen(t, path)
	if err := keep(t.Context(), s, "a"); err != nil {
		t.Fatal(err)
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
func tamper(t *testing.T, path string, change func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableValuesAreNeverReplayedNorReplaced(t *testing.T) {
	k := key("a")
	responseName := append(k[:], claimOf("a").Token...)
	other := key("b")
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"a flipped record": func(tx *bolt.Tx) error {
			return flip(tx.Bucket(recordsBucket), k[:], -3)
		},
		"a record of another version": func(tx *bolt.Tx) error {
			return flip(tx.Bucket(recordsBucket), k[:], len("dedup-rec"))
		},
		"an empty record": func(tx *bolt.Tx) error {
			return tx.Bucket(recordsBucket).Put(k[:], []byte{})
		},
		"the record of another key": func(tx *bolt.Tx) error {
			b := tx.Bucket(recordsBucket)
			return b.Put(k[:], b.Get(other[:]))
		},
		"a flipped response": func(tx *bolt.Tx) error {
			return flip(tx.Bucket(responsesBucket), responseName, -1)
		},
		"a short response": func(tx *bolt.Tx) error {
			return tx.Bucket(responsesBucket).Put(responseName, []byte("short"))
		},
		"a missing response": func(tx *bolt.Tx) error {
			return tx.Bucket(responsesBucket).Delete(responseName)
		},
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
					t.Errorf("it names %q, want the file and the key", unreadable.Where)
				}
			}
			kept(t, s, "b")
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
			if err := s.Forget(t.Context(), k); err != nil {
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
func flip(b *bolt.Bucket, name []byte, at int) error {
	value := append([]byte(nil), b.Get(name)...)
	if at < 0 {
		at += len(value)
	}
	value[at] ^= 0x11
	return b.Put(name, value)
}

// entries counts the entries of each of the tables.
func entries(t *testing.T, s *Store) (records, responses, expiries int) {
	t.Helper()
	if err := s.read(func(t *tables) error {
		records, responses, expiries = t.records.Stats().KeyN, t.responses.Stats().KeyN, t.expiries.Stats().KeyN
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return records, responses, expiries
}

func TestSweepRemovesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		const n = 2*sweepAtOnce + 10
		keepMany(t, s, n)
		stays := claimOf("stays")
		stays.Retention = 24 * time.Hour
		if _, err := s.Claim(t.Context(), stays); err != nil {
			t.Fatal(err)
		}
		// The entries of records that were replaced or forgotten are gone.
		if records, responses, expiries := entries(t, s); records != n+1 || responses != n || expiries != 2*n+1 {
			t.Fatalf("%d records, %d responses, %d expiries; want %d, %d, %d", records, responses, expiries, n+1, n, 2*n+1)
		}
		time.Sleep(time.Hour + 2*sweepEvery)
		synctest.Wait()
		if records, responses, expiries := entries(t, s); records != 1 || responses != 0 || expiries != 1 {
			t.Errorf("after the retention: %d records, %d responses, %d expiries; want 1, 0, 1", records, responses, expiries)
		}
	})
}

func TestSweepLeavesWhatWasPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := reopen(t, path)
		if err := keep(t.Context(), s, "a"); err != nil {
			t.Fatal(err)
		}
		k := key("a")
		closeStore(t, s)
		tamper(t, path, func(tx *bolt.Tx) error {
			early := time.Now().Add(time.Minute)
			if err := tx.Bucket(expiriesBucket).Put(expiry(early, expiringRecord, k, ""), marker); err != nil {
				return err
			}
			return tx.Bucket(expiriesBucket).Put(expiry(early, expiringResponse, k, claimOf("a").Token), marker)
		})
		s = reopen(t, path)
		time.Sleep(time.Minute + 2*sweepEvery)
		synctest.Wait()
		if _, _, expiries := entries(t, s); expiries != 2 {
			t.Errorf("%d expiries, want the two that are right", expiries)
		}
		kept(t, s, "a")
	})
}
