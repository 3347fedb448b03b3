package main

import (
	"fmt"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// boltEngine is bbolt with one bucket for the records and one for the expiries. Each of
// the two writes is flushed: it cannot do without.
type boltEngine struct {
	*committer
	db *bbolt.DB
}

var records, expiries = []byte("records"), []byte("expiries")

func openBolt(dir string) (engine, error) {
	db, err := bbolt.Open(filepath.Join(dir, "keys.db"), 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, bucket := range [][]byte{records, expiries} {
			if _, err := tx.CreateBucket(bucket); err != nil {
				return err
			}
		}
		return nil
	})
	b := &boltEngine{db: db}
	b.committer = newCommitter(b.commit)
	return b, err
}

func (b *boltEngine) commit(group []write) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		for _, w := range group {
			if err := putInto(tx, w); err != nil {
				return err
			}
		}
		return nil
	})
}

func putInto(tx *bbolt.Tx, w write) error {
	bucket := tx.Bucket(records)
	if w.claim {
		if bucket.Get(w.entry.key[:]) != nil {
			return fmt.Errorf("the key %x is there already", w.entry.key)
		}
		return bucket.Put(w.entry.key[:], w.entry.claim)
	}
	if err := bucket.Put(w.entry.key[:], w.entry.record); err != nil {
		return err
	}
	return tx.Bucket(expiries).Put(w.entry.expiry[:], nil)
}

func (b *boltEngine) keep(n uint64) error { return b.committer.keep(entryOf(n)) }

func (b *boltEngine) has(n uint64) (there bool, err error) {
	key := keyOf(n)
	err = b.db.View(func(tx *bbolt.Tx) error {
		there = len(tx.Bucket(records).Get(key[:])) == recordSize
		return nil
	})
	return there, err
}

func (b *boltEngine) close() error {
	b.stop()
	return b.db.Close()
}
