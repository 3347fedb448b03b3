package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// scanTimeout is how long a view of the page reads records, plus one call of the store.
	scanTimeout = 3 * time.Second
	// findTimeout bounds the search for a delivery ID: a Redis of a million keys takes a second.
	findTimeout = 10 * time.Second
)

// since is when a record got into its state.
func since(r *idempotency.Record) time.Time {
	for _, at := range []time.Time{r.Ended, r.LeaseUntil} {
		if !at.IsZero() {
			return at
		}
	}
	return r.Claimed
}

func latest(a, b *admin.Found) int {
	return cmp.Or(since(b.Record).Compare(since(a.Record)), admin.ByKey(a, b))
}

// isOld reports whether a record got into its state more than an hour ago. Of an unreadable one that is
// unknown, and its requests are refused now.
func isOld(f *admin.Found) bool {
	return f.State != admin.StateUnreadable && f.Now.Sub(since(f.Record)) > time.Hour
}

// alertGroup is an alert of the last hour, or of before.
type alertGroup struct {
	alert
	old bool
}

// scan is what one pass over the records of all stores found: the list, and the records that
// need attention.
type scan struct {
	admin.Search
	alerts map[alertGroup]*admin.Top
	ready  []admin.Readiness // of the stores that a configuration uses
}

// scanStores reads the records of all stores. inList reports whether a record with this alert
// belongs to the list, which begins behind another record, or with nil at its beginning.
func scanStores(ctx context.Context, open []admin.Store, after *admin.Found, inList func(*admin.Found, alert) bool) *scan {
	s := &scan{alerts: make(map[alertGroup]*admin.Top)}
	for _, a := range alerts {
		for _, old := range []bool{false, true} {
			s.alerts[alertGroup{a, old}] = &admin.Top{Max: maxAlerts, Compare: latest}
		}
	}
	s.Search = admin.Search{Max: maxRows, After: after, Timeout: scanTimeout, Wants: func(f *admin.Found) bool {
		a := alertFor(f)
		if a != "" {
			s.alerts[alertGroup{a, isOld(f)}].Add(f)
		}
		return inList(f, a)
	}}
	var ready sync.WaitGroup
	ready.Go(func() {
		s.ready = admin.Ready(ctx, slices.DeleteFunc(slices.Clone(open), func(store admin.Store) bool { return !store.InUse() }))
	})
	s.Run(ctx, open)
	ready.Wait()
	return s
}

// faults returns what is wrong with the stores now, each with its reason once.
func (s *scan) faults() (all []fault) {
	failed := make(map[string]bool)
	add := func(store, title, reason string) {
		failed[store] = true
		if reason = plain(strings.TrimSuffix(reason, ".")); len(s.ready) > 1 || len(s.Failed) > 1 {
			reason = plain(store) + ": " + reason // that of a single store says where it is
		}
		all = append(all, fault{title, reason})
	}
	for _, store := range s.ready {
		switch {
		case !store.Ready:
			add(store.Store, "The store is not ready.", store.Error)
		case store.Writes != "":
			add(store.Store, "The store refuses writes.", store.Writes)
		}
	}
	for _, store := range s.Failed {
		if !failed[store.Store] {
			add(store.Store, "The store could not be read.", store.Error)
		}
	}
	return all
}

// sawAll reports whether each store was ready and could be read, as a store can that refuses writes.
func (s *scan) sawAll() bool {
	return len(s.Failed) == 0 && !slices.ContainsFunc(s.ready, func(store admin.Readiness) bool { return !store.Ready })
}

// fault is what is wrong with a store.
type fault struct{ Title, Reason string }

// notFound reports whether the problem is that no store has the key.
func notFound(err error) bool {
	problem, ok := errors.AsType[*admin.Problem](err)
	return ok && problem.Status == http.StatusNotFound
}
