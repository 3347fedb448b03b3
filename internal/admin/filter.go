package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The parameters of a list, in the query.
const (
	ParamState       = "state"
	ParamProvider    = "provider"
	ParamDeliveryID  = "delivery_id"
	ParamExecutionID = "execution_id"
	ParamPath        = "path"
	ParamStatus      = "status"
	ParamOlderThan   = "older_than"
	ParamNewerThan   = "newer_than"
	ParamLimit       = "limit"
	ParamOrder       = "order"
	ParamCursor      = "cursor"
)

// OrderStore selects the order of the stores. By default the newest claim comes first.
const OrderStore = "store"

var listParameters = []string{
	ParamState, ParamProvider, ParamDeliveryID, ParamExecutionID, ParamPath, ParamStatus, ParamOlderThan, ParamNewerThan, ParamLimit, ParamOrder, ParamCursor,
}

// StateUnreadable is the state of an unreadable record.
const StateUnreadable = string(idempotency.Unreadable)

// States are the states of records as operators see them.
var States = []string{
	string(idempotency.InFlight), StateLapsed, string(idempotency.Complete),
	string(idempotency.Released), string(idempotency.Held), StateUnreadable,
}

const (
	// DefaultKeys and MaxKeys are the default and the maximum number of records of a page.
	DefaultKeys = 100
	MaxKeys     = 1000
)

// keyFilter selects records. An empty field matches all.
type keyFilter struct {
	states               []string
	provider             string
	executionID, path    string
	status               StatusFilter
	olderThan, newerThan time.Duration // since the claim
	ofID                 bool          // only records of some delivery IDs are read
}

// filterOf parses the parameters of a list except its cursor.
func (a *API) filterOf(query url.Values) (filter keyFilter, limit int, err error) {
	filter = keyFilter{
		states: query[ParamState], provider: query.Get(ParamProvider),
		executionID: query.Get(ParamExecutionID), path: query.Get(ParamPath), status: StatusFilter(query.Get(ParamStatus)), ofID: query.Get(ParamDeliveryID) != "",
	}
	for _, state := range filter.states {
		if !slices.Contains(States, state) {
			return keyFilter{}, 0, wrongState(state)
		}
	}
	if err = filter.status.Check(); err != nil {
		return keyFilter{}, 0, wrongRequest("%s=%w", ParamStatus, err)
	}
	if filter.olderThan, err = a.durationIn(query, ParamOlderThan); err != nil {
		return keyFilter{}, 0, err
	}
	if filter.newerThan, err = a.durationIn(query, ParamNewerThan); err != nil {
		return keyFilter{}, 0, err
	}
	if filter.newerThan > 0 && filter.newerThan <= filter.olderThan {
		return keyFilter{}, 0, wrongRequest("no key is older than %s and newer than %s; %s must be the longer one",
			filter.olderThan, filter.newerThan, ParamNewerThan)
	}
	limit = DefaultKeys
	if text := query.Get(ParamLimit); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > MaxKeys {
			return keyFilter{}, 0, wrongRequest("limit=%q is not accepted; it is a number from 1 to %d", text, MaxKeys)
		}
	}
	return filter, limit, nil
}

// seenIn parses the precondition of a change: the state and run that the operator has seen.
func seenIn(r *http.Request) (idempotency.Precondition, error) {
	query, err := queryOf(r, ParamExecutionID, ParamState)
	if err != nil {
		return idempotency.Precondition{}, err
	}
	states := query[ParamState]
	switch {
	case len(states) > 1:
		return idempotency.Precondition{}, wrongRequest("%s is there %d times; a key is in one state", ParamState, len(states))
	case len(states) == 1 && !slices.Contains(States, states[0]):
		return idempotency.Precondition{}, wrongState(states[0])
	}
	return idempotency.Precondition{ExecutionID: query.Get(ParamExecutionID), State: idempotency.State(query.Get(ParamState))}, nil
}

func wrongState(text string) error {
	return wrongRequest("state=%q is not a state; accepted are %s", text, strings.Join(States, ", "))
}

func (a *API) durationIn(query url.Values, name string) (time.Duration, error) {
	text := query.Get(name)
	if text == "" {
		return 0, nil
	}
	d, err := a.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, wrongRequest("%s=%q is not accepted; it is a duration of more than 0 and up to 106751d, such as 90s, 15m or 7d", name, text)
	}
	return d, nil
}

// IsOf reports whether a provider matches a filter. The filters api and custom, the labels of metrics,
// match keys without a provider.
func IsOf(provider, filter string) bool {
	return filter == "" || provider == filter || provider == "" && (filter == "api" || filter == "custom")
}

// StatusFilter matches the status of the last answer: "404" one, "4xx" a class, and "" any or none.
type StatusFilter string

var statusFilters = regexp.MustCompile("^([1-5]([0-9][0-9]|xx))?$")

// Check returns an error if the filter matches no status.
func (f StatusFilter) Check() error {
	if !statusFilters.MatchString(string(f)) {
		return fmt.Errorf("%q is not accepted; it is a status such as 422, or a class such as 4xx", string(f))
	}
	return nil
}

// Matches reports whether the filter matches a status, 0 for none.
func (f StatusFilter) Matches(status int) bool {
	text := strconv.Itoa(status)
	return f == "" || string(f) == text || string(f) == text[:1]+"xx"
}

// wants reports whether the filter matches a record. Of an unreadable record only the state is known: if
// its key was found by a delivery ID, it matches, because nothing excludes it.
func (f keyFilter) wants(r *Found) bool {
	if len(f.states) > 0 && !slices.Contains(f.states, r.State) {
		return false
	}
	if r.State == StateUnreadable {
		return f.ofID || f.provider == "" && f.executionID == "" && f.path == "" && f.status == "" && f.olderThan == 0 && f.newerThan == 0
	}
	age := r.Now.Sub(r.Record.Claimed)
	return IsOf(r.Record.Provider, f.provider) &&
		(f.executionID == "" || r.Record.ExecutionID == f.executionID) &&
		(f.path == "" || r.Record.Path == f.path[:min(len(f.path), idempotency.MaxPath)]) &&
		f.status.Matches(r.Record.Status) &&
		(f.olderThan == 0 || age > f.olderThan) &&
		(f.newerThan == 0 || age < f.newerThan)
}
