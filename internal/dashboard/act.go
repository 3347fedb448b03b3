package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// act is what an operator can do about a key.
type act struct {
	Verb, Text string
	Answers    bool // whether the operator chooses the status that duplicates get
	done       string
	do         func(admin.Store, context.Context, idempotency.Key, idempotency.Precondition) error // nil for complete
}

var acts = map[string]act{
	"release": {
		Verb: "Release", do: admin.Store.Release,
		Text: "Its next request runs. The record keeps its history, and attempts are counted from 1 again. If the service has executed the request already, it executes it again.",
		done: "The key is released. Its next request runs: have it sent again.",
	},
	"complete": {
		Verb: "Complete", Answers: true,
		Text: "Its work is done: duplicates get this status from now on, without a body, and the service does not see them.",
		done: "The key is complete. Duplicates get the status that you chose.",
	},
	"forget": {
		Verb: "Forget", do: admin.Store.Forget,
		Text: "The record and the kept response are removed. The next request with the key runs as if none had come before.",
		done: "The record is gone. The next request with the key runs as if none had come before.",
	},
}

// confirm is the form that asks whether to do something about a record as it was shown.
type confirm struct {
	act
	Do, Key, State, ExecutionID string
}

// maxForm is the size of a form in bytes.
const maxForm = 4 << 10

// act does what an operator has confirmed. It refuses requests from other sites.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	if err := p.crossOrigin.Check(r); err != nil {
		p.Refuse(w, r, http.StatusForbidden, "The request came from another site.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	form := r.PostFormValue
	do, state := form("do"), form("state")
	act, known := acts[do]
	key, err := idempotency.ParseKey(form("key"))
	if !known || err != nil || state == "" {
		p.Refuse(w, r, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	if act.Answers {
		// A body would be markup under the origin of the site, written by whoever reaches the page.
		status, _ := strconv.Atoi(form("status"))
		response, err := admin.CompleteRequest{Status: status}.Response()
		if err != nil {
			p.Refuse(w, r, http.StatusBadRequest, "The status is not accepted. It is a number from 200 to 599.")
			return
		}
		act.do = func(s admin.Store, ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
			return s.Complete(ctx, key, response, seen)
		}
	}
	seen := idempotency.Precondition{ExecutionID: form("execution"), State: idempotency.State(state)}
	open := p.Open()
	defer admin.LeaveAll(open)
	// What was begun is finished even if the browser disconnects.
	_, err = admin.Act(r.Context(), open, key, seen, p.MaxRun(), func(store admin.Store) error {
		return act.do(store, context.WithoutCancel(r.Context()), key, seen)
	})
	if problem, ok := errors.AsType[*admin.Problem](err); ok {
		v := &view{status: problem.Status, Place: p.place(r), Problem: plain(problem.Error()), address: address{Key: key.String()}}
		render(w, "refusal", v)
		return
	}
	// Only a query: a proxy in front may have removed the beginning of the path.
	w.Header().Set("Location", addressOf(r.URL.Query()).With("q", "", "key", key.String(), "done", do)+"#said")
	w.WriteHeader(http.StatusSeeOther)
}
