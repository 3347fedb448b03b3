package file

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// queued is how many operations fit into each of the queues. With more of them, callers
// wait for room.
const queued = 1024

// operation is one write. Two goroutines carry it out, because pebble's calls take no
// context, and a disk may hang: the writer hands its batch to pebble, and the confirmer
// waits until it is flushed. What pebble gets while it flushes, its next flush has: so
// concurrent operations share flushes, and none waits for others to come.
type operation struct {
	batch *pebble.Batch
	// key is whose record is in the batch, nil if it only removes some.
	key *idempotency.Key
	// write is what the writer does in place of a batch, nil for a batch.
	write func() error
	// durable says that the operation is to survive a crash of the machine. Without it,
	// it survives one of the process.
	durable bool
	// ended is called when the operation was carried out, or will not be.
	ended func(applied bool)

	state atomic.Int32
	done  chan error // has room for the one result
}

// The states of an operation. From waiting, either the writer begins it or its caller
// gives it up, never both.
const (
	waiting int32 = iota
	begun
	givenUp
)

// commit carries out a change, and returns when it is written, and flushed if it is to
// be durable. With an error, mayBeApplied says whether the change may have been made all
// the same, or may still be made.
func (d *database) commit(ctx context.Context, op *operation) (mayBeApplied bool, err error) {
	op.done = make(chan error, 1)
	over := d.deadlines.over(ctx)
	trouble, worse := d.disk.trouble()
	if trouble == nil {
		trouble = ctx.Err()
	}
	for queued := false; !queued; {
		if trouble != nil {
			op.end(false)
			return false, d.writeError(trouble)
		}
		select {
		case d.queue <- op:
			queued = true
		case <-over:
			op.end(false)
			return false, idempotency.EndOf(ctx)
		case <-worse:
			trouble, worse = d.disk.trouble() // it may be over already
		}
	}
	for {
		select {
		case err := <-op.done:
			return err != nil, d.writeError(err)
		case <-over:
			return !op.state.CompareAndSwap(waiting, givenUp), idempotency.EndOf(ctx)
		case <-worse:
			if trouble, worse = d.disk.trouble(); trouble != nil {
				return !op.state.CompareAndSwap(waiting, givenUp), d.writeError(trouble)
			}
		}
	}
}

// deadlines tell operations that their time is over. Those that end at about the same time
// share a timer: one for each took as much time as the rest of the wait.
type deadlines struct {
	from time.Time
	mu   sync.Mutex
	ends map[int64]chan struct{} // by the number of steps since from
}

// deadlineStep is how much too late an operation may hear that its time is over.
const deadlineStep = 20 * time.Millisecond

// over returns a channel that is closed when the context has ended.
func (d *deadlines) over(ctx context.Context) <-chan struct{} {
	timed, ok := ctx.(idempotency.TimedContext)
	if !ok {
		return ctx.Done()
	}
	at, _ := timed.Deadline()
	step := int64(at.Sub(d.from)/deadlineStep) + 1
	d.mu.Lock()
	defer d.mu.Unlock()
	end := d.ends[step]
	if end == nil {
		end = make(chan struct{})
		d.ends[step] = end
		time.AfterFunc(time.Until(d.from.Add(time.Duration(step)*deadlineStep)), func() {
			d.mu.Lock()
			delete(d.ends, step)
			d.mu.Unlock()
			close(end)
		})
	}
	return end
}

// end lets go of what the operation holds. When a batch is applied, pebble has copied all
// of it, or has taken its bytes away.
func (op *operation) end(applied bool) {
	if op.batch != nil {
		_ = op.batch.Close() // it only gives memory back
	}
	if op.ended != nil {
		op.ended(applied)
	}
}

// writeQueued is the writer.
func (d *database) writeQueued() {
	defer close(d.written)
	defer d.contain()
	for op := range d.queue {
		if !op.state.CompareAndSwap(waiting, begun) {
			op.end(false)
			continue
		}
		if err := d.begin(op); err != nil {
			d.disk.fail(err)
			op.done <- err
			return
		}
	}
}

func (d *database) begin(op *operation) error {
	if op.write != nil {
		err := op.write()
		if err == nil {
			op.end(true)
			op.done <- nil
		}
		return err
	}
	if op.durable {
		d.disk.durable.Add(1)
	}
	if op.key != nil {
		d.filters.add(op.key)
	}
	err := d.db.ApplyNoSyncWait(op.batch, pebble.Sync)
	if err == nil {
		d.written <- op
	}
	return err
}

// confirmWritten is the confirmer.
func (d *database) confirmWritten() {
	defer close(d.confirmed)
	defer d.contain()
	for op := range d.written {
		err := op.batch.SyncWait()
		if op.durable {
			d.disk.durable.Add(-1)
		}
		if err != nil {
			d.disk.fail(err)
			op.done <- err
			return
		}
		op.end(true)
		op.done <- nil
	}
}

// contain turns a panic of pebble into a failure of this database: pebble panics if
// something is broken that it must not go on with. Its locks may still be locked, so the
// database is given up.
func (d *database) contain() {
	if reason := recover(); reason != nil {
		d.disk.fail(&panicError{reason})
	}
}

// writeError explains why something was not written.
func (d *database) writeError(err error) error {
	if err == nil {
		return nil
	}
	return &storeError{d.path, err}
}

// answers reports whether what is written reaches the disk: of a new key nothing is read, and
// so a disk that hangs shows in nothing else. A full one answers: what is kept is replayed.
func (d *database) answers(ctx context.Context) error {
	change := d.change()
	if err := change.LogData([]byte("?"), nil); err != nil { // stays in the log, and out of the tables
		return err
	}
	_, err := d.commit(ctx, &operation{batch: change.Batch, durable: true})
	if errors.Is(err, ErrNoSpace) {
		return nil
	}
	return err
}

// change returns a new, empty change.
func (d *database) change() change { return d.changeOf(nil) }

// changeOf returns a new, empty change with room for a response, nil for none. Where pebble
// does not know how much is to come it doubles the room, and copies. It uses its batches
// again, and so each has to say how large it is.
func (d *database) changeOf(r *idempotency.Response) change {
	room := 1 << 10
	if r != nil {
		room += headRoom
		if !isLarge(r) {
			room += len(r.Body)
		}
	}
	return change{Batch: d.db.NewBatch(pebble.WithInitialSizeBytes(room))}
}

// lock locks a key for an operation. Whoever reads locks it too: what was written but
// not flushed can already be read, and nobody must act on what a crash could undo.
func (d *database) lock(ctx context.Context, key idempotency.Key) error {
	if d.locks.tryLock(key) {
		return nil
	}
	trouble, worse := d.disk.trouble()
	if trouble != nil {
		// Who holds it may wait for room on the disk, and so for ever.
		short, stop := context.WithTimeout(ctx, busyPatience)
		defer stop()
		if d.locks.lock(short, key, nil) {
			return nil
		}
	}
	for trouble == nil && ctx.Err() == nil {
		if d.locks.lock(ctx, key, worse) {
			return nil
		}
		trouble, worse = d.disk.trouble()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.writeError(trouble)
}

// busyPatience is how long an operation waits for another one of the same key while the
// disk is full.
const busyPatience = 100 * time.Millisecond
