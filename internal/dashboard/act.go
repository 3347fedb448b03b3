package dashboard

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// act is what an operator can do about a key.
type act struct {
	Verb, Title, Text string
	done              string
	do                func(admin.Store, context.Context, idempotency.Key, idempotency.Seen) error
}

var acts = map[string]act{
	"release": {
		Verb: "Release the key", Title: "Release this key?", do: admin.Store.Free,
		Text: "Its next request runs. The record keeps its history, and attempts are counted from 1 again. If the service has executed the request already, it executes it again.",
		done: "The key is released. Its next request runs: have it sent again.",
	},
	"forget": {
		Verb: "Forget the key", Title: "Forget this key?", do: admin.Store.Forget,
		Text: "The record and the kept response are removed. The next request with the key runs as if none had come before.",
		done: "The record is gone. The next request with the key runs as if none had come before.",
	},
}

// confirm is the form that asks whether to do something about a record as it was shown.
type confirm struct {
	act
	question
	Token string
}

// question is what the form asks.
type question struct{ Do, Key, State, ExecutionID string }

func (p *Page) confirm(w http.ResponseWriter, r *http.Request, do string, e *entry) *confirm {
	asked := question{do, e.key.String(), e.state, e.record.ExecutionID}
	return &confirm{acts[do], asked, tokenFor(p.secretOf(w, r), asked)}
}

// maxForm is the size of a form in bytes.
const maxForm = 4 << 10

// act does what an operator has confirmed. It refuses requests from other sites, and forms
// that are not from this page: their token belongs to a cookie that no other site can read.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	if err := p.crossOrigin.Check(r); err != nil {
		refuse(w, http.StatusForbidden, "The request came from another site.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	form := r.PostFormValue
	asked := question{form("do"), form("key"), form("state"), form("execution")}
	act, known := acts[asked.Do]
	key, err := idempotency.ParseKey(asked.Key)
	if !known || err != nil {
		refuse(w, http.StatusBadRequest, "The form cannot be read.")
		return
	}
	if !validToken(r, asked, form("token")) {
		refuse(w, http.StatusForbidden, "The form is not from this page, or its cookie is gone. Go back and confirm again.")
		return
	}
	seen := idempotency.Seen{ExecutionID: asked.ExecutionID, State: idempotency.State(asked.State)}
	// What was begun is finished even if the browser disconnects.
	err = p.inStores(func(store admin.Store) error { return act.do(store, context.WithoutCancel(r.Context()), key, seen) })
	changed, hasChanged := errors.AsType[idempotency.ChangedError](err)
	switch {
	case err == nil:
		// Only a query: a proxy in front may have removed the beginning of the path.
		w.Header().Set("Location", addressOf(r.URL.Query()).With("q", "", "key", asked.Key, "done", asked.Do)+"#said")
		w.WriteHeader(http.StatusSeeOther)
	case hasChanged:
		v := &view{status: http.StatusConflict, address: address{Key: asked.Key}}
		v.Problem = fmt.Sprintf("The key has changed since: it was %s, and is %s now. Look at it again.", stateNamed(asked.State).Word, stateNamed(string(changed.Now.State)).Word)
		render(w, "refusal", v)
	case errors.Is(err, idempotency.ErrGone):
		refuse(w, http.StatusNotFound, "No store has a record of this key any more.")
	case errors.Is(err, idempotency.ErrInFlight):
		refuse(w, http.StatusConflict, "A run is in flight under the key. Wait until it has ended, or its lease has lapsed.")
	default:
		refuse(w, http.StatusServiceUnavailable, "The store failed: "+plain(err.Error()))
	}
}

// inStores does something in the first store that has the record as it was shown.
func (p *Page) inStores(do func(admin.Store) error) error {
	open := p.Open()
	defer leave(open)
	var failed error = idempotency.ErrGone
	for _, store := range open {
		err := do(store)
		if err == nil {
			return nil
		}
		if !errors.Is(err, idempotency.ErrGone) {
			failed = err
		}
	}
	return failed
}

// secretCookie has the secret with which the tokens of a browser's forms are made.
const secretCookie = "dedup_dashboard"

// secretOf returns the browser's secret, and sets one if there is none. It belongs to the
// browser and not to the process, because a form can be sent to another replica.
func (p *Page) secretOf(w http.ResponseWriter, r *http.Request) string {
	if cookie, err := r.Cookie(secretCookie); err == nil && len(cookie.Value) >= 26 {
		return cookie.Value
	}
	secret := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: secretCookie, Value: secret, HttpOnly: true, Secure: p.HTTPS(r), SameSite: http.SameSiteStrictMode,
	})
	return secret
}

// tokenFor returns the token of a form.
func tokenFor(secret string, asked question) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%q", asked)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func validToken(r *http.Request, asked question, token string) bool {
	cookie, err := r.Cookie(secretCookie)
	return err == nil && len(cookie.Value) >= 26 && hmac.Equal([]byte(token), []byte(tokenFor(cookie.Value, asked)))
}
