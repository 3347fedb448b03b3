package dashboard

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// delivery is one record with all that is known of it.
type delivery struct {
	row
	Advice     string
	Unreadable string
	May        []string // what an operator may do about it
	Ends       string   // when its run ends, if nothing may be done
	Timeline   []moment
	Fields     []field
	Response   *response
}

type field struct{ Name, Value string }

// showDelivery shows the record of the key, if the request names one, and the form that asks
// for a confirmation.
func (p *Page) showDelivery(r *http.Request, open []admin.Store, v *view) {
	if v.Key == "" {
		return
	}
	key, err := idempotency.ParseKey(v.Key)
	if err != nil {
		v.problem(http.StatusBadRequest, "That is not a key. A key has 64 hex digits.")
		return
	}
	query := r.URL.Query()
	do, done := query.Get("do"), query.Get("done")
	found, err := admin.LookUp(r.Context(), open, key)
	switch {
	case len(found) > 0: // the record of the first store is shown
	case !notFound(err):
		v.problem(http.StatusServiceUnavailable, plain(err.Error()))
		return
	case done == "forget":
		v.Notice = acts[done].done + p.copyBound()
		return
	default:
		v.problem(http.StatusNotFound, "No store has a record of this key. It was never claimed, it has expired, or it was forgotten.")
		return
	}
	f := found[0]
	if done == "release" && f.ByOperator() || done == "complete" && f.State == string(idempotency.Complete) {
		v.Notice = acts[done].done + p.copyBound()
	}
	v.Delivery = v.deliveryOf(f)
	if p.Bodies && f.Unreadable == nil {
		v.Delivery.Response = responseOf(f.Store.Response(r.Context(), key, f.Record))
	}
	if slices.Contains(v.Delivery.May, do) {
		v.Confirm = &confirm{acts[do], do, key.String(), f.State, f.Record.ExecutionID}
	}
}

// copyBound says when other replicas follow.
func (p *Page) copyBound() string {
	if p.CopyBound == 0 {
		return ""
	}
	return " Other replicas follow within " + span(p.CopyBound) + "."
}

func (v *view) deliveryOf(f *admin.Found) *delivery {
	d := &delivery{row: v.rowOf(f), Advice: alertFor(f).advice(v.limited), Timeline: v.timeline(f), Fields: fieldsOf(f)}
	if f.Unreadable != nil {
		d.Unreadable = plain(f.Unreadable.Error())
	}
	if f.Record.CheckChange(idempotency.Precondition{}, f.Now) == nil {
		// A released key runs. One whose attempts are exhausted cannot be told from it.
		if f.State != admin.StateUnreadable && f.State != string(idempotency.Released) {
			d.May = append(d.May, "release")
		}
		if f.State != admin.StateUnreadable && f.State != string(idempotency.Complete) {
			d.May = append(d.May, "complete")
		}
		d.May = append(d.May, "forget")
	} else {
		d.Ends = admin.RunEnds(f.Record.Claimed, v.maxRun, f.Now)
	}
	return d
}

// moment is one line of the timeline of a delivery.
type moment struct {
	at    time.Time // zero if it is not known
	Title string
	Text  string
	Mark  string // its shape: "begin", "good", "bad", "note" or "coming"
	When  *when
}

// timeline tells what the record says of a key, in the order of time.
func (v *view) timeline(f *admin.Found) (all []moment) {
	r := f.Record
	add := func(at time.Time, mark, title, text string) {
		all = append(all, moment{at: at, Title: title, Text: text, Mark: mark, When: whenOf(at, v.now)})
	}
	if f.State == admin.StateUnreadable {
		return nil
	}
	if r.Attempt > 1 {
		add(time.Time{}, "note", "Earlier attempts", fmt.Sprintf("%d before this one. The record has only the latest.", r.Attempt-1))
	}
	if r.ReleasedAttempts > 0 {
		add(time.Time{}, "note", "Released", fmt.Sprintf("By an operator, after attempt %d. The log says by whom.", r.ReleasedAttempts))
	}
	if r.ParentID != "" {
		add(r.Claimed, "begin", "Forced", "It ran again on purpose, after the execution "+plain(r.ParentID)+".")
	} else {
		add(r.Claimed, "begin", "Claimed", fmt.Sprintf("Attempt %d began.", max(1, r.Attempt)))
	}
	if !r.Ended.IsZero() {
		mark, text := endOf(f, v.limited)
		add(r.Ended, mark, "Ended", text)
	}
	switch f.State {
	case string(idempotency.InFlight):
		add(r.LeaseUntil, "coming", "Lease ends", "If the process does not renew it, the next delivery takes over.")
	case admin.StateLapsed:
		add(r.LeaseUntil, "bad", "Lease lapsed", "It was not renewed. The next delivery takes over.")
	case string(idempotency.Held):
		if r.State == idempotency.InFlight {
			add(r.LeaseUntil, "bad", "Held", "The lease was not renewed. It is unknown how the run ended.")
		}
	}
	add(r.Expires, "coming", "Expires", "The store then removes the record, unless the key runs again before.")
	slices.SortStableFunc(all, func(a, b moment) int { return a.at.Compare(b.at) })
	return all
}

