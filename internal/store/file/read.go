package file

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// mostReads bounds how many reads are under way. Each one of a disk that hangs keeps a thread
// of the system, and Go ends a process that has too many of them.
const mostReads = 256

// within reads from the database, and gives up when the time of the operation is over:
// pebble's reads take no context, and a disk may hang. So another goroutine reads. If the
// caller gives up, that one goes on until the disk answers, and then calls abandoned; the
// database is not closed before.
func within[T any](ctx context.Context, d *database, read func() (T, error), abandoned func()) (value T, gaveUp bool, err error) {
	over := d.deadlines.over(ctx)
	select {
	case d.reads <- struct{}{}:
	case <-over:
		return value, false, idempotency.EndOf(ctx)
	}
	type result struct {
		of  T
		err error
	}
	var state atomic.Int32
	done := make(chan result, 1)
	d.reading.Go(func() {
		var r result
		func() {
			defer rescue(&r.err) // nobody else would: it is no goroutine of a request
			r.of, r.err = read()
		}()
		<-d.reads
		if state.CompareAndSwap(waiting, begun) {
			done <- r
		} else {
			abandoned()
		}
	})
	select {
	case r := <-done:
		return r.of, false, r.err
	case <-over:
	}
	if state.CompareAndSwap(waiting, givenUp) {
		return value, true, idempotency.EndOf(ctx)
	}
	r := <-done // just now
	return r.of, false, r.err
}

// read is within for what belongs to the key. A read that is given up goes on to hold the
// key: those who ask for it again wait for that one, and begin no others.
//
// The other goroutine has a copy of its own, so that the caller's, which most operations need
// for no read, stays on the stack.
func read[T any](ctx context.Context, k *lockedKey, read func(k *lockedKey) (T, error)) (T, error) {
	own := *k
	value, gaveUp, err := within(ctx, own.database,
		func() (T, error) { return read(&own) }, func() { own.locks.unlock(own.key) })
	if gaveUp {
		k.passOn()
	}
	return value, err
}

// decideWithin is decide, within the time of the operation.
func (k *lockedKey) decideWithin(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, *idempotency.Record, error) {
	if k.inMemory() {
		return k.decide(c, clock())
	}
	return k.decideByReading(ctx, c)
}

func (k *lockedKey) decideByReading(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, *idempotency.Record, error) {
	type decided struct {
		claimed idempotency.Claimed
		stored  *idempotency.Record
	}
	of, err := read(ctx, k, func(k *lockedKey) (of decided, err error) {
		of.claimed, of.stored, err = k.decide(c, clock())
		return of, err
	})
	return of.claimed, of.stored, err
}

// ownedWithin is owned, within the time of the operation.
func (k *lockedKey) ownedWithin(ctx context.Context, token, follows, left string, now time.Time) (*idempotency.Record, error) {
	if k.slots.form(k.key) != nil {
		return k.owned(k.key, token, follows, left, now)
	}
	return read(ctx, k, func(k *lockedKey) (*idempotency.Record, error) { return k.owned(k.key, token, follows, left, now) })
}

// newRecordWithin is newRecord, and recordWithin record, within the time of the operation.
func (k *lockedKey) newRecordWithin(ctx context.Context) (*idempotency.Record, error) {
	if k.inMemory() {
		return k.newRecord(k.key)
	}
	return read(ctx, k, func(k *lockedKey) (*idempotency.Record, error) { return k.newRecord(k.key) })
}

func (k *lockedKey) recordWithin(ctx context.Context) (*idempotency.Record, error) {
	return read(ctx, k, func(k *lockedKey) (*idempotency.Record, error) { return k.record(k.key) })
}

// inMemory reports that newRecord does not ask pebble.
func (k *lockedKey) inMemory() bool { return k.slots.form(k.key) != nil || k.filters.isNew(&k.key) }
