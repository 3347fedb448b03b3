package engine

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// For a watched run, the store is asked when it wakes us, when the lease should have
// lapsed, and from time to time, because a wake-up may be lost. It is also asked when
// requests have begun to wait since the latest look began: one look for all who came
// during the one before, and never two at a time.
const (
	minWatchInterval = 500 * time.Millisecond
	maxWatchInterval = time.Second
)

// watch watches a run of another replica, for all requests of this process that wait
// for it. It ends their flight when the run has ended or its lease has lapsed.
func (f *flight) watch(e *Engine, run *idempotency.Record, now time.Time) {
	timer := time.NewTimer(watchInterval(run, now))
	defer timer.Stop()
	for {
		seen, changed := f.view()
		if seen.state != running {
			return // the flight has ended, or no request waits for the run any more
		}
		select {
		case <-changed:
			continue
		case <-f.woken:
		case <-timer.C:
		case <-e.ctx.Done():
			f.end(runOver, idempotency.Claimed{}, idempotency.ErrClosed)
			return
		}
		number, read := f.startPoll(), e.copies.snapshot()
		found, ended, err := e.pollRun(f.key, run)
		var unreadable *idempotency.UnreadableError
		switch {
		case errors.As(err, &unreadable):
			f.end(runOver, idempotency.Claimed{}, err)
			return
		case err != nil:
			// Go on: the store may come back. Each request gives up when its own
			// Wait is over.
			e.log.Warn("a run on another replica could not be looked up",
				e.keyFields(f.key, run.Origin, run.SealedBy),
				zap.String("execution_id", run.ExecutionID), zap.Error(err))
			timer.Reset(maxWatchInterval)
		case ended:
			e.copies.keepFound(f.key, read, found)
			f.end(runOver, found, nil)
			return
		default:
			f.setLastInFlight(number)
			timer.Reset(watchInterval(found.Record, found.Now))
		}
	}
}

func watchInterval(run *idempotency.Record, now time.Time) time.Duration {
	lapses := run.LeaseUntil.Sub(now) + time.Millisecond
	return min(max(lapses, minWatchInterval), maxWatchInterval)
}

// pollRun reports whether a run of another replica has ended, and how. If the run is
// still in flight, found is its record with the lease as it is now.
func (e *Engine) pollRun(key idempotency.Key, run *idempotency.Record) (found idempotency.Claimed, ended bool, err error) {
	record, now, err := e.lookup(context.Background(), key)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	found = idempotency.Claimed{Record: record, Now: now}
	isThisRun := record != nil && record.Token == run.Token
	switch {
	case isThisRun && record.State == idempotency.InFlight && !record.Lapsed(now):
		return found, false, nil
	case isThisRun && (record.State == idempotency.InFlight || record.State == idempotency.Held || record.LargeBody > 0):
		return found, true, nil
	}
	// The answer of the run is kept under its token, whatever has happened to the key
	// since: even if the key was released and claimed again.
	if found.Response, err = e.response(context.Background(), key, run.Token); err != nil {
		return idempotency.Claimed{}, false, err
	}
	if found.Response == nil {
		// Nothing is known of the run that we waited for. The requests must ask the
		// store again.
		return idempotency.Claimed{}, true, nil
	}
	if !isThisRun {
		found.Record = run
	}
	return found, true, nil
}

// wake is called by the store when a run may have ended for which this process waits, or
// when the key is no longer what a local copy says.
func (e *Engine) wake(key idempotency.Key) {
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	f := e.flights.byKey[key]
	if f == nil || !f.storing { // else the store reports the end of our own run
		e.copies.invalidate(key)
	}
	if f != nil && (f.state == asking || f.watched) {
		f.hintLocked()
	}
}

// hintLocked makes watch look at the store soon.
func (f *flight) hintLocked() {
	if f.woken == nil {
		f.woken = make(chan struct{}, 1)
	}
	select {
	case f.woken <- struct{}{}:
	default: // there is a hint already that watch has not read yet
	}
}

// startPoll returns the number of a look at the store that begins now.
func (f *flight) startPoll() int {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.pollSeq++
	return f.pollSeq
}

// setLastInFlight notes that a look has seen the run in flight: all who joined before the
// look began have come before the run's end.
func (f *flight) setLastInFlight(number int) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.lastPollInFlight = number
}
