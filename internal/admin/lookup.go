package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// mostIDs is how many delivery IDs one lookup takes, and MostFound how many records
	// it answers with: one ID may have a record on each of many routes.
	mostIDs   = 1000
	MostFound = 10_000
	// mostLookup is the size of its body: that of the longest IDs, escaped.
	mostLookup = 4 << 20
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
// have to answer: else nobody knows what is missing.
func (a *API) serveLookup(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost {
		return wrongMethod(w, r, "POST", "POST "+LookupPath)
	}
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	asked, err := parseLookup(http.MaxBytesReader(w, r.Body, mostLookup))
	if err != nil {
		return err
	}
	l := lookup{LookupRequest: asked, withBody: withBody, found: make(map[string]bool), seen: make(map[string]bool)}
	if err := a.lookUp(r.Context(), &l); err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, l.answer())
}

// lookUp leaves the stores before the answer is written. Where one cannot be asked, the
// problem has what the others have.
func (a *API) lookUp(ctx context.Context, l *lookup) error {
	open, err := a.enter()
	if err != nil {
		return err
	}
	defer leaveAll(open)
	ctx, cancel := context.WithTimeout(ctx, FindFor)
	defer cancel()
	unavailable := false
	for _, joined := range []bool{false, true} {
		ids := l.filters(joined)
		for i := 0; i < len(open) && len(ids) > 0; i++ {
			err := l.in(ctx, open[i], ids)
			if _, isProblem := errors.AsType[*Problem](err); isProblem {
				return err
			}
			if err != nil {
				l.unasked = append(l.unasked, Readiness{Store: open[i].Name(), Error: err.Error()})
				unavailable = unavailable || open[i].InUse()
			}
		}
		if len(l.unasked) > 0 {
			break // what is missing may be in a store that could not be asked
		}
	}
	if unavailable {
		p := unaskedProblem(l.unasked)
		p.Keys = l.keys
		return p
	}
	return nil
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
		return LookupRequest{}, wrongRequest("the body is larger than %d bytes; ask for fewer ids at a time", mostLookup)
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
	if len(asked.IDs) == 0 || len(asked.IDs) > mostIDs {
		return LookupRequest{}, wrongRequest("the body has %d ids; from 1 to %d are accepted", len(asked.IDs), mostIDs)
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

// lookup gathers records of delivery IDs.
type lookup struct {
	LookupRequest
	withBody bool // whether records have their responses, of those that are small and JSON
	keys     []Record
	found    map[string]bool // delivery IDs
	seen     map[string]bool // a store may list a key twice, and two IDs may name it

	unasked []Readiness
}

// filters returns what is still looked for: whole IDs, or those of which none was found, as
// parts that are joined by colons.
func (l *lookup) filters(joined bool) (filters []keyFilter) {
	for _, id := range l.IDs {
		if !l.found[id] && (!joined || strings.Contains(id, ":")) {
			filters = append(filters, keyFilter{provider: l.Provider, deliveryID: id, joined: joined})
		}
	}
	return filters
}

// in looks at all records of one store that can be of these IDs.
func (l *lookup) in(ctx context.Context, store Store, filters []keyFilter) error {
	sought := make(map[idempotency.KeyPrefix][]keyFilter)
	var of []idempotency.KeyPrefix
	for _, filter := range filters {
		for _, begins := range beginningsOf(store, filter.idSought()) {
			sought[begins] = append(sought[begins], filter)
			of = append(of, begins)
		}
	}
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, next, err := store.Find(ctx, of, cursor, listBatch)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		for _, listed := range page {
			shown := showListed(store.Name(), listed)
			joined := idempotency.Origin{DeliveryID: shown.DeliveryID, Parts: shown.Parts}.Joined()
			for _, filter := range sought[listed.Key.Prefix()] { // may be all IDs: they begin with the same part
				if filter.joined && filter.deliveryID != joined && shown.State != StateUnreadable {
					continue
				}
				if err := l.look(ctx, store, listed, shown, filter); err != nil {
					return err
				}
			}
		}
		if len(l.keys) > MostFound {
			return wrongRequest("these ids have more than %d records; ask for fewer, or page through one with GET %s?%s=", MostFound, ListPath, ParamDeliveryID)
		}
		cursor = next
	}
	return nil
}

// look takes a record whose key begins as those that are looked for.
func (l *lookup) look(ctx context.Context, store Store, listed idempotency.Listed, shown Record, filter keyFilter) error {
	if shown.State == StateUnreadable {
		shown.DeliveryID = filter.idSought()
	}
	if !filter.wants(shown, time.Time{}) {
		return nil
	}
	if name := store.Key() + " " + shown.Key; !l.seen[name] {
		if l.withBody && shown.State == string(idempotency.Complete) && listed.Record.LargeBody == 0 {
			response, err := store.Response(ctx, listed.Key, listed.Record)
			if err != nil {
				return err
			}
			if response.InlineJSON() != nil {
				shown.Response = showResponse(response)
			}
		}
		l.seen[name] = true
		l.keys = append(l.keys, shown)
	}
	l.found[filter.deliveryID] = true
	return nil
}

func (l *lookup) answer() LookupAnswer {
	answer := LookupAnswer{Keys: l.keys, Missing: []string{}, Unasked: l.unasked}
	if answer.Keys == nil {
		answer.Keys = []Record{}
	}
	for _, id := range l.IDs {
		if !l.found[id] {
			l.found[id] = true // one that is asked for twice is missing once
			answer.Missing = append(answer.Missing, id)
		}
	}
	return answer
}
