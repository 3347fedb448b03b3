package file

import (
	"context"
	"sync/atomic"
)

// commitWithBody writes a body to its segment, and then carries out the change that makes it
// count. A disk can hang, or have no room, so another goroutine writes the body. If the
// caller gives up meanwhile, that goroutine goes on to the end, as the writer does with
// what it has begun: a body that takes longer than a caller waits would else be written
// again and again, and never be kept.
func (d *database) commitWithBody(ctx context.Context, body *newBody, op *operation) error {
	trouble, worse := d.disk.trouble()
	for turn := false; !turn; {
		if trouble != nil {
			op.end(false)
			return d.writeError(trouble)
		}
		select {
		case d.bodies.turns <- struct{}{}:
			turn = true
		case <-ctx.Done():
			op.end(false)
			return ctx.Err()
		case <-worse:
			trouble, worse = d.disk.trouble()
		}
	}
	var state atomic.Int32
	done := make(chan error, 1)
	d.bodies.writing.Go(func() {
		err := d.bodies.write(body)
		<-d.bodies.turns
		switch {
		case state.CompareAndSwap(waiting, begun):
			done <- err
		case err != nil:
			op.end(false)
		default:
			_, _ = d.commit(context.Background(), op) // who wants to know asks again
		}
	})
	ended := func(err error) error {
		if err != nil {
			op.end(false)
			return d.writeError(err)
		}
		_, err = d.commit(ctx, op)
		return err
	}
	for {
		var reason error
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
			reason = ctx.Err()
		case <-worse:
			if trouble, worse = d.disk.trouble(); trouble == nil {
				continue
			}
			reason = d.writeError(trouble)
		}
		if state.CompareAndSwap(waiting, givenUp) {
			return reason
		}
		return ended(<-done) // just now
	}
}

// unneeded are bodies that are removed when a change has been carried out, or when it
// certainly never will be.
type unneeded struct{ applied, notApplied []bodyPlace }

// removedBefore returns a function that removes what is not needed any more, in the
// background, and then calls the given one, which unlocks the key: whoever has it next finds
// none of that.
func (u *unneeded) removedBefore(d *database, ended func(applied bool)) func(applied bool) {
	return func(applied bool) {
		places := u.notApplied
		if applied {
			places = u.applied
		}
		if len(places) == 0 {
			ended(applied)
			return
		}
		d.bodies.removing.Go(func() {
			for _, at := range places {
				d.bodies.remove(at)
			}
			ended(applied)
		})
	}
}
