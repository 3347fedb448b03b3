package file

import (
	"errors"
	"time"

	"go.uber.org/zap"
)

const (
	// watchEvery is how often the directory is looked after, and probeEvery how often it
	// is tried, after a failure, whether its disk can be written to again.
	watchEvery = 3 * time.Second
	probeEvery = 500 * time.Millisecond
	// When a database is given up, what it had in memory stays there. So a disk that can
	// be written to and yet fails again and again is opened less and less often: after
	// leastPause, and twice as long each time up to mostPause. A database that has worked
	// for mostPause counts as sound.
	leastPause = 100 * time.Millisecond
	mostPause  = time.Minute
)

// watch looks after the directory until Close. It gives the database up if the directory
// is gone, and opens it anew after a failure.
func (s *Store) watch() {
	w := &watch{Store: s, pause: leastPause}
	for wait := watchEvery; ; {
		d := s.current()
		gone := d.disk.gone
		if w.failed {
			gone = nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.closing:
			timer.Stop()
			return
		case <-gone:
		case <-timer.C:
		}
		timer.Stop()
		wait = w.look(d)
	}
}

// watch is what is known of the failures of a store.
type watch struct {
	*Store
	failed bool
	said   string        // why it is not open, as it was logged last
	opened time.Time     // when it was opened after a failure
	pause  time.Duration // that has to pass after that
}

// look looks after the store once, and says when to do so again.
func (w *watch) look(d *database) time.Duration {
	if d.disk.failed() == nil {
		if err := w.place.check(); err != nil {
			d.disk.fail(err)
		} else {
			w.saveLogs(d)
		}
	}
	failure := d.disk.failed()
	if failure == nil {
		return watchEvery
	}
	if !w.failed {
		w.failed, w.said = true, failure.Error()
		w.logger.Error("the store failed: it is unavailable until its disk can be written to again", zap.String("path", w.path), reason(failure))
		if time.Since(w.opened) > mostPause {
			w.pause = leastPause
		}
	}
	if rest := w.pause - time.Since(w.opened); rest > 0 {
		return min(rest, probeEvery)
	}
	if err := w.place.check(); err != nil {
		w.tell(err)
		return probeEvery
	}
	if err := w.place.probe(); err != nil {
		if errors.Is(err, ErrNoSpace) {
			w.tell(err)
		}
		return probeEvery
	}
	w.opened, w.pause = time.Now(), min(2*w.pause, mostPause)
	if err := w.reopen(d); err != nil {
		w.tell(err)
		return probeEvery
	}
	w.failed = false
	w.logger.Info("the store is available again", zap.String("path", w.path))
	return watchEvery
}

// saveLogs has what is in a log that somebody has removed written to tables: while the store is
// open it is in memory, too, and at the next start it would be gone.
func (w *watch) saveLogs(d *database) {
	lost := d.disk.mark.lostLog(w.path, d.disk.FS)
	if lost == "" {
		return
	}
	if !d.saving.CompareAndSwap(false, true) {
		return
	}
	w.logger.Error("a log of the store was removed while it is open: what is in it is written anew; leave the files of the directory alone",
		zap.String("path", w.path), zap.String("file", lost))
	d.reading.Go(func() { // a full disk keeps it waiting
		defer d.saving.Store(false)
		if _, err := unlessGone(d.disk, func() (struct{}, error) { return struct{}{}, d.db.Flush() }); err != nil {
			d.disk.fail(err)
		}
	})
}

// tell logs why the store does not open again, once.
func (w *watch) tell(err error) {
	if err.Error() != w.said {
		w.said = err.Error()
		w.logger.Error("the store does not open again", zap.String("path", w.path), reason(err))
	}
}

func (s *Store) current() *database {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.database
}

// reopen puts a new database in the place of one that was given up. It does not wait for those
// who still use the old one: the sweeper has no time limit, and what it reads from a disk that
// fails may never come.
func (s *Store) reopen(old *database) error {
	old.giveUp()
	if old.using.TryLock() {
		old.using.Unlock()
		old.release() // who uses it from now on is told that it failed
	}
	next, err := s.openDatabase()
	if err != nil {
		return err
	}
	next.disk.guard(s.place.check)
	next.run()
	s.replace(next)
	go func() {
		old.awaitUnused()
		old.release()
	}()
	if old.db == nil {
		_ = old.close() // it has nothing to lose
	}
	return nil
}
