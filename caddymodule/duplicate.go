package caddymodule

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// maxOriginalResponse is the size up to which a conflict carries the first
// response.
const maxOriginalResponse = 4 << 10

// otherAnswer returns what the duplicate of a complete request gets in place of
// the kept response, nil where that is what it gets.
func (x *exchange) otherAnswer(d engine.Replay) *idempotency.Response {
	switch x.Duplicate {
	case duplicateAcknowledge:
		// A kept failure is no success: a sender that took it for one would never
		// deliver again.
		if d.Response.Status < 400 {
			return &idempotency.Response{Status: http.StatusOK}
		}
	case duplicateSeeOther:
		if location := firstOf(d.Response, "Location"); location != "" {
			return &idempotency.Response{
				Status: http.StatusSeeOther,
				Header: map[string][]string{"Location": {location}},
			}
		}
	}
	return nil
}

// conflict refuses the duplicate of a complete request, and tells what the first
// one was answered, so that a client can go on from there.
func (x *exchange) conflict(d engine.Replay) problem {
	p := newProblem(reasonConflict, x.mode(),
		fmt.Sprintf("the request was executed before, as %s, and answered with %d", d.Record.ExecutionID, d.Response.Status),
		d.Record.ExecutionID, x.Docs)
	p.OriginalStatus = d.Response.Status
	p.OriginalLocation = firstOf(d.Response, "Location")
	if body := d.Response.Body; len(body) <= maxOriginalResponse && isJSON(firstOf(d.Response, "Content-Type")) && utf8.Valid(body) && json.Valid(body) {
		p.OriginalResponse = body
	}
	return p
}

func firstOf(r *idempotency.Response, field string) string {
	if values := r.Header[field]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// isJSON reports whether a media type is JSON (RFC 8259) or is written in it (RFC
// 6839, section 3.1).
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}
