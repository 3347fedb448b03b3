package file

import (
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store { return openStore(t, newMemory(), storePath) }, storetest.Options{
		Bubble: true, Damage: damage,
		// The files at this moment are those that a killed process leaves.
		Crash: func(t *testing.T, store idempotency.Store) idempotency.Store {
			fs := newMemory()
			synctest.Wait() // pebble removes old files in the background
			storetest.Must(t, storetest.ErrOf(vfs.Clone(store.(*Store).fs, fs, storePath, storePath)))
			return openStore(t, fs, storePath)
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