// endOf says how the latest run ended.
func endOf(f *admin.Found, limited bool) (mark, text string) {
	r, with := f.Record, "Without a response."
	if r.Status != 0 {
		with = fmt.Sprintf("With %d.", r.Status)
	}
	switch {
	case r.State == idempotency.Complete && r.Status >= 500:
		return "bad", with + " The response is kept although it is a failure."
	case r.State == idempotency.Complete && r.Reason != "": // by an operator, or without the body
		return "note", fmt.Sprintf("Duplicates get %d: %s.", r.Status, plain(r.Reason))
	case r.State == idempotency.Complete:
		return "good", with + " The response is kept, and duplicates get it."
	case r.State == idempotency.Held:
		return "bad", "It is unknown whether the request was executed. No request runs."
	case r.Attempt == 0:
		return "bad", "The service was not reached. The next delivery runs."
	case f.ByOperator():
		return "note", with
	case limited:
		return "bad", with + " The response is not kept. The next delivery runs, if an attempt is left."
	default:
		return "bad", with + " The response is not kept. The next delivery runs."
	}
}

// fieldsOf are the fields of a record, except the token of its owner, which is a secret.
func fieldsOf(f *admin.Found) (fields []field) {
	r := f.Record
	add := func(name, value string) {
		if value != "" && value != "0" {
			fields = append(fields, field{name, plain(value)})
		}
	}
	clock := func(name string, at time.Time) {
		if !at.IsZero() {
			add(name, at.UTC().Format("2006-01-02 15:04:05.000 UTC"))
		}
	}
	add("Key", f.Key.String())
	add("Delivery ID", r.DeliveryID)
	add("Parts", strings.Join(r.Parts, ", "))
	add("Scope", strings.Join(r.Scope, ", "))
	add("Provider", r.Provider)
	add("Request", routeOf(r))
	add("Reason", f.Reason())
	add("Execution ID", r.ExecutionID)
	add("Parent ID", r.ParentID)
	add("Attempt", strconv.Itoa(r.Attempt))
	add("Status", strconv.Itoa(r.Status))
	clock("Claimed", r.Claimed)
	clock("Ended", r.Ended)
	if r.Ended.After(r.Claimed) {
		add("Took", span(r.Ended.Sub(r.Claimed)))
	}
	clock("Lease until", r.LeaseUntil)
	clock("Expires", r.Expires)
	add("Store", f.Store.Name())
	return fields
}

// maxBody is how much of a body is shown.
const maxBody = 64 << 10

// response is a kept response, as it is shown.
type response struct {
	Problem string // it could not be read
	Fields  []field
	Note    string // what is not shown of the body
	Body    string
}

// responseOf shows a response, nil for none.
func responseOf(kept *idempotency.Response, err error) *response {
	switch {
	case err != nil:
		return &response{Problem: plain(err.Error())}
	case kept == nil:
		return nil
	}
	shown := new(response)
	for _, name := range slices.Sorted(maps.Keys(kept.Header)) {
		for _, value := range kept.Header[name] {
			shown.Fields = append(shown.Fields, field{plain(name), plain(value)})
		}
	}
	body := kept.Body
	switch {
	case kept.Omitted:
		shown.Note = "The body was too large to keep."
	case !utf8.Valid(body):
		shown.Note = "The body is not text. It has " + grouped(len(body)) + " bytes."
	default:
		if len(body) > maxBody {
			shown.Note = fmt.Sprintf("Only the first %d KiB of %s bytes are shown.", maxBody>>10, grouped(len(body)))
			body = body[:maxBody]
		}
		shown.Body = plain(strings.ReplaceAll(string(body), "\r\n", "\n"))
	}
	return shown
}
