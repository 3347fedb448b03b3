package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// mostRows is how many records a page of the list has, and mostConcerns how many of
	// those that need attention are shown above it.
	mostRows     = 50
	mostConcerns = 8
	// needsAny asks the list for all records that need attention.
	needsAny = "attention"
)

// view is what the templates show.
type view struct {
	address
	now    time.Time
	status int

	Problem string // why something is not shown
	Notice  string // what was done
	Process bool   // a store is open
	Stores  int    // that are open
	Bodies  bool   // kept responses are shown

	Numbers       []number
	Runs, Waiting int
	Saved         string
	Since         *when
	Chart         chart
	Stretches     []option

	Looked     *when // when the stores were looked at
	Away       []away
	Partial    bool   // there are more records than were looked at
	Rest       string // the link to them
	Unfinished string // the stores that have them
	Records    string // how many were looked at
	Running    int    // in flight, of all replicas
	Concerns   []advised
	Needs      []option // how many records need what
	Concern    int      // how many need anything
	Shown      int      // how many of them are shown
	Rows       []row
	First      string // the rows are those from First to Last, of so many
	Last       string
	Of         string
	Newest     string // how many of them can be seen, "" for all
	Earlier    string // links
	Later      string
	States     []option
	Origins    []option

	Found   bool   // the rows are what was searched for
	More    bool   // there are more of them
	None    string // why there are none
	Opened  *detail
	Confirm *confirm

	window *window
}

// option is a choice, and the link to it.
type option struct {
	Name, Title, Link string
	Count             string
	Chosen            bool
}

// number is one of the four at the top.
type number struct {
	Name, Title, Value, Text, CurveText string
	Curve                               curve
	Link                                string
}

// row is a record in a list.
type row struct {
	ID, Key, Short  string
	Provider, Store string
	State           state
	Attempt, Status int
	Claimed, Since  *when
	Advice          string
	Chosen, NoID    bool
	Link            string
}

// advised are records, one after the other, for which the same can be done.
type advised struct {
	State  state
	Advice string
	Rows   []row
}

func (v *view) problem(status int, why string) { v.status, v.Problem = status, why }

// fail says that the stores could not be asked.
func (v *view) fail(err error) {
	switch {
	case errors.Is(err, errPlace):
		v.problem(http.StatusBadRequest, "The place in the list is not one that this page has named, or its store is not open any more. Begin the list anew.")
	case errors.Is(err, errBusy), errors.Is(err, context.Canceled):
		v.problem(http.StatusServiceUnavailable, "Too much is asked of the stores at once. Try again in a moment.")
	default:
		v.problem(http.StatusServiceUnavailable, "The store does not answer: "+plain(err.Error()))
	}
}

// measure shows what this process knows by itself.
func (v *view) measure(h *History, open []Store) {
	minutes := h.minutes(v.now, 60)
	series := func(of func(past) uint64) []uint64 {
		values := make([]uint64, len(minutes))
		for i, one := range minutes {
			values[i] = of(one)
		}
		return values
	}
	all, spared := series(past.deliveries), series(func(p past) uint64 { return p.of(absorbed) })
	v.Numbers = []number{
		{Name: "deliveries", Title: "Deliveries", Value: grouped(total(all)), Text: "last hour, seen here", Curve: curveOf(all)},
		{Name: "absorbed", Title: "Duplicates absorbed", Value: grouped(total(spared)), Text: "last hour, seen here", Curve: curveOf(spared)},
		{Name: "failing", Title: "Failing", Value: "–", Text: "or ended in failure, keys now", CurveText: "Runs that failed here: ",
			Curve: curveOf(series(func(p past) uint64 { return p[RunFailed] })), Link: v.toList("state", "failing")},
		{Name: "held", Title: "Held", Value: "–", Text: "keys now", CurveText: "Runs that ended so here, and refusals: ",
			Curve: curveOf(series(func(p past) uint64 { return p[RunHeld] + p["held"] })), Link: v.toList("state", "held")},
	}
	for _, store := range open {
		runs, waiting := store.InProgress()
		v.Runs, v.Waiting = v.Runs+runs, v.Waiting+waiting
	}
	v.Saved = span(time.Duration(h.sinceStart()[SavedMillis]) * time.Millisecond)
	v.Since = whenOf(h.begun, v.now)
	chosen := stretchNamed(v.Range)
	v.Chart = chartOf(h, chosen, v.now)
	for _, s := range stretches {
		v.Stretches = append(v.Stretches, option{Name: s.Name, Title: s.Title, Link: v.With("range", s.Name) + "#chart", Chosen: s.Name == chosen.Name})
	}
}

