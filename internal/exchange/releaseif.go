package exchange

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// ReleaseIf is a member of the JSON of a response by which a service says that the request failed,
// although the status says that it did not.
type ReleaseIf struct {
	Pointer string   // RFC 6901
	Values  []string // that the member has if the request failed; none for any but null, false, 0, "", [] and {}
}

// maxFailureBody is the size in bytes up to which a response is read for [Config.ReleaseIf].
const maxFailureBody = 1 << 20

var errNoParseRoom = errors.New("there was no room within `buffered` to parse it")

// saidFailure returns an error that names the first [ReleaseIf] that the response of a run meets, nil for
// none. A response that its status releases is not read.
func (e *execution) saidFailure(end idempotency.End) error {
	if !e.readsFor(end) {
		return nil
	}
	return e.failureIn(end.Response.Body, &e.response.allowance, e.response.takeRoom)
}

// saidFailure is [execution.saidFailure] for a response that was observed. It does not wait for room.
func (t *tap) saidFailure(end idempotency.End) error {
	if !t.readsFor(end) {
		return nil
	}
	body, err := t.response.tee.joined()
	if err != nil {
		t.logUnread(err)
		return nil
	}
	room := &t.response.tee.allowance
	return t.failureIn(body, room, func(n int) bool { return room.Admit(n) == nil })
}

// readsFor reports whether the response of a run is read.
func (x *exchange) readsFor(end idempotency.End) bool {
	return len(x.ReleaseIf) > 0 && end.How == idempotency.Answered && end.Response != nil && !end.Response.Omitted &&
		!x.request.Policy.Releases(end)
}

// failureIn parses a body, and takes room for that. Without room the response is kept: to run again what
// was executed would be worse than to keep a failure, which a log line names.
func (x *exchange) failureIn(body []byte, room *Allowance, take func(bytes int) bool) error {
	if len(body) > maxFailureBody {
		return nil
	}
	var taken int64
	defer func() { room.Release(taken) }()
	reserve := func(n int) error {
		if len(body) <= smallBody {
			room.Count(n)
		} else if !take(n) {
			return errNoParseRoom
		}
		taken += int64(n)
		return nil
	}
	read := func() ([]byte, error) { return body, nil }
	doc, err := delivery.Request{Body: read, Reserve: reserve}.Remember().Document()
	if err != nil {
		x.logUnread(err)
	}
	if doc == nil { // it is not JSON
		return nil
	}
	for _, c := range x.ReleaseIf {
		member, ok := doc.Root().At(c.Pointer)
		if !ok {
			continue
		}
		if len(c.Values) == 0 {
			if !member.IsZero() {
				return fmt.Errorf("the response says that the request failed: release_if %s", c.Pointer)
			}
			continue
		}
		// The text of an object or array is "", which is none of the values.
		if value, err := member.Text(); err == nil && slices.Contains(c.Values, value) {
			return fmt.Errorf("the response says that the request failed: release_if %s %s", c.Pointer, value)
		}
	}
	return nil
}

func (x *exchange) logUnread(err error) {
	x.Logger.Warn("release_if: a response was not read, and is kept", zap.Inline(x), zap.NamedError("reason", err))
}
