package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// MaxCompleteBody is the maximum size of [CompleteRequest.Body] in bytes.
	MaxCompleteBody = 1 << 20
	// maxComplete is the maximum size of a request that completes a key: that of its escaped
	// body, and the rest.
	maxComplete = 6*MaxCompleteBody + 64<<10
)

// CompleteRequest is the response that the duplicates of a key get from now on.
type CompleteRequest struct {
	// Status is in the range 200 to 599.
	Status int `json:"status"`
	// ContentType is by default application/json if Body is JSON, text/plain if it is not, and none if
	// there is no body.
	ContentType string `json:"content_type,omitempty"`
	Body        string `json:"body,omitempty"`
}

// complete completes a key in all stores that have it.
func (a *API) complete(w http.ResponseWriter, r *http.Request, key idempotency.Key) error {
	const accepted = `it is {"status": 200, "content_type": "text/plain", "body": "…"}, each of them optional`
	asked := CompleteRequest{Status: http.StatusOK}
	if err := readBody(w, r, maxComplete, &asked, accepted); err != nil {
		return err
	}
	response, err := asked.Response()
	if err != nil {
		return problemOf(http.StatusBadRequest, err)
	}
	return a.onKey(w, r, key, func(store Store, ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
		return store.Complete(ctx, key, response, seen)
	})
}

// Response returns the response to keep. An error names the wrong member and what is accepted.
func (c CompleteRequest) Response() (*idempotency.Response, error) {
	switch {
	case c.Status < 200 || c.Status > 599:
		return nil, fmt.Errorf("the status %d is not accepted; it is from 200 to 599", c.Status)
	case (c.Status == http.StatusNoContent || c.Status == http.StatusNotModified) && c.Body != "":
		return nil, fmt.Errorf("a response with the status %d has no body; leave out the body, or use another status", c.Status)
	case len(c.Body) > MaxCompleteBody:
		return nil, fmt.Errorf("the body of the response has %d bytes; it has at most %d", len(c.Body), MaxCompleteBody)
	case c.ContentType != "":
		if kind, _, err := mime.ParseMediaType(c.ContentType); err != nil || !strings.Contains(kind, "/") {
			return nil, fmt.Errorf("the content type %.100q is not accepted; it is a media type such as application/json", c.ContentType)
		}
	case json.Valid([]byte(c.Body)):
		c.ContentType = "application/json"
	case c.Body != "":
		c.ContentType = "text/plain"
	}
	response := &idempotency.Response{Status: c.Status, Body: []byte(c.Body)}
	if c.ContentType != "" {
		response.Header = map[string][]string{"Content-Type": {c.ContentType}}
	}
	return response, nil
}
