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

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// onKey does something about a key in all stores that have it, as the operator has seen it.
func (a *API) onKey(w http.ResponseWriter, r *http.Request, key idempotency.Key,
	do func(Store, context.Context, idempotency.Key, idempotency.Precondition) error) error {
	seen, err := seenIn(r)
	if err != nil {
		return err
	}
	ctx := engine.ByOperator(r.Context(), a.operator(r))
	done := false
	err = a.inStores(key, seen, func(store Store) error {
		err := do(store, ctx, key, seen)
		done = done || err == nil
		return err
	})
	if done {
		w.Header().Set(CopiesHeader, engine.CopyBound.String())
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// operator says who asks.
func (a *API) operator(r *http.Request) engine.Operator {
	who := engine.Operator{Remote: r.RemoteAddr}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		who.Remote = "unix socket " + local.String() // the other end of a socket has no address
	}
	if a.User != nil {
		who.User = a.User(r)
	}
	if who.User == "" && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who.User = r.TLS.PeerCertificates[0].Subject.String()
	}
	return who
}

// inStores does something in each of the stores that are open, and leaves them. The error
// is a problem: no store has the key, or it was not done in one that has the key, or may
// have it, as the operator has seen it.
func (a *API) inStores(key idempotency.Key, seen idempotency.Precondition, do func(Store) error) error {
	open, err := a.enter()
	if err != nil {
		return err
	}
	defer leaveAll(open)
	var all outcomes
	for _, store := range open {
		if err := do(store); !errors.Is(err, idempotency.ErrGone) {
			all = append(all, outcome{store.Name(), err})
		}
	}
	return all.problem(key, seen)
}

// outcome is what a request came to in one of the stores.
type outcome struct {
	store string
	err   error
}

type outcomes []outcome

// Outcome is an outcome as a response shows it.
type Outcome struct {
	Store string `json:"store"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

// reasons are those for which nothing was done, by what an operator has to know first.
var reasons = []struct {
	Problem
	is func(error) bool
}{
	{kindOf(http.StatusConflict), isInFlight},
	{Problem{Title: "The key is complete", Status: http.StatusConflict, Code: ReasonComplete}, isComplete},
	{kindOf(http.StatusInternalServerError), isUnreadable},
	{kindOf(http.StatusServiceUnavailable), func(err error) bool { return !isChanged(err) }},
	{Problem{Title: "The key has changed", Status: http.StatusConflict, Code: ReasonChanged}, isChanged},
}

func isInFlight(err error) bool { return errors.Is(err, idempotency.ErrInFlight) }

func isComplete(err error) bool { return errors.Is(err, idempotency.ErrComplete) }

func isUnreadable(err error) bool {
	_, is := errors.AsType[*idempotency.UnreadableError](err)
	return is
}

func isChanged(err error) bool {
	_, is := errors.AsType[idempotency.ChangedError](err)
	return is
}

// problem says what was not done, and why; nil for nothing.
func (all outcomes) problem(key idempotency.Key, seen idempotency.Precondition) error {
	if len(all) == 0 {
		return problemOf(http.StatusNotFound, fmt.Errorf("no store has a record of the key %s", key))
	}
	done := slices.ContainsFunc(all, func(o outcome) bool { return o.err == nil })
	failed := func(o outcome) bool {
		switch {
		case o.err == nil:
			return false
		case !done:
			return true
		case seen.ExecutionID != "": // no two stores have the same run
			return false
		default: // what is not as it was seen was not meant
			return seen.State == "" || !isChanged(o.err) && !isInFlight(o.err)
		}
	}
	for _, reason := range reasons {
		if slices.ContainsFunc(all, func(o outcome) bool { return failed(o) && reason.is(o.err) }) {
			return all.explain(reason.Problem)
		}
	}
	return nil
}

// explain is the problem with what all stores said.
func (all outcomes) explain(p Problem) error {
	var said []string
	for _, o := range all {
		shown := Outcome{Store: o.store, Done: o.err == nil}
		text := "done"
		if o.err != nil {
			shown.Error, text = o.err.Error(), o.err.Error()
		}
		if len(all) > 1 {
			p.Outcomes = append(p.Outcomes, shown)
		}
		if len(all) > 1 || p.Status == http.StatusServiceUnavailable {
			text = nameOf(o.store) + ": " + text
		}
		said = append(said, text)
	}
	p.Detail = strings.Join(said, "; ")
	return &p
}

// nameOf is the name of a store before a colon. That of a Redis ends with its prefix, which
// mostly ends with a colon.
func nameOf(store string) string {
	if !strings.HasSuffix(store, ":") {
		return store
	}
	last := strings.LastIndex(store, " ") + 1
	return store[:last] + strconv.Quote(store[last:])
}