// list shows what the stores have.
func (v *view) list(w *window, err error) {
	if err != nil {
		v.fail(err)
		return
	}
	v.window = w
	v.Looked, v.Away = whenOf(w.at, v.now), w.away
	v.Records, v.Running = grouped(uint64(w.looked)), w.count(string(idempotency.InFlight))
	if w.next != "" {
		v.Partial, v.Rest = true, v.With("from", w.next, "page", "", "key", "", "q", "")+"#deliveries"
		v.Unfinished = plain(strings.Join(w.unfinished, ", "))
	}
	if w.looked > 0 || len(w.away) == 0 {
		v.Numbers[2].Value = grouped(uint64(w.needing(needsMending, needsFreeing, needsAttempts)))
		v.Numbers[3].Value = grouped(uint64(w.needing(needsDecision)))
		if v.Partial || len(w.away) > 0 {
			v.Numbers[2].Value += "+"
			v.Numbers[3].Value += "+"
		}
	}
	v.Concern = w.needing(needs...)
	for _, kind := range needs {
		if n := w.needing(kind); n > 0 {
			v.Needs = append(v.Needs, option{Name: string(kind), Title: stateWords[string(kind)], Count: grouped(uint64(n)), Link: v.toList("state", string(kind))})
		}
	}
	// Some of each kind are seen, however many of another there are.
	some := fairly(w.concerns, mostConcerns)
	v.Shown = len(some)
	for _, s := range some {
		r := v.rowOf(s)
		if last := len(v.Concerns) - 1; last >= 0 && v.Concerns[last].State == r.State && v.Concerns[last].Advice == r.Advice {
			v.Concerns[last].Rows = append(v.Concerns[last].Rows, r)
			continue
		}
		v.Concerns = append(v.Concerns, advised{State: r.State, Advice: r.Advice, Rows: []row{r}})
	}
	v.choose()
	v.turn()
}

func (v *view) toList(pairs ...string) string {
	return v.With(append([]string{"key", "", "q", "", "page", ""}, pairs...)...) + "#deliveries"
}

// fairly takes up to n records, of each kind in turn, and leaves them in their order.
func fairly(concerns []seen, n int) []seen {
	if len(concerns) <= n {
		return concerns
	}
	byKind := make(map[need][]seen)
	for _, s := range concerns {
		byKind[s.kind] = append(byKind[s.kind], s)
	}
	take := make(map[need]int)
	for taken := 0; taken < n; {
		for _, kind := range needs {
			if taken < n && take[kind] < len(byKind[kind]) {
				take[kind]++
				taken++
			}
		}
	}
	var some []seen
	for _, kind := range needs {
		some = append(some, byKind[kind][:take[kind]]...)
	}
	return some
}

// choose offers the filters.
func (v *view) choose() {
	v.States = []option{{Name: "", Title: "all states"}, {Name: needsAny, Title: "needs attention"}, {Name: "failing", Title: "failing"}, {Name: "exhausted", Title: "exhausted"}, {Name: string(needsFreeing), Title: stateWords[string(needsFreeing)]}}
	for _, name := range admin.States {
		v.States = append(v.States, option{Name: name, Title: stateWords[name]})
	}
	providers := []string{}
	for name := range v.window.origins {
		if plain(name) == name {
			providers = append(providers, name)
		}
	}
	if v.Provider != "" && !slices.Contains(providers, v.Provider) {
		providers = append(providers, v.Provider)
	}
	slices.Sort(providers)
	v.Origins = []option{{Name: "", Title: "all providers"}}
	for _, name := range providers {
		v.Origins = append(v.Origins, option{Name: name, Title: name})
	}
	for i := range v.States {
		v.States[i].Chosen = v.States[i].Name == v.State
	}
	for i := range v.Origins {
		v.Origins[i].Chosen = v.Origins[i].Name == v.Provider
	}
	if !slices.ContainsFunc(v.States, func(o option) bool { return o.Chosen }) {
		v.problem(http.StatusBadRequest, "That state is unknown: choose one of the list.")
	}
}

