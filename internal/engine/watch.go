package engine

import (
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// A watched run is asked for when the store wakes us, when its lease should
// have lapsed, and from time to time, because a wake-up may be lost.
const (
	watchAtLeast = 500 * time.Millisecond
	watchAtMost  = time.Second
)

// watch follows a run of another replica for all requests of this process that
// wait for it, and ends their flight when the run has ended or lapsed.
func (e *Engine) watch(f *flight, now time.Time) {
	if !e.watching(f) {
		return
	}
	run := f.run
	timer := time.NewTimer(watchInterval(run, now))
	defer timer.Stop()
	for {
		select {
		case <-f.woken:
		case <-timer.C:
		case <-f.deserted:
			return
		case <-e.ctx.Done():
			e.finish(f, outcome{err: idempotency.ErrClosed})
			return
		}
		o, ended, err := e.look(f)
		var unreadable *idempotency.UnreadableError
		switch {
		case errors.As(err, &unreadable):
			e.finish(f, outcome{err: err})
			return
		case err != nil:
			// The waiters' own limits end this; the store may come back.
			e.log.Warn("a run on another replica could not be looked up",
				zap.Stringer("key", f.key), zap.String("execution_id", f.run.ExecutionID), zap.Error(err))
			timer.Reset(watchAtMost)
		case ended:
			e.finish(f, o)
			return
		default:
			timer.Reset(watchInterval(o.record, o.now))
		}
	}
}

// watching marks a flight as watched, unless everyone has left it already.
func (e *Engine) watching(f *flight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	f.watched = true
	if f.members == 0 && !f.over {
		f.over = true
		e.removeLocked(f)
	}
	return !f.over
}

// look reports whether a run of another replica has ended, and with what. A run
// that is in flight comes back with its lease as it is now.
func (e *Engine) look(f *flight) (o outcome, ended bool, err error) {
	ctx, cancel := e.operation()
	defer cancel()
	key, run, store := f.key, f.run, idempotency.Sealed(e.store, f.sealer)
	record, now, err := store.Lookup(ctx, key)
	if err != nil {
		return outcome{}, false, err
	}
	o = outcome{record: record, now: now}
	if record != nil && record.Token == run.Token && record.State == idempotency.InFlight && !record.Lapsed(now) {
		return o, false, nil
	}
	if record != nil && record.Token == run.Token && (record.State == idempotency.InFlight || record.State == idempotency.Held) {
		return o, true, nil
	}
	// The run's answer is kept under its token whatever happened to the key
	// since: released and claimed again, or even forgotten.
	if o.response, err = store.Response(ctx, key, run.Token); err != nil {
		return outcome{}, false, err
	}
	if o.response != nil {
		o.record = run
		if record != nil && record.Token == run.Token {
			o.record = record
		}
		return o, true, nil
	}
	// Nothing is known of the run that we waited for: ask for the key again.
	return outcome{}, true, nil
}

// wake is called by the store: a run that somebody here waits for has ended.
func (e *Engine) wake(key idempotency.Key) {
	e.mu.Lock()
	f := e.flights[key]
	e.mu.Unlock()
	if f == nil {
		return
	}
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

func watchInterval(run *idempotency.Record, now time.Time) time.Duration {
	lapses := run.LeaseUntil.Sub(now) + time.Millisecond
	return min(max(lapses, watchAtLeast), watchAtMost)
}
