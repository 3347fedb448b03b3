package main

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// pebbleEngine is pebble with bare puts: what the file store adds is its rules.
type pebbleEngine struct{ *pebble.DB }

// quiet keeps what pebble reports of its own work out of the answers.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, arguments ...any) {
	panic(fmt.Sprintf(format, arguments...))
}

func openPebble(dir string) (engine, error) {
	o := &pebble.Options{MemTableSize: 16 << 20, Logger: quiet{}}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, err
	}
	return pebbleEngine{db}, nil
}

func (p pebbleEngine) keep(n uint64) error {
	e := entryOf(n)
	if there, err := p.lookup(e.key); err != nil || there {
		return fmt.Errorf("the key is there already: %v, %w", there, err)
	}
	// As in the file store, the claim is not waited for: only its order counts.
	if err := p.Set(e.key[:], e.claim, pebble.NoSync); err != nil {
		return err
	}
	batch := p.NewBatch()
	if err := errors.Join(batch.Set(e.key[:], e.record, nil), batch.Set(e.expiry[:], nil, nil)); err != nil {
		return err
	}
	return p.Apply(batch, pebble.Sync)
}

func (p pebbleEngine) lookup(key [32]byte) (bool, error) {
	_, closer, err := p.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

func (p pebbleEngine) has(n uint64) (bool, error) { return p.lookup(keyOf(n)) }

func (p pebbleEngine) close() error { return p.Close() }
