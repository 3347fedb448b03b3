package admin

import (
	"time"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Record is a record as operators see it, without the owner's token, which is secret.
type Record struct {
	Key   string `json:"key"`
	Store string `json:"store"`
	State string `json:"state"`
	// Observed reports whether the request was only observed.
	Observed   bool   `json:"observed,omitempty"`
	Provider   string `json:"provider,omitempty"`
	DeliveryID string `json:"delivery_id,omitempty"`
	// Parts are the other parts of a key of several parts.
	Parts []string `json:"parts,omitempty"`
	// Scope are the members of the body that a scope of the configuration names, each as pointer=value.
	Scope       []string `json:"scope,omitempty"`
	Method      string   `json:"method,omitempty"`
	Host        string   `json:"host,omitempty"`
	Path        string   `json:"path,omitempty"`
	ExecutionID string   `json:"execution_id,omitempty"`
	ParentID    string   `json:"parent_id,omitempty"`
	Attempt     int      `json:"attempt,omitempty"`
	Status      int      `json:"status,omitempty"`
	// Reason is why the last run left nothing to replay, or which operator has released or completed the
	// key since.
	Reason     string    `json:"reason,omitempty"`
	Claimed    time.Time `json:"claimed,omitzero"`
	Ended      time.Time `json:"ended,omitzero"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	Expires    time.Time `json:"expires,omitzero"`
	Response   *Response `json:"response,omitempty"`
	// Unreadable is why the record cannot be read; most other fields are then empty.
	Unreadable string `json:"unreadable,omitempty"`
	// Others are the records that the key has in other stores of the process.
	Others []Record `json:"others,omitempty"`
}

// Response is a kept response, for an operator who asked for it.
type Response struct {
	Status  int                 `json:"status"`
	Header  map[string][]string `json:"header,omitempty"`
	Omitted bool                `json:"omitted,omitempty"`
	// Body is the body if it is UTF-8; else Base64 is.
	Body   string `json:"body,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// StateLapsed is the state of a claim in flight whose lease was not renewed: the next request takes it
// over.
const StateLapsed = string(idempotency.Lapsed)

// showFound shows a record that was found.
func showFound(f *Found) Record {
	r := f.Record
	shown := Record{
		Key: f.Key.String(), Store: f.Store.Name(), State: f.State, Observed: f.Observed(),
		Provider: r.Provider, DeliveryID: r.DeliveryID, Parts: r.Parts, Scope: r.Scope, Method: r.Method, Host: r.Host, Path: r.Path,
		ExecutionID: r.ExecutionID, ParentID: r.ParentID,
		Attempt: r.Attempt, Status: r.Status, Reason: f.Reason(),
		Claimed: r.Claimed, Ended: r.Ended, LeaseUntil: r.LeaseUntil, Expires: r.Expires,
	}
	if f.Unreadable != nil {
		shown.Unreadable = f.Unreadable.Error()
	}
	return shown
}

func showAll(found []*Found) []Record {
	all := make([]Record, 0, len(found)) // never null in JSON
	for _, f := range found {
		all = append(all, showFound(f))
	}
	return all
}

func showResponse(r *idempotency.Response) *Response {
	if r == nil {
		return nil
	}
	shown := &Response{Status: r.Status, Header: make(map[string][]string), Omitted: r.Omitted}
	for name, values := range r.Header {
		if len(values) > 0 { // an empty one keeps a server from adding the field
			shown.Header[name] = values
		}
	}
	if utf8.Valid(r.Body) {
		shown.Body = string(r.Body)
	} else {
		shown.Base64 = r.Body
	}
	return shown
}
