package file

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// writeResult says whether a write was applied.
type writeResult int

const (
	notApplied writeResult = iota
	applied
	unknown // the caller gave up or the disk failed; the write may be applied now, later or never
)

// write is a batch on its way to the disk. Two goroutines work on it, because pebble's calls take no
// context and a disk may hang: the writer applies batches, and the confirmer waits until they are
// flushed. Batches that are applied during one flush share the next one.
type write struct {
	batch     *pebble.Batch
	startTime time.Time
	// onResult is called once, when the result is known or can no longer become known.
	onResult func(writeResult)
	state    atomic.Int32
	done     chan struct{} // closed after onResult(applied)
}

// The states of a write. A caller may withdraw it while it is queued.
const (
	writeQueued int32 = iota
	writeStarted
	writeFinished
)

// hangTimeout is how long a write may take before the disk counts as hanging. It does so only if the
// write's caller has given up.
const hangTimeout = time.Second

var errHangs = errors.New("the disk does not answer")

// finish finishes a write that is in the state from. It reports false for a write in another state.
func (w *write) finish(from int32, result writeResult) bool {
	if !w.state.CompareAndSwap(from, writeFinished) {
		return false
	}
	if result != unknown {
		_ = w.batch.Close() // it only returns memory
	}
	w.onResult(result)
	return true
}

// commit writes a batch and returns when it is flushed. With an error, the result says whether the
// batch may have been applied. commit calls onResult once: if it returns [unknown], perhaps later,
// and perhaps with another result.
func (d *database) commit(ctx context.Context, batch *pebble.Batch, onResult func(writeResult)) (writeResult, error) {
	w := &write{batch: batch, startTime: time.Now(), onResult: onResult, done: make(chan struct{})}
	err := d.status()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		select {
		case d.queue <- w:
		case <-ctx.Done():
			err = ctx.Err()
		case <-d.disk.failed:
			err = d.disk.failure
		}
	}
	if err == nil {
		select {
		case <-w.done:
			return applied, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-d.disk.failed:
			err = d.disk.failure
		}
	}
	if w.finish(writeQueued, notApplied) {
		return notApplied, err
	}
	go d.awaitOutcome(w)
	return unknown, err
}

// awaitOutcome waits for a write whose caller has given up.
func (d *database) awaitOutcome(w *write) {
	if time.Since(w.startTime) >= hangTimeout {
		d.hanging.Add(1)
		defer d.hanging.Add(-1)
	}
	select {
	case <-w.done:
	case <-d.disk.failed:
		w.finish(writeStarted, unknown)
	}
}

// applyWrites is the writer.
func (d *database) applyWrites() {
	defer close(d.applied)
	defer recoverPanic(d.disk.fail)
	for w := range d.queue {
		if !w.state.CompareAndSwap(writeQueued, writeStarted) {
			continue
		}
		if err := d.db.ApplyNoSyncWait(w.batch, pebble.Sync); err != nil {
			d.disk.fail(err)
			return
		}
		d.applied <- w
	}
}

// confirmWrites is the confirmer.
func (d *database) confirmWrites() {
	defer close(d.stopped)
	defer recoverPanic(d.disk.fail)
	for w := range d.applied {
		if err := w.batch.SyncWait(); err != nil {
			d.disk.fail(err)
		}
		// pebble does not know whether the flush has failed.
		if d.disk.hasFailed() {
			continue
		}
		w.finish(writeStarted, applied)
		close(w.done)
	}
}
