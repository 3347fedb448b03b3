package dashboard

import (
	"context"
	"fmt"
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
	now     time.Time
	status  int
	limited bool // a handler has max_attempts
	maxRun  time.Duration

	Place   string  // which installation it is: a text of the configuration, the host, the namespace
	Problem string  // why something is not shown, or was not done
	Notice  string  // what was done
	NoStore bool    // none is open
	Faults  []fault // what is wrong with the stores now
	Unread  bool    // not all records were read

	Alerts     []alertView // of the last hour
	Older      []alertView
	Chart      chart
	States     []option // of the filter
	Rows       []row
	Count      string // of the records in the list
	Shown      string // how many of them are shown, "" for all
	Next       string // where the others are, "" for nowhere
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
	ID, Provider, Link   string
	Parts, Route, Reason string
	Observed             bool // its request was only observed
	State                state
	Attempt, Status      int
	Claimed, Since       *when
	Chosen               bool
}

func (v *view) problem(status int, why string) { v.status, v.Problem = status, why }

// view reads what a request asks for from the stores.
func (p *Page) view(r *http.Request) *view {
	open := p.Open()
	defer admin.LeaveAll(open)
	v := &view{address: addressOf(r.URL.Query()), now: time.Now(), status: http.StatusOK, limited: p.LimitsAttempts(), maxRun: p.MaxRun(), Place: p.place(r), NoStore: len(open) == 0}
	if len(r.URL.RawQuery) > maxQuery {
		v.address = address{}
		v.problem(http.StatusBadRequest, "The text is too long for the page. Search for it with caddy-dedup keys show.")
	}
	after, err := admin.ParseAfter(v.After)
	if err != nil {
		v.After = ""
		v.problem(http.StatusBadRequest, "The page of the list is unknown. This is the first one.")
	}
	if err := admin.StatusFilter(v.Status).Check(); err != nil {
		v.problem(http.StatusBadRequest, "The status "+plain(err.Error())+".")
	}
	v.Chart = p.History.chart(v.now)
	found := v.search(r.Context(), open, after)
	s := scanStores(r.Context(), open, after, v.inList)
	if found.Count > 0 {
		s.Result = found
	}
	v.show(s)
	p.showDelivery(r, open, v)
	if v.Q != "" && v.Key == "" && len(v.Rows) == 0 && v.Problem == "" && s.sawAll() {
		v.Notice = "Nothing found. It never arrived, it arrived without this ID, it has expired, or it is of another namespace."
		if v.Incomplete != "" {
			v.Notice += " Execution IDs and digits of keys were only searched among the keys that were read."
		}
	}
	return v
}

// search looks for what is in the search field: a key, or a delivery ID, as it is or without
// the spaces around it. If the result is a single delivery, it is opened. Execution IDs are
// left to the scan.
func (v *view) search(ctx context.Context, open []admin.Store, after *admin.Found) (found admin.Top) {
	if v.Q == "" {
		return found
	}
	trimmed := strings.TrimSpace(v.Q)
	key, err := idempotency.ParseKey(trimmed)
	isKey := err == nil
	if isKey {
		if _, err := admin.LookUp(ctx, open, key); !notFound(err) {
			v.Key = key.String()
			return found
		}
	}
	s := &admin.Search{IDs: slices.Compact([]string{v.Q, trimmed}), Max: maxRows, After: after, Timeout: findTimeout, Wants: func(*admin.Found) bool { return true }}
	s.Run(ctx, open)
	if s.Incomplete() {
		why := s.More
		for _, store := range s.Failed {
			why = append(why, store.Store+": "+strings.TrimSuffix(store.Error, "."))
		}
		v.problem(http.StatusServiceUnavailable, "The search is incomplete: "+plain(strings.Join(why, "; ")))
	}
	found = s.Result
	switch {
	case found.Count == 1 && after == nil:
		v.Key = found.Found[0].Key.String()
	case found.Count == 0 && isKey:
		v.Key = key.String() // there is no record of it
	}
	return found
}

