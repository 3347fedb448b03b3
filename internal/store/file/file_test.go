package file

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap/zaptest"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestStore(t *testing.T) {
	open := func(t *testing.T, path string) idempotency.Store {
		s, err := Open(path, zaptest.NewLogger(t))
		must(t, err)
		return s
	}
	storetest.Run(t, func(t *testing.T) idempotency.Store { return open(t, newPath(t)) }, storetest.Options{
		Around: synctest.Test, Advance: time.Sleep, Damage: damage,
		// The files at this moment are those that a killed process leaves.
		Crash: func(t *testing.T, store idempotency.Store) idempotency.Store {
			path := newPath(t)
			synctest.Wait() // pebble removes old files in the background
			must(t, os.CopyFS(path, os.DirFS(store.(*Store).path)))
			return open(t, path)
		},
	})
}

// damage overwrites the value of a key.
func damage(t *testing.T, store idempotency.Store, key idempotency.Key) {
	s := store.(*Store)
	must(t, storetest.ErrOf(s.keys.lock(t.Context(), key)))
	s.keys.unlock(key, nil)
	must(t, s.database.db.Set(valueName(key, ""), []byte("damaged"), pebble.Sync))
	s.filter.add(&key)
}
