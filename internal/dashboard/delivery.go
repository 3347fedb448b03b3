package dashboard

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// detail is one delivery.
type detail struct {
	row
	Life       []moment
	Fields     []field
	Unreadable string
	Gone       bool
	Seen       string // changes when the key does
	Urgent     bool   // nothing goes on unless somebody frees the key
	mayFree    bool
	mayForget  bool

	Response *responseView
	NoAnswer string
}

// May reports whether something can be done about the key.
func (d *detail) May(do string) bool {
	return do == "free" && d.mayFree || do == "forget" && d.mayForget
}

type field struct{ Name, Value string }

type responseView struct {
	Status int
	Header []field
	Body   bodyView
}

// confirm asks whether to do something.
type confirm struct {
	act
	asked question
	Token string
}

// Do, Key, In, State and Execution are fields of the form. That of the execution is in base64:
// whatever it is, the browser sends it back as it was.
func (c *confirm) Do() string    { return c.asked.do }
func (c *confirm) Key() string   { return c.asked.key }
func (c *confirm) In() string    { return c.asked.in }
func (c *confirm) State() string { return string(c.asked.seen.State) }
func (c *confirm) Execution() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.asked.seen.ExecutionID))
}

// opened shows one delivery.
func (v *view) opened(o one, notes []Note) {
	d := &detail{row: v.rowOf(o.seen), Unreadable: plain(o.why), mayForget: o.record.MayBeTaken(idempotency.Seen{}, o.now) == nil}
	// What is free already needs it only where its attempts may be used up.
	waits := o.state == string(idempotency.Released) && o.record.Attempt <= o.record.FreedAttempts
	d.mayFree = d.mayForget && !waits && o.state != admin.StateUnreadable
	d.Urgent = o.kind == needsDecision || o.kind == needsAttempts || o.kind == needsFreeing
	d.Life = lifeOf(o.seen, notes, o.waiting)
	for i := range d.Life {
		d.Life[i].When = whenOf(d.Life[i].at, v.now)
	}
	d.Fields = fieldsOf(o)
	d.Seen = strings.TrimSpace(o.state + " " + plain(o.record.ExecutionID))
	if o.noAnswer != nil {
		d.NoAnswer = plain(o.noAnswer.Error())
	}
	if o.response != nil {
		d.Response = &responseView{Status: o.response.Status, Body: bodyOf(o.response)}
		for name, values := range o.response.Header {
			for _, value := range values {
				d.Response.Header = append(d.Response.Header, field{plain(name), plain(value)})
			}
		}
		slices.SortStableFunc(d.Response.Header, func(a, b field) int { return strings.Compare(a.Name, b.Name) })
	}
	v.Opened = d
}

// gone shows what this process still knows of a key without a record.
func (v *view) gone(key idempotency.Key, notes []Note) {
	text := key.String()
	v.Opened = &detail{row: row{ID: "key " + text[:16] + "…", Key: text, Short: text[:16], NoID: true}, Gone: true, Life: noted(nil, notes, "")}
	for i := range v.Opened.Life {
		v.Opened.Life[i].When = whenOf(v.Opened.Life[i].at, v.now)
	}
}

// fieldsOf are the fields of a record. The owner's token, which is a secret, is not one.
func fieldsOf(o one) []field {
	r := o.record
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	clock := func(at time.Time) string {
		if at.IsZero() {
			return ""
		}
		return at.UTC().Format("2006-01-02 15:04:05.000 UTC")
	}
	took := ""
	if !r.Ended.IsZero() && r.Ended.After(r.Claimed) {
		took = span(r.Ended.Sub(r.Claimed))
	}
	policy := ""
	if r.Hold {
		policy = "hold"
	}
	var fields []field
	for _, f := range []field{
		{"Key", o.key.String()}, {"Delivery ID", plain(r.DeliveryID)}, {"Provider", plain(r.Provider)},
		{"Execution ID", plain(r.ExecutionID)}, {"Parent ID", plain(r.ParentID)},
		{"Attempt", number(r.Attempt)}, {"Freed after attempt", number(r.FreedAttempts)}, {"Status", number(r.Status)},
		{"If unknown", policy}, {"Claimed", clock(r.Claimed)}, {"Ended", clock(r.Ended)}, {"Took", took},
		{"Lease until", clock(r.LeaseUntil)}, {"Expires", clock(r.Expires)}, {"Waiting here", number(o.waiting)}, {"Store", plain(o.store)},
	} {
		if f.Value != "" {
			fields = append(fields, f)
		}
	}
	return fields
}