// inList reports whether the list has a record.
func (v *view) inList(f *admin.Found, a alert) bool {
	if v.Q != "" {
		q := strings.TrimSpace(v.Q)
		return q != "" && (q == f.Record.ExecutionID || q == f.Record.ParentID || q == digitsOf(f))
	}
	return (v.State == "" || v.State == f.State || v.State == string(a) || v.State == anyAlert && a != "") && admin.IsOf(f.Record.Provider, v.Provider) &&
		admin.StatusFilter(v.Status).Matches(f.Record.Status)
}

// show shows what a scan found.
func (v *view) show(s *scan) {
	v.Faults, v.Unread = s.faults(), s.Search.Incomplete() || v.NoStore
	list := s.Result
	v.Updated, v.Read, v.Incomplete = whenOf(v.now, v.now), grouped(s.Read), plain(strings.Join(s.More, ", "))
	if v.Count = grouped(list.Count); list.Count > len(list.Found) {
		v.Shown = grouped(len(list.Found))
		v.Next = v.With("after", admin.CursorAfter(list.Found[len(list.Found)-1]))
	}
	if v.Q != "" && list.Count == 1 && v.Key == "" && v.After == "" {
		v.Key = list.Found[0].Key.String()
	}
	for _, f := range list.Found {
		v.Rows = append(v.Rows, v.rowOf(f))
	}
	for _, a := range alerts {
		v.Alerts = v.appendAlert(v.Alerts, a, s.alerts[alertGroup{a, false}])
		v.Older = v.appendAlert(v.Older, a, s.alerts[alertGroup{a, true}])
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

func (v *view) appendAlert(to []alertView, a alert, top *admin.Top) []alertView {
	if top.Count == 0 {
		return to
	}
	shown := alertView{
		State: stateNamed(string(a)), Count: grouped(top.Count), Advice: a.advice(v.limited),
		Link: v.With("state", string(a), "status", "", "provider", "", "key", "", "q", "", "after", ""),
	}
	for _, f := range top.Found {
		shown.Rows = append(shown.Rows, v.rowOf(f))
	}
	return append(to, shown)
}

func (v *view) rowOf(f *admin.Found) row {
	r, reason := f.Record, f.Reason()
	if reason == "" && r.Status >= 500 { // a failure that is kept
		reason = fmt.Sprintf("answered with %d", r.Status)
	}
	return row{
		ID: nameOf(f), Provider: plain(r.Provider), Link: v.With("key", f.Key.String()) + "#delivery",
		Parts: plain(strings.Join(slices.Concat(r.Parts, r.Scope), ", ")), Route: plain(routeOf(r)), Reason: plain(reason), Observed: f.Observed(),
		State: stateOf(f), Attempt: r.Attempt, Status: r.Status,
		Claimed: whenOf(r.Claimed, v.now), Since: whenOf(since(r), v.now), Chosen: f.Key.String() == v.Key,
	}
}

// routeOf is the request that claimed: its method, host and path.
func routeOf(r *idempotency.Record) string {
	return strings.TrimSpace(r.Method + " " + r.Host + r.Path)
}

// nameOf is what a delivery is called: its ID, or its key if it has none.
func nameOf(f *admin.Found) string {
	if f.Record.DeliveryID == "" {
		return "key …" + digitsOf(f) + "…"
	}
	return plain(f.Record.DeliveryID)
}

// digitsOf are the digits of a key that lists show.
func digitsOf(f *admin.Found) string { return f.Key.String()[16:32] }

// Title is the title of the document.
func (v *view) Title() string {
	if len(v.Faults) > 0 {
		return strings.TrimSuffix(v.Faults[0].Title, ".")
	}
	if v.Delivery != nil {
		return v.Delivery.State.Word + " " + v.Delivery.ID
	}
	return "Deliveries"
}

// state is a state as the page shows it: by a shape and a word, not by a colour alone.
type state struct{ Name, Word string }

func stateNamed(name string) state { return state{name, strings.ReplaceAll(name, "_", " ")} }

// stateOf is the state of a record, or its alert.
func stateOf(f *admin.Found) state {
	if a := alertFor(f); a != "" {
		return stateNamed(string(a))
	}
	return stateNamed(f.State)
}
