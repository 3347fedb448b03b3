package file

import (
	"context"
	"sync/atomic"
)

// saveBody writes a body to its file, and returns when it is flushed. A disk can hang, or
// have no room, so another goroutine does it. With an error, the caller has nothing more
// to do: when nothing is done for it any more, the file is removed and abandoned is
// called.
func (d *database) saveBody(ctx context.Context, at bodyFile, body []byte, abandoned func()) error {
	trouble, worse := d.disk.trouble()
	for slot := false; !slot; {
		if trouble != nil {
			abandoned()
			return d.writeError(trouble)
		}
		select {
		case d.bodies.slots <- struct{}{}:
			slot = true
		case <-ctx.Done():
			abandoned()
			return ctx.Err()
		case <-worse:
			trouble, worse = d.disk.trouble()
		}
	}
	var state atomic.Int32
	done := make(chan error, 1)
	d.bodies.working.Go(func() {
		err := d.bodies.write(at, body)
		if err != nil {
			d.bodies.remove(at)
		}
		<-d.bodies.slots
		if state.CompareAndSwap(waiting, begun) {
			done <- err
			return
		}
		d.bodies.remove(at)
		abandoned()
	})
	ended := func(err error) error {
		if err != nil {
			abandoned()
		}
		return d.writeError(err)
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

// unneeded are files of bodies that are removed when a change has been carried out, or
// when it certainly never will be.
type unneeded struct{ applied, notApplied []bodyFile }

// removedBefore returns a function that removes what is not needed any more, in the
// background, and then calls the given one, which unlocks the key: whatever is done with
// the key next may write a file of the same name.
func (u *unneeded) removedBefore(d *database, ended func(applied bool)) func(applied bool) {
	return func(applied bool) {
		files := u.notApplied
		if applied {
			files = u.applied
		}
		if len(files) == 0 {
			ended(applied)
			return
		}
		d.bodies.working.Go(func() {
			for _, at := range files {
				d.bodies.remove(at)
			}
			ended(applied)
		})
	}
}
