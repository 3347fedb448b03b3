package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// onKey changes a key in all stores in which it is as the operator has seen it.
func (a *API) onKey(w http.ResponseWriter, r *http.Request, key idempotency.Key,
	do func(Store, context.Context, idempotency.Key, idempotency.Precondition) error) error {
	seen, err := seenIn(r)
	if err != nil {
		return err
	}
	open, err := a.enter()
	if err != nil {
		return err
	}
	defer LeaveAll(open)
	ctx := engine.ByOperator(r.Context(), OperatorOf(r))
	done, err := Act(r.Context(), open, key, seen, a.MaxRun(), func(store Store) error { return do(store, ctx, key, seen) })
	if done {
		w.Header().Set(CopiesHeader, engine.CopyBound.String())
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// OperatorOf identifies the sender of a request by its address and its verified client certificate.
func OperatorOf(r *http.Request) engine.Operator {
	by := engine.Operator{Remote: r.RemoteAddr}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		by.Remote = "unix socket " + local.String() // the other end of a socket has no address
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		by.User = r.TLS.VerifiedChains[0][0].Subject.String()
	}
	return by
}

// Act calls do for each store, and reports whether one succeeded. The error is a [Problem]: no store has a
// record of the key, or do failed for one that has, or may have, what the operator has seen. maxRun is
// the longest timeout of a handler.
func Act(ctx context.Context, open []Store, key idempotency.Key, seen idempotency.Precondition, maxRun time.Duration, do func(Store) error) (done bool, err error) {
	all := inStores(open, func(store Store) error {
		err := do(store)
		if errors.Is(err, idempotency.ErrInFlight) {
			if record, now, failed := store.Lookup(ctx, key); failed == nil && record != nil {
				err = fmt.Errorf("%w. %s", err, RunEnds(record.Claimed, maxRun, now))
			}
		}
		return err
	})
	return slices.ContainsFunc(all, func(o Outcome) bool { return o.Done }), problemIn(all, key, seen)
}

// RunEnds describes when a run in flight ends, and how to end it earlier.
func RunEnds(claimed time.Time, maxRun time.Duration, now time.Time) string {
	text := "It ends when the service answers"
	if by := claimed.Add(maxRun); by.After(now) {
		text += ", at the latest at " + by.UTC().Format(time.RFC3339) + " (timeout)"
	}
	return text + ". To end it now, restart the service"
}

// LookUp returns the records that a key has in the stores, including unreadable ones. The error is a
// [Problem]: no store has a record, or one could not be asked.
func LookUp(ctx context.Context, open []Store, key idempotency.Key) (found []*Found, err error) {
	all := inStores(open, func(store Store) error {
		record, now, err := store.Lookup(ctx, key)
		if unreadable, ok := errors.AsType[*idempotency.UnreadableError](err); ok {
			found = append(found, foundIn(store, cursorName(store), idempotency.Listed{Key: key, Unreadable: unreadable, Now: time.Now()}))
			return nil
		}
		if err == nil && record == nil {
			err = idempotency.ErrGone
		}
		if err == nil {
			found = append(found, foundIn(store, cursorName(store), idempotency.Listed{Key: key, Record: record, Now: now}))
		}
		return err
	})
	return found, problemIn(all, key, idempotency.Precondition{})
}

// Outcome is what a release, a completion or a DELETE did in one store.
type Outcome struct {
	Store string `json:"store"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`

	err error
}

// inStores calls do for each store, and returns the outcomes in all but those without a record.
func inStores(open []Store, do func(Store) error) (all []Outcome) {
	for _, store := range open {
		switch err := do(store); {
		case err == nil:
			all = append(all, Outcome{Store: store.Name(), Done: true})
		case !errors.Is(err, idempotency.ErrGone):
			all = append(all, Outcome{Store: store.Name(), Error: err.Error(), err: err})
		}
	}
	return all
}

// reasons are why a store did nothing, the most important for an operator first.
var reasons = []struct {
	Problem
	is func(error) bool
}{
	{kindOf(http.StatusConflict), func(err error) bool { return errors.Is(err, idempotency.ErrInFlight) }},
	{Problem{Title: "The key is complete", Status: http.StatusConflict, Code: ReasonComplete}, func(err error) bool { return errors.Is(err, idempotency.ErrComplete) }},
	{kindOf(http.StatusInternalServerError), is[*idempotency.UnreadableError]},
	{Problem{Title: "A store refuses writes", Status: http.StatusServiceUnavailable, Code: engine.ReasonUnavailable}, is[*idempotency.RefusedError]},
	{kindOf(http.StatusServiceUnavailable), func(err error) bool { return !is[idempotency.ChangedError](err) }},
	{Problem{Title: "The key has changed", Status: http.StatusConflict, Code: ReasonChanged}, is[idempotency.ChangedError]},
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// problemIn returns the problem with these outcomes, nil for none.
func problemIn(all []Outcome, key idempotency.Key, seen idempotency.Precondition) error {
	if len(all) == 0 {
		return problemOf(http.StatusNotFound, fmt.Errorf("no store has a record of the key %s", key))
	}
	done := slices.ContainsFunc(all, func(o Outcome) bool { return o.Done })
	failed := slices.DeleteFunc(slices.Clone(all), func(o Outcome) bool {
		// No two stores have the same run, and a key in another state was not meant.
		meant := seen.ExecutionID == "" && (seen.State == "" || !is[idempotency.ChangedError](o.err) && !errors.Is(o.err, idempotency.ErrInFlight))
		return o.Done || done && !meant
	})
	for _, reason := range reasons {
		if slices.ContainsFunc(failed, func(o Outcome) bool { return reason.is(o.err) }) {
			return explain(reason.Problem, all)
		}
	}
	return nil
}

// explain returns the problem with what each store has answered.
func explain(p Problem, all []Outcome) error {
	var details []string
	for _, o := range all {
		text := o.Error
		if o.Done {
			text = "done"
		}
		if len(all) > 1 || p.Status == http.StatusServiceUnavailable {
			text = quotedName(o.Store) + ": " + text
		}
		details = append(details, text)
	}
	if len(all) > 1 {
		p.Outcomes = all
	}
	p.Detail = strings.Join(details, "; ")
	return &p
}

// quotedName returns the name of a store as it can stand before a colon. That of a Redis ends with its
// prefix, and so usually with a colon.
func quotedName(store string) string {
	if !strings.HasSuffix(store, ":") {
		return store
	}
	last := strings.LastIndex(store, " ") + 1
	return store[:last] + strconv.Quote(store[last:])
}
