package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
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

func oldest(a, b *admin.Found) int {
	return cmp.Or(since(a.Record).Compare(since(b.Record)), admin.ByKey(a, b))
}

// scan is what one pass over the records of all stores found: the list, and the records that
// need attention.
type scan struct {
	admin.Search
	alerts map[alert]*admin.Top
}

// scanStores reads the records of all stores. inList reports whether a record with this alert
// belongs to the list, which begins behind another record, or with nil at its beginning.
func scanStores(ctx context.Context, open []admin.Store, after *admin.Found, inList func(*admin.Found, alert) bool) *scan {
	s := &scan{alerts: make(map[alert]*admin.Top)}
	for _, a := range alerts {
		s.alerts[a] = &admin.Top{Max: maxAlerts, Compare: oldest}
	}
	s.Search = admin.Search{Max: maxRows, After: after, Timeout: scanTimeout, Wants: func(f *admin.Found) bool {
		a := alertFor(f)
		if a != "" {
			s.alerts[a].Add(f)
		}
		return inList(f, a)
	}}
	s.Run(ctx, open)
	return s
}

// find returns the records of a delivery ID, behind a record if one is given.
func find(ctx context.Context, open []admin.Store, text string, after *admin.Found) *admin.Search {
	s := &admin.Search{IDs: []string{text}, Max: maxRows, After: after, Timeout: findTimeout, Wants: func(*admin.Found) bool { return true }}
	s.Run(ctx, open)
	return s
}

func failure(store, why string) string {
	return plain(fmt.Sprintf("%s: %s", store, strings.TrimSuffix(why, ".")))
}

// notFound reports whether the problem is that no store has the key.
func notFound(err error) bool {
	problem, ok := errors.AsType[*admin.Problem](err)
	return ok && problem.Status == http.StatusNotFound
}
