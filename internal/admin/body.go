package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// readBody reads the JSON object in a request's body, of up to max bytes, which has some of these
// members. accepted says what is accepted.
func readBody(w http.ResponseWriter, r *http.Request, maxBytes int64, into any, accepted string, members ...string) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err == nil {
		decoder.DisallowUnknownFields()
		err = decoder.Decode(into)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrongRequest("%s of the body has a value of the wrong type, %s; %s", placeOf(wrong), wrong.Value, accepted)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return wrongRequest("the body is larger than %d bytes; %s", maxBytes, accepted)
	}
	if err != nil {
		return wrongRequest("the body cannot be read: %w; %s", err, accepted)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return wrongRequest("the body has more than one value; %s", accepted)
	}
	if err := checkMembers(text, members); errors.Is(err, jsontext.ErrDuplicateName) {
		return wrongRequest("the body has a member twice; %s", accepted)
	} else if err != nil {
		return wrongRequest("the body cannot be read: %w; %s", err, accepted)
	}
	return nil
}

// checkMembers finds what Go lets through, and what would be another request than the one
// that was made. Of two members with the same name it takes the last, and what the first has
// would be ignored; so would it where only the letters' case differs. What is no Unicode it
// changes.
func checkMembers(object []byte, members []string) error {
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
		if text := name.String(); !slices.Contains(members, text) {
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
