package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// Problem is why an operator's request was not answered (RFC 9457).
type Problem struct {
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Code   engine.Reason `json:"code,omitempty"`
	// Stores has the readiness of each store, if one was not ready.
	Stores []Readiness `json:"stores,omitempty"`
	// Outcomes has the outcome in each store, if several stores have the key.
	Outcomes []Outcome `json:"outcomes,omitempty"`
	// Keys are the records of the stores that answered.
	Keys []Record `json:"keys,omitempty"`
}

const (
	// ReasonChanged is the code for a key that has changed since the operator looked.
	ReasonChanged engine.Reason = "changed"
	// ReasonComplete is the code for a key that already has a response.
	ReasonComplete engine.Reason = "complete"
)

// Error implements error.
func (p *Problem) Error() string { return p.Title + ": " + p.Detail }

// problems are the statuses of the admin API's problems. Some have the code that
// clients get for the same reason.
var problems = map[int]struct {
	title string
	code  engine.Reason
}{
	http.StatusBadRequest:          {"Invalid request", ""},
	http.StatusNotFound:            {"There is no such key", ""},
	http.StatusMethodNotAllowed:    {"Method not allowed", ""},
	http.StatusConflict:            {"A run is in flight", engine.ReasonInFlight},
	http.StatusInternalServerError: {"The record cannot be read", engine.ReasonUnreadable},
	http.StatusServiceUnavailable:  {"A store cannot be asked", engine.ReasonUnavailable},
}

// kindOf returns a problem with this status and without detail.
func kindOf(status int) Problem {
	kind := problems[status]
	return Problem{Title: kind.title, Status: status, Code: kind.code}
}

// problemOf returns a problem with this status and the error as its detail.
func problemOf(status int, err error) error {
	p := kindOf(status)
	p.Detail = err.Error()
	return &p
}

// wrongRequest returns a problem for a mistake in the request.
func wrongRequest(format string, arguments ...any) error {
	return problemOf(http.StatusBadRequest, fmt.Errorf(format, arguments...))
}

// wrongMethod returns a problem for a method that the path does not accept. allowed is the value of Allow
// (RFC 9110, section 15.5.6), accepted describes it.
func wrongMethod(w http.ResponseWriter, r *http.Request, allowed, accepted string) error {
	w.Header().Set("Allow", allowed)
	return problemOf(http.StatusMethodNotAllowed, fmt.Errorf("%s %s is not accepted; use %s", r.Method, r.URL.Path, accepted))
}

// withProblems writes a handler's problems as responses. Other errors are those of writing a response.
func withProblems(serve func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := serve(w, r)
		if p, ok := errors.AsType[*Problem](err); ok {
			return answerAs(w, p.Status, "application/problem+json", p)
		}
		return err
	}
}

func answerJSON(w http.ResponseWriter, value any) error {
	return answerAs(w, http.StatusOK, "application/json", value)
}

func answerAs(w http.ResponseWriter, status int, contentType string, value any) error {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // IDs stay readable
	return encoder.Encode(value)
}

// queryOf returns the parameters of a request, and refuses unknown ones: a misspelt
// filter would list everything. An empty one counts as absent.
func queryOf(r *http.Request, accepted ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, wrongRequest("the query %q cannot be read: %w", r.URL.RawQuery, err)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(accepted, name):
			return nil, wrongRequest("the parameter %q is unknown; accepted are %s", name, cmp.Or(strings.Join(accepted, ", "), "none"))
		case len(values) > 1 && name != ParamState:
			return nil, wrongRequest("the parameter %s is there %d times; only %s may repeat", name, len(values), ParamState)
		case slices.Contains(values, "") && r.Method != http.MethodGet: // it should have guarded a change
			return nil, wrongRequest("the parameter %s is empty; leave it out, or give it a value", name)
		}
		query[name] = slices.DeleteFunc(values, func(value string) bool { return value == "" })
	}
	return query, nil
}

// wantsBody reports whether the request asks for kept responses.
func wantsBody(r *http.Request) (bool, error) {
	query, err := queryOf(r, "body")
	if err != nil {
		return false, err
	}
	switch text := query.Get("body"); text {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, wrongRequest("body=%q is not accepted; it is true or false", text)
	}
}
