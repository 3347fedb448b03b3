package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// maxIDs is the maximum number of delivery IDs in one lookup, MostFound that of the records in
	// its answer: one ID may have a record on each of many routes.
	maxIDs    = 1000
	MostFound = 10_000
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
	// Unasked are stores that could not be asked, and that no configuration uses any more:
	// they may have keys that are missing here.
	Unasked []Readiness `json:"unasked,omitempty"`
}

// serveLookup answers with the records of many delivery IDs. All stores that are in use
// have to answer: otherwise it is unknown which IDs have no record.
func (a *API) serveLookup(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return wrongMethod(w, r, "POST", "POST "+LookupPath)
	}
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	asked, err := parseLookup(http.MaxBytesReader(w, r.Body, maxLookup))
	if err != nil {
		return err
	}
	answer, err := a.lookUp(r.Context(), asked, withBody)
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, answer)
}

// lookUp leaves the stores before the answer is written. Where one cannot be asked, the
// problem has what the others have.
func (a *API) lookUp(ctx context.Context, asked LookupRequest, withBody bool) (*LookupAnswer, error) {
	open, err := a.enter()
	if err != nil {
		return nil, err
	}
	defer leaveAll(open)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := 0
	s := Search{IDs: asked.IDs, Max: MostFound, Timeout: FindTimeout, Wants: func(f *Found) bool {
		if f.State != StateUnreadable && !IsOf(f.Record.Provider, asked.Provider) {
			return false
		}
		if found++; found > MostFound {
			cancel()
		}
		return true
	}}
	s.Run(ctx, open)
	if found > MostFound {
		return nil, wrongRequest("these ids have more than %d records; ask for fewer, or page through one with GET %s?%s=", MostFound, ListPath, ParamDeliveryID)
	}
	for _, store := range s.More {
		s.Failed, s.unavailable = append(s.Failed, Readiness{Store: store, Error: fmt.Sprintf("not all of its keys were read within %s", FindTimeout)}), true
	}
	answer := &LookupAnswer{Keys: showAll(s.Result.Found), Missing: append([]string{}, s.Missing...), Unasked: s.Failed}
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
		p := unaskedProblem(s.Failed)
		p.Keys = answer.Keys
		return nil, p
	}
	return answer, nil
}

func parseLookup(body io.Reader) (LookupRequest, error) {
	const accepted = `it is {"provider": "github", "ids": ["…"]}, the provider optional`
	var asked LookupRequest
	text, err := io.ReadAll(body)
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err == nil {
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&asked)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return LookupRequest{}, wrongRequest("%s of the body has a value of the wrong type, %s; %s", placeOf(wrong), wrong.Value, accepted)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return LookupRequest{}, wrongRequest("the body is larger than %d bytes; ask for fewer ids at a time", maxLookup)
	}
	if err != nil {
		return LookupRequest{}, wrongRequest("the body cannot be read: %w; %s", err, accepted)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return LookupRequest{}, wrongRequest("the body has more than one value; %s", accepted)
	}
	if err := checkMembers(text); errors.Is(err, jsontext.ErrDuplicateName) {
		return LookupRequest{}, wrongRequest("the body has a member twice; %s", accepted)
	} else if err != nil {
		return LookupRequest{}, wrongRequest("the body cannot be read: %w; %s", err, accepted)
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

// checkMembers finds what Go lets through, and what would be another question than the one
// that was asked. Of two members with the same name it takes the last, and the IDs of the
// first would be neither found nor missing; so would they where only the letters' case
// differs. What is no Unicode it changes, and an ID would be missing that nobody named.
func checkMembers(object []byte) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(object))
	begin, err := decoder.ReadToken()
	if err != nil || begin.Kind() != '{' {
		return err
	}
	for decoder.PeekKind() == '"' {
		name, err := decoder.ReadToken()
		if err != nil {
			return err
		}
		if text := name.String(); text != "provider" && text != "ids" {
			return fmt.Errorf("the member %q is unknown", text)
		}
		if err := decoder.SkipValue(); err != nil {
			return err
		}
	}
	_, err = decoder.ReadToken()
	return err
}

// placeOf says where a value of the wrong type stands.
func placeOf(wrong *json.UnmarshalTypeError) string {
	if wrong.Field == "" {
		return "the whole"
	}
	return fmt.Sprintf("the member %q", wrong.Field)
}
