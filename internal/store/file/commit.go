package file

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// outcome is what became of a write.
type outcome int

const (
	notApplied outcome = iota
	applied
	unknown // its caller gave up, or the disk failed: it may be applied now, later or never
)

// write is a batch on its way to the disk. Two goroutines carry it there, because pebble's calls
// take no context and a disk may hang: the writer applies batches, and the confirmer waits until
// they are flushed. Whatever is applied during one flush shares the next.
type write struct {
	batch *pebble.Batch
	began time.Time
	// ended is called once, when the outcome is known, or is known to stay unknown.
	ended func(outcome)
	state atomic.Int32
	done  chan struct{} // closed after ended(applied)
}

// The states of a write. A caller may withdraw it while it is queued.
const (
	queued int32 = iota
	begun
	over
)

// hangTimeout is how long a write takes at least for the disk to count as one that hangs. It does so
// only when a caller has given up as well.
const hangTimeout = time.Second

var errHangs = errors.New("the disk does not answer")

// end ends a write that is in the state from, and reports whether it was.
func (w *write) end(from int32, o outcome) bool {
	if !w.state.CompareAndSwap(from, over) {
		return false
	}
	if o != unknown {
		_ = w.batch.Close() // it only returns memory
	}
	w.ended(o)
	return true
}

// commit writes a batch and returns when it is flushed. With an error, the outcome says whether
// the batch may have been applied. ended is called once with the outcome, perhaps after commit has
// returned [unknown].
func (d *database) commit(ctx context.Context, batch *pebble.Batch, ended func(outcome)) (outcome, error) {
	w := &write{batch: batch, began: time.Now(), ended: ended, done: make(chan struct{})}
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
	if w.end(queued, notApplied) {
		return notApplied, err
	}
	go d.awaitOutcome(w)
	return unknown, err
}

// awaitOutcome waits for a write whose caller has given up.
func (d *database) awaitOutcome(w *write) {
	if time.Since(w.began) >= hangTimeout {
		d.late.Add(1)
		defer d.late.Add(-1)
	}
	select {
	case <-w.done:
	case <-d.disk.failed:
		w.end(begun, unknown)
	}
}

// applyWrites is the writer.
func (d *database) applyWrites() {
	defer close(d.applied)
	defer recoverPanic(d.disk.fail)
	for w := range d.queue {
		if !w.state.CompareAndSwap(queued, begun) {
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
		w.end(begun, applied)
		close(w.done)
	}
}
