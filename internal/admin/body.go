package admin

import (
	"errors"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
)

// readBody reads the JSON object in a request's body, of up to maxBytes. accepted describes it, for
// errors. encoding/json would ignore the case of names, take the last of two members with one name, and
// replace invalid UTF-8: the operator would get the answer to another request.
func readBody(w http.ResponseWriter, r *http.Request, maxBytes int64, into any, accepted string) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	if err == nil {
		err = json.Unmarshal(text, into, json.RejectUnknownMembers(true))
	}
	wrong, semantic := errors.AsType[*json.SemanticError](err)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		return nil
	case tooLarge:
		return wrongRequest("the body is larger than %d bytes; %s", maxBytes, accepted)
	case errors.Is(err, json.ErrUnknownName):
		return wrongRequest("the member %q is unknown; %s", wrong.JSONPointer.LastToken(), accepted)
	case semantic && wrong.JSONPointer != "":
		return wrongRequest("the member %q has a value of the wrong type; %s", wrong.JSONPointer[1:], accepted)
	case semantic:
		return wrongRequest("the body is not an object; %s", accepted)
	default:
		return wrongRequest("the body cannot be read: %w; %s", err, accepted)
	}
}
