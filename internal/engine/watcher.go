package engine

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The watcher of a run polls the store on a wake-up, when the lease should have lapsed, and at an
// interval, because a wake-up may be lost. It also polls when requests have started to wait since
// the last poll started: one poll for all that arrived during the one before, and never two at a
// time.
const (
	minWatchInterval = 500 * time.Millisecond
	maxWatchInterval = time.Second
)

// watch watches a run of another replica for all requests of this process that wait for it. It ends
// their flight when the run has ended or its lease has lapsed.
func (f *flight) watch(e *Engine, run *idempotency.Record, now time.Time) {
	timer := time.NewTimer(watchInterval(run, now))
	defer timer.Stop()
	for {
		seen, changed := f.view()
		if seen.state != running {
			return // the flight is over, or no request waits for the run
		}
		select {
		case <-changed:
			continue
		case <-f.woken:
		case <-timer.C:
		case <-e.ctx.Done():
			f.end(closed, idempotency.Claimed{}, idempotency.ErrClosed)
			return
		}
		seq, read := f.startPoll(), e.copies.snapshot()
		found, ended, err := e.pollRun(f.key, run)
		var unreadable *idempotency.UnreadableError
		switch {
		case errors.As(err, &unreadable):
			f.end(closed, idempotency.Claimed{}, err)
			return
		case err != nil:
			// Go on: the store may recover. Each request stops waiting at its own limit.
			e.log.Warn("a run on another replica could not be looked up",
				e.keyFields(f.key, run.Origin, run.SealedBy),
				zap.String("execution_id", run.ExecutionID), zap.Error(err))
			timer.Reset(maxWatchInterval)
		case ended:
			e.copies.keepFound(f.key, read, found)
			f.end(closed, found, nil)
			return
		default:
			f.setLastInFlight(seq)
			timer.Reset(watchInterval(found.Record, found.Now))
		}
	}
}

func watchInterval(run *idempotency.Record, now time.Time) time.Duration {
	lapses := run.LeaseUntil.Sub(now) + time.Millisecond
	return min(max(lapses, minWatchInterval), maxWatchInterval)
}

// pollRun reports whether a run of another replica has ended, and what the store has of it. If the
// run is still in flight, found is its record with its present lease.
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
	// The store keeps the response under the token of the run, even if the key was released
	// and claimed again since.
	if found.Response, err = e.response(context.Background(), key, run.Token); err != nil {
		return idempotency.Claimed{}, false, err
	}
	if found.Response == nil {
		// The store has nothing of this run. The requests must ask it again.
		return idempotency.Claimed{}, true, nil
	}
	if !isThisRun {
		found.Record = run
	}
	return found, true, nil
}

// wake is called by the store when a run that this process watches may have ended, or when the
// local copy of a key may be outdated.
func (e *Engine) wake(key idempotency.Key) {
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	f := e.flights.byKey[key]
	if f == nil || f.state < storing { // else the wake-up is for our own settlement
		e.copies.invalidate(key)
	}
	if f != nil && (f.state == asking || f.watched()) {
		f.hintLocked()
	}
}

// hintLocked makes watch poll the store.
func (f *flight) hintLocked() {
	if f.woken == nil {
		f.woken = make(chan struct{}, 1)
	}
	select {
	case f.woken <- struct{}{}:
	default: // watch has not read the last hint yet
	}
}

// startPoll returns the number of a poll that starts now.
func (f *flight) startPoll() int {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.pollSeq++
	return f.pollSeq
}

// setLastInFlight records that a poll has found the run in flight: all requests that joined before
// that poll started joined before the run ended.
func (f *flight) setLastInFlight(seq int) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.lastPollInFlight = seq
}
