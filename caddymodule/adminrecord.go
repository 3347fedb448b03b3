package caddymodule

import (
	"time"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// shownRecord is a record as operators see it. The owner's token, which is a
// secret, is not part of it.
type shownRecord struct {
	Key         string         `json:"key"`
	Store       string         `json:"store"`
	State       string         `json:"state"`
	Provider    string         `json:"provider,omitempty"`
	DeliveryID  string         `json:"delivery_id,omitempty"`
	ExecutionID string         `json:"execution_id"`
	ParentID    string         `json:"parent_id,omitempty"`
	Attempt     int            `json:"attempt"`
	Status      int            `json:"status,omitempty"`
	Claimed     time.Time      `json:"claimed,omitzero"`
	Ended       time.Time      `json:"ended,omitzero"`
	LeaseUntil  time.Time      `json:"lease_until,omitzero"`
	Expires     time.Time      `json:"expires,omitzero"`
	Response    *shownResponse `json:"response,omitempty"`
}

// shownResponse is a kept response, for an operator who asked for it.
type shownResponse struct {
	Status  int                 `json:"status"`
	Header  map[string][]string `json:"header,omitempty"`
	Omitted bool                `json:"omitted,omitempty"`
	// Body is the body if it is UTF-8; else Base64 is.
	Body   string `json:"body,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// showRecord shows a record at the time of its store's clock. A claim that has
// lapsed is shown as what it means: held, or lapsed and free to be taken over.
func showRecord(store string, key idempotency.Key, r *idempotency.Record, now time.Time) shownRecord {
	state := string(r.State)
	if r.Lapsed(now) {
		state = "lapsed"
		if r.Hold {
			state = string(idempotency.Held)
		}
	}
	return shownRecord{
		Key: key.String(), Store: store, State: state,
		Provider: r.Provider, DeliveryID: r.DeliveryID,
		ExecutionID: r.ExecutionID, ParentID: r.ParentID,
		Attempt: r.Attempt, Status: r.Status,
		Claimed: r.Claimed, Ended: r.Ended, LeaseUntil: r.LeaseUntil, Expires: r.Expires,
	}
}

func showResponse(r *idempotency.Response) *shownResponse {
	if r == nil {
		return nil
	}
	shown := &shownResponse{Status: r.Status, Header: r.Header, Omitted: r.Omitted}
	if utf8.Valid(r.Body) {
		shown.Body = string(r.Body)
	} else {
		shown.Base64 = r.Body
	}
	return shown
}
