package dashboard

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// maxRows is how many records the list has, and maxAlerts how many records of each alert
	// are shown above it.
	maxRows   = 100
	maxAlerts = 5
	// anyAlert is the filter for all records with an alert.
	anyAlert = "attention"
)

// view is what the templates show.
type view struct {
	address
	now    time.Time
	status int

	Problem string   // why something is not shown, or was not done
	Notice  string   // what was done
	NoStore bool     // none is open
	Failed  []string // the stores that could not be read, and why

	Alerts     []alertView
	Chart      chart
	States     []option // of the filter
	Rows       []row
	Count      string // of the records in the list
	Newest     string // how many of them are shown, "" for all
	Read       string // how many records were read
	Incomplete string // the stores that have more
	Updated    *when

	Delivery *delivery
	Confirm  *confirm
}

// option is a choice of a filter.
type option struct {
	Name, Title string
	Chosen      bool
}

// alertView are the records with one alert.
type alertView struct {
	State               state
	Count, Advice, Link string
	Rows                []row
}

// row is a record in a list.
type row struct {
	ID, Provider, Link string
	State              state
	Attempt, Status    int
	Claimed, Since     *when
	Chosen             bool
}

func (v *view) problem(status int, why string) { v.status, v.Problem = status, why }

// view reads what a request asks for from the stores.
func (p *Page) view(r *http.Request) *view {
	open := p.Open()
	defer leave(open)
	v := &view{address: addressOf(r.URL.Query()), now: time.Now(), status: http.StatusOK, NoStore: len(open) == 0}
	if v.tooLong() {
		v.address = address{}
		v.problem(http.StatusBadRequest, "The text is too long for the page. Search for it with caddy-dedup keys show.")
	}
	v.Chart = p.History.chart(v.now)
	found := v.search(r.Context(), open)
	s := scanStores(r.Context(), open, v.inList)
	if v.Q != "" && found.count > 0 {
		s.list = *found
	}
	v.show(s)
	p.showDelivery(r, open, v)
	return v
}

// search looks for what is in the search field: a key, or a delivery ID, as it is or without
// the spaces around it. If the result is a single delivery, it is opened. Execution IDs are
// left to the scan.
func (v *view) search(ctx context.Context, open []admin.Store) (found *top) {
	found = new(top)
	if v.Q == "" {
		return found
	}
	trimmed := strings.TrimSpace(v.Q)
	key, err := idempotency.ParseKey(trimmed)
	isKey := err == nil
	if isKey {
		if e, _, err := lookUp(ctx, open, key, false); e != nil || err != nil {
			v.Key = key.String()
			return found
		}
	}
	for _, text := range slices.Compact([]string{v.Q, trimmed}) {
		if found, err = find(ctx, open, text); err != nil {
			v.problem(http.StatusServiceUnavailable, "The search is incomplete: "+plain(err.Error()))
		}
		if found.count > 0 {
			break
		}
	}
	switch {
	case found.count == 1:
		v.Key = found.entries[0].key.String()
	case found.count == 0 && isKey:
		v.Key = key.String() // there is no record of it
	}
	return found
}

// inList reports whether the list has a record.
func (v *view) inList(e *entry) bool {
	if v.Q != "" {
		q := strings.TrimSpace(v.Q)
		return q != "" && (q == e.record.ExecutionID || q == e.record.ParentID)
	}
	return (v.State == "" || v.State == e.state || v.State == string(e.alert) || v.State == anyAlert && e.alert != "") &&
		(v.Provider == "" || v.Provider == e.record.Provider)
}

// show shows what a scan found.
func (v *view) show(s *scan) {
	for _, why := range s.failed {
		v.Failed = append(v.Failed, plain(why))
	}
	v.Updated, v.Read, v.Incomplete = whenOf(v.now, v.now), grouped(s.read), plain(strings.Join(s.incomplete, ", "))
	if v.Count = grouped(s.list.count); s.list.count > len(s.list.entries) {
		v.Newest = grouped(len(s.list.entries))
	}
	if v.Q != "" && s.list.count == 1 && v.Key == "" {
		v.Key = s.list.entries[0].key.String()
	}
	for _, e := range s.list.entries {
		v.Rows = append(v.Rows, v.rowOf(e))
	}
	for _, a := range alerts {
		top := s.alerts[a]
		if top.count == 0 {
			continue
		}
		shown := alertView{
			State: stateNamed(string(a)), Count: grouped(top.count), Advice: advice[a],
			Link: v.With("state", string(a), "key", "", "q", ""),
		}
		for _, e := range top.entries {
			shown.Rows = append(shown.Rows, v.rowOf(e))
		}
		v.Alerts = append(v.Alerts, shown)
	}
	v.States = []option{{Title: "all states"}, {Name: anyAlert, Title: "needs attention"}}
	for _, name := range append([]string{string(alertFailing), string(alertFailureKept)}, admin.States...) {
		v.States = append(v.States, option{Name: name, Title: stateNamed(name).Word})
	}
	chosen := slices.IndexFunc(v.States, func(o option) bool { return o.Name == v.State })
	if chosen < 0 {
		v.problem(http.StatusBadRequest, "The state is unknown. Choose one of the list.")
		return
	}
	v.States[chosen].Chosen = true
}

func (v *view) rowOf(e *entry) row {
	return row{
		ID: nameOf(e), Provider: plain(e.record.Provider), Link: v.With("key", e.key.String()) + "#delivery",
		State: stateOf(e), Attempt: e.record.Attempt, Status: e.record.Status,
		Claimed: whenOf(e.record.Claimed, v.now), Since: whenOf(e.since(), v.now), Chosen: e.key.String() == v.Key,
	}
}

// nameOf is what a delivery is called: its ID, or its key if it has none.
func nameOf(e *entry) string {
	if e.record.DeliveryID == "" {
		return "key " + e.key.String()[:16] + "…"
	}
	return plain(e.record.DeliveryID)
}

// Title is the title of the document.
func (v *view) Title() string {
	if v.Delivery != nil {
		return v.Delivery.State.Word + " " + v.Delivery.ID
	}
	return "Deliveries"
}

// state is a state as the page shows it: by a shape and a word, not by a colour alone.
type state struct{ Name, Word string }

func stateNamed(name string) state { return state{name, strings.ReplaceAll(name, "_", " ")} }

// stateOf is the state of a record, or its alert.
func stateOf(e *entry) state {
	if e.alert != "" {
		return stateNamed(string(e.alert))
	}
	return stateNamed(e.state)
}
