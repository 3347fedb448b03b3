package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// maxIDs is the maximum number of delivery IDs in one lookup, MaxFound that of the records in
	// its answer: an ID may have a record for each route.
	maxIDs   = 1000
	MaxFound = 10_000
	// maxLookup is the maximum size of its body, in bytes: that of the longest IDs, escaped.
	maxLookup = 4 << 20
)

// LookupRequest asks for the records of many delivery IDs.
type LookupRequest struct {
	Provider string   `json:"provider,omitempty"`
	IDs      []string `json:"ids"`
}

// LookupAnswer has the records, and the IDs of which there are none.
type LookupAnswer struct {
	Keys    []Record `json:"keys"`
	Missing []string `json:"missing"`
	// Unavailable are stores that failed and that no configuration uses any more: they may have keys that
	// are missing here.
	Unavailable []Readiness `json:"unavailable,omitempty"`
}

// serveLookup answers with the records of many delivery IDs. All stores in use
// must answer: otherwise it is unknown which IDs have no record.
func (a *API) serveLookup(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return wrongMethod(w, r, "POST", "POST "+LookupPath)
	}
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	asked, err := parseLookup(w, r)
	if err != nil {
		return err
	}
	answer, err := a.lookUp(r.Context(), asked, withBody)
	if err != nil {
		return err
	}
	return answerJSON(w, answer)
}

// lookUp leaves the stores before the answer is written. If a store in use fails, the error is a problem
// with the records of the others.
func (a *API) lookUp(ctx context.Context, asked LookupRequest, withBody bool) (*LookupAnswer, error) {
	open, err := a.enter()
	if err != nil {
		return nil, err
	}
	defer LeaveAll(open)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := 0
	s := Search{IDs: asked.IDs, Max: MaxFound, Timeout: FindTimeout, Wants: func(f *Found) bool {
		if f.State != StateUnreadable && !IsOf(f.Record.Provider, asked.Provider) {
			return false
		}
		if found++; found > MaxFound {
			cancel()
		}
		return true
	}}
	s.Run(ctx, open)
	if found > MaxFound {
		return nil, wrongRequest("these ids have more than %d records; ask for fewer, or page through one with GET %s?%s=", MaxFound, ListPath, ParamDeliveryID)
	}
	for _, store := range s.More {
		s.Failed, s.unavailable = append(s.Failed, Readiness{Store: store, Error: fmt.Sprintf("not all of its keys were read within %s", FindTimeout)}), true
	}
	answer := &LookupAnswer{Keys: showAll(s.Result.Found), Missing: append([]string{}, s.Missing...), Unavailable: s.Failed}
	for i, f := range s.Result.Found {
		if withBody && f.State == string(idempotency.Complete) && f.Record.LargeBody == 0 {
			response, err := f.Store.Response(ctx, f.Key, f.Record)
			if err != nil {
				s.fail(f.Store, err)
				break
			}
			if response.InlineJSON() != nil {
				answer.Keys[i].Response = showResponse(response)
			}
		}
	}
	if s.unavailable {
		p := unavailableProblem(s.Failed)
		p.Keys = answer.Keys
		return nil, p
	}
	return answer, nil
}

func parseLookup(w http.ResponseWriter, r *http.Request) (asked LookupRequest, err error) {
	const accepted = `it is {"provider": "github", "ids": ["…"]}, the provider optional`
	if err := readBody(w, r, maxLookup, &asked, accepted); err != nil {
		return LookupRequest{}, err
	}
	if len(asked.IDs) == 0 || len(asked.IDs) > maxIDs {
		return LookupRequest{}, wrongRequest("the body has %d ids; from 1 to %d are accepted", len(asked.IDs), maxIDs)
	}
	for i, id := range asked.IDs {
		if id == "" {
			return LookupRequest{}, wrongRequest("id %d of the body is empty; a delivery ID has at least 1 character", i+1)
		}
	}
	return asked, nil
}