// turn shows one page of the list.
func (v *view) turn() {
	records, all, more := v.window.listed(v.State, v.Provider)
	v.Of = grouped(uint64(all))
	if more {
		v.Of += "+"
	}
	if more || all > len(records) {
		v.Newest = grouped(uint64(len(records)))
	}
	pages := max(1, (len(records)+mostRows-1)/mostRows)
	number, err := strconv.Atoi(v.Page)
	if err != nil {
		number = 1
	}
	number = max(1, min(number, pages))
	first := (number - 1) * mostRows
	last := min(first+mostRows, len(records))
	for _, s := range records[first:last] {
		v.Rows = append(v.Rows, v.rowOf(s))
	}
	v.First, v.Last = grouped(uint64(min(first+1, last))), grouped(uint64(last))
	if number > 1 {
		v.Earlier = v.With("page", strconv.Itoa(number-1)) + "#deliveries"
	}
	if number < pages {
		v.Later = v.With("page", strconv.Itoa(number+1)) + "#deliveries"
	}
}

func (v *view) rowOf(s seen) row {
	key, in := s.key.String(), ""
	if v.Stores > 1 {
		in = shortOf(s.in)
	}
	r := row{
		ID: plain(s.record.DeliveryID), Key: key, Short: key[:16], Provider: plain(s.record.Provider), Store: plain(s.store), State: stateOf(s),
		Attempt: s.record.Attempt, Status: s.record.Status, Claimed: whenOf(s.record.Claimed, v.now), Since: whenOf(s.since, v.now),
		Advice: advice(s), Chosen: key == v.Key && (v.In == "" || v.In == in), Link: v.With("key", key, "in", in) + "#delivery",
	}
	if r.NoID = r.ID == ""; r.NoID {
		r.ID = "key " + r.Short + "…"
	}
	return r
}

// foundBy shows what a search has found. One delivery alone is opened.
func (v *view) foundBy(f found, exhausted map[idempotency.Key]time.Time) {
	v.Found, v.More, v.Rows, v.Earlier, v.Later = true, f.more, nil, "", ""
	for _, s := range f.records { // they are shared
		judge(&s, exhausted)
		v.Rows = append(v.Rows, v.rowOf(s))
	}
	for _, a := range f.away {
		if !slices.Contains(v.Away, a) {
			v.Away = append(v.Away, a)
		}
	}
	switch {
	case len(f.records) == 1 && v.Key == "":
		v.Key, v.In = f.records[0].key.String(), ""
		if v.Stores > 1 {
			v.In = shortOf(f.records[0].in)
		}
		v.Rows[0].Chosen = true
	case len(f.records) == 0 && len(f.away) > 0:
		v.problem(http.StatusServiceUnavailable, "Not found where it could be looked for; not every store has answered.")
	case len(f.records) == 0:
		v.None = "No delivery with this ID. It never came here, it came without this ID, its retention is over, or it is of another namespace."
		if f.unseen != "" {
			v.None = "No delivery with this ID. If it is the ID of an execution: it is not among the " + f.unseen +
				" keys that were looked at, and there are more. caddy-dedup keys list --execution-id goes through all."
		}
	}
}

// Title is what the browser's tab says.
func (v *view) Title() string {
	switch {
	case v.Opened != nil:
		return fmt.Sprintf("%s %s", v.Opened.State.Word, v.Opened.ID)
	case v.Q != "":
		return "Search"
	default:
		return "Deliveries"
	}
}
