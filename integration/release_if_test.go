package integration

import (
	"io"
	"net/http"
	"testing"
)

// The Caddyfiles of docs/responses-that-failed.md: a request runs again after a response that says that
// it failed, and those that waited get that response.
func TestResponsesThatSayThatTheyFailed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ words, path, contentType, body, failed, succeeded string }{
		"GraphQL": {
			"release_if /errors", "/graphql", "application/json", `{"query": "mutation { pay }"}`,
			`{"data": {"pay": null}, "errors": [{"message": "busy"}]}`, `{"data": {"pay": 1}}`,
		},
		"Dapr": {
			"release_if /status RETRY", "/events/orders", "application/cloudevents+json",
			`{"specversion": "1.0", "id": "1", "source": "orders", "type": "paid"}`, `{"status": "RETRY"}`, `{"status": "SUCCESS"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			says := func(text string) answering {
				return func(w http.ResponseWriter, _ *http.Request, _ run) { _, _ = io.WriteString(w, text) }
			}
			g := newGate(t)
			up := startUpstream(t, inTurn(g.before(says(c.failed)), says(c.succeeded)))
			p := startExample(t, "responses-that-failed.md", c.words, up)
			typed := func(r *http.Request) { r.Header.Set("Content-Type", c.contentType) }

			first := p.postLater(c.path, "k", c.body, typed)
			up.awaitRuns(t, "k", 1)
			waiters := p.postMany(2, c.path, "k", c.body, typed)
			p.awaitWaiting(t, 2, waiters...)
			g.open()
			failed := first.reply(t)
			wantFresh(t, failed, 200, c.failed)
			for _, got := range replies(t, waiters) {
				wantReplay(t, got, failed)
			}

			succeeded := p.post(t, c.path, "k", c.body, typed)
			wantFresh(t, succeeded, 200, c.succeeded)
			wantReplay(t, p.post(t, c.path, "k", c.body, typed), succeeded)
			up.wantRuns(t, "k", 2)
		})
	}
}
