package dashboard

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// act is something that an operator can do about a key.
type act struct {
	Verb, Title, Text string
	done              string // [Freed] or [Forgotten]
	do                func(Store, context.Context, idempotency.Key, idempotency.Seen) error
}

var acts = map[string]act{
	"free": {
		Verb: "Free the key", Title: "Free this key?", done: Freed,
		Text: "Its next request runs. The record keeps its history, and the allowed attempts begin anew. If the service has executed the request already, it executes it again.",
		do:   Store.Free,
	},
	"forget": {
		Verb: "Forget the key", Title: "Forget this key?", done: Forgotten,
		Text: "The record and the kept response are removed. The next request with the key runs as if none had come before.",
		do:   Store.Forget,
	},
}

// mostForm is the size of a form that is sent, in bytes.
const mostForm = 4 << 10

// act does what an operator has confirmed. A request is refused that comes from another
// site, by what browsers say of it, and one whose form is not from this page: its token
// belongs to a cookie that no other site can read.
func (p *Page) act(w http.ResponseWriter, r *http.Request) {
	if err := p.guard.Check(r); err != nil {
		p.refuse(w, r, http.StatusForbidden, "The request came from another site. Nothing was done.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		p.refuse(w, r, http.StatusBadRequest, "The form cannot be read. Nothing was done.")
		return
	}
	do := r.PostForm.Get("do")
	act, known := acts[do]
	key, err := idempotency.ParseKey(r.PostForm.Get("key"))
	execution, noExecution := base64.RawURLEncoding.DecodeString(r.PostForm.Get("execution"))
	asked := question{do: do, key: key.String(), in: r.PostForm.Get("in"), seen: idempotency.Seen{
		ExecutionID: string(execution), State: idempotency.State(r.PostForm.Get("state")),
	}}
	if !known || err != nil || noExecution != nil {
		p.refuse(w, r, http.StatusBadRequest, "The form names no key, or nothing that can be done about one. Nothing was done.")
		return
	}
	if !validToken(r, asked, r.PostForm.Get("token")) {
		p.refuse(w, r, http.StatusForbidden, "The form is not from this page, or its cookie is gone. Nothing was done: go back, and confirm again.")
		return
	}
	p.carryOut(w, r, act, key, asked)
}

func (p *Page) carryOut(w http.ResponseWriter, r *http.Request, act act, key idempotency.Key, asked question) {
	shown := asked.seen
	a := addressOf(r.URL.Query())
	a.Q, a.Key = "", asked.key
	several, err := p.operate(r, act, key, asked)
	if several {
		a.In = asked.in
	}
	var unreadable *idempotency.UnreadableError
	changed, hasChanged := errors.AsType[idempotency.ChangedError](err)
	switch {
	case err == nil:
	case hasChanged:
		p.ones.forget() // they are of before
		v := &view{now: time.Now(), address: address{Key: asked.key, In: a.In}}
		v.problem(http.StatusConflict, "The key has changed since: it was "+inWords(shown.State)+", and is "+inWords(changed.Now.State)+" now"+
			afterwards(shown, changed.Now)+". Nothing was done: look at it again, and decide anew.")
		p.render(w, r, "refusal", v)
		return
	case errors.Is(err, errNone):
		p.refuse(w, r, http.StatusNotFound, "No store has a record of this key any more. Nothing was done.")
		return
	case errors.Is(err, idempotency.ErrInFlight):
		p.refuse(w, r, http.StatusConflict, "A run is in flight under the key. Nothing was done: wait until it has ended, or its lease has lapsed.")
		return
	case errors.As(err, &unreadable):
		p.refuse(w, r, http.StatusInternalServerError, "The record cannot be read, and can only be forgotten: "+plain(err.Error()))
		return
	default:
		p.refuse(w, r, http.StatusServiceUnavailable, "The store did not say that it was done: "+plain(err.Error()))
		return
	}
	p.Journal.Add(Note{At: time.Now(), Key: key, What: act.done, Who: p.Who(r)})
	p.windows.forget()
	p.searches.forget()
	p.ones.forget()
	// A path would be that in front of which a proxy may have taken away its beginning.
	w.Header().Set("Location", a.With("done", act.done)+"#said")
	w.WriteHeader(http.StatusSeeOther)
}

// operate does something about a key, in the store in which it was shown, and reports
// whether there are others. What was begun is finished, and noted, also if the operator's
// browser goes away.
func (p *Page) operate(r *http.Request, act act, key idempotency.Key, asked question) (several bool, err error) {
	open := p.Open()
	defer leave(open)
	return len(open) > 1, operate(context.WithoutCancel(r.Context()), only(open, asked.in), key, func(store Store, ctx context.Context, key idempotency.Key) error {
		return act.do(store, ctx, key, asked.seen)
	})
}

func inWords(state idempotency.State) string { return cmp.Or(stateWords[string(state)], string(state)) }

// afterwards says that a key has run again, where its state alone does not.
func afterwards(shown, now idempotency.Seen) string {
	if shown.State == now.State {
		return " after another run"
	}
	return ""
}

// secretCookie has what the tokens of a browser's forms are made with.
const secretCookie = "dedup_dashboard"

// secretOf returns the browser's secret, and gives it one where it has none. It is the
// browser's and not the process's: a form can be sent to another replica.
func (p *Page) secretOf(w http.ResponseWriter, r *http.Request) string {
	if cookie, err := r.Cookie(secretCookie); err == nil && len(cookie.Value) >= 26 {
		return cookie.Value
	}
	secret := rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: secretCookie, Value: secret, HttpOnly: true, Secure: p.Encrypted(r), SameSite: http.SameSiteStrictMode,
	})
	return secret
}

// question is what a form asks: whether to do something to a key, as it was shown.
type question struct {
	do, key, in string
	seen        idempotency.Seen
}

// tokenFor returns the token of a form that asks one question.
func tokenFor(secret string, asked question) string {
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%q %q %q %q %q", asked.do, asked.key, asked.in, asked.seen.State, asked.seen.ExecutionID)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func validToken(r *http.Request, asked question, token string) bool {
	cookie, err := r.Cookie(secretCookie)
	return err == nil && len(cookie.Value) >= 26 && hmac.Equal([]byte(token), []byte(tokenFor(cookie.Value, asked)))
}

// address is what the page shows, as its query says it.
type address struct {
	Q, Key, In, State, Provider, Page, From, Range string
}

// mostQuery is how long a text to look for may be, in bytes: it is in all links.
const mostQuery = 4096

func addressOf(query url.Values) address {
	get := func(name string) string {
		text := query.Get(name)
		return text[:min(len(text), mostQuery)]
	}
	return address{Q: query.Get("q"), Key: get("key"), In: get("in"), State: get("state"), Provider: get("provider"), Page: get("page"), From: get("from"), Range: get("range")}
}

// With returns the link to this address with some parts changed: names and values.
func (a address) With(pairs ...string) string {
	query := make(url.Values)
	set := func(name, value string) {
		query.Del(name)
		if value != "" {
			query.Set(name, value)
		}
	}
	for _, part := range [][2]string{{"q", a.Q}, {"key", a.Key}, {"in", a.In}, {"state", a.State}, {"provider", a.Provider}, {"page", a.Page}, {"from", a.From}, {"range", a.Range}} {
		set(part[0], part[1])
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		set(pairs[i], pairs[i+1])
	}
	if !query.Has("key") {
		query.Del("in") // that is where the key is
	}
	return "?" + query.Encode()
}
