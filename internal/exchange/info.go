package exchange

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// PlaceholderPrefix is what the names of our placeholders begin with.
const PlaceholderPrefix = "http.dedup."

// LogPrefix is what the names of our fields in the access log begin with.
const LogPrefix = "dedup_"

// requestInfo is what is known of a request and its key, for placeholders, the access log and
// traces. If several dedup handlers see one request, they share it, and the last one that found a
// key wins. A value that a handler does not know stays as it was.
type requestInfo struct {
	outcome              Outcome
	key                  idempotency.Key
	provider, deliveryID string
	executionID          string
	attempt              int
	logged               bool // the access log has it

	members map[string]member // of the body, by JSON pointer, that were read with the key
	// exchange is that of the last handler of ours, with the other members and the first run;
	// nil while it looks for its key.
	exchange *exchange
}

// infoName is the placeholder that has a request's info. No configuration can contain it. It is
// among the placeholders, which have a lock, and not among the request's variables, which a dial
// that a proxy in front has abandoned may still read.
const infoName = "\x00caddy-dedup"

// infoOf returns what is known of a request so far, and adds our placeholders to it. Those
// without a value are empty: Caddy leaves the text of an unknown one as it is, and
// `{http.dedup.key}` itself, sent to a service, would be one key for all requests without one.
func infoOf(r *http.Request) *requestInfo {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return new(requestInfo)
	}
	known, _ := repl.Get(infoName)
	if s, ok := known.(*requestInfo); ok {
		return s
	}
	s := new(requestInfo)
	repl.Map(func(name string) (any, bool) {
		if name == infoName {
			return s, true
		}
		name, ours := strings.CutPrefix(name, PlaceholderPrefix)
		if !ours {
			return nil, false
		}
		return s.value(name)
	})
	return s
}

// InfoFields are the names of placeholders, fields of the access log and attributes of spans,
// without their prefixes.
var InfoFields = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt"}

// value returns a value, "" for none, and whether the name is one of [InfoFields].
func (s *requestInfo) value(name string) (value any, ours bool) {
	switch name {
	case "outcome":
		return string(s.outcome), true
	case "key":
		if s.key == (idempotency.Key{}) {
			return "", true
		}
		return s.key.String(), true
	case "provider":
		return s.provider, true
	case "delivery_id":
		return s.deliveryID, true
	case "execution_id":
		return s.executionID, true
	case "attempt":
		if s.attempt == 0 {
			return "", true
		}
		return s.attempt, true
	}
	if pointer, is := strings.CutPrefix(name, membersPrefix); is {
		return s.member(unescaped(pointer)), true
	}
	if name, is := strings.CutPrefix(name, "first."); is {
		return s.exchange.first(name)
	}
	return nil, false
}

// MarshalLogObject implements [zapcore.ObjectMarshaler], for the access log.
func (s *requestInfo) MarshalLogObject(to zapcore.ObjectEncoder) error {
	for _, name := range InfoFields {
		switch value, _ := s.value(name); value := value.(type) {
		case string:
			if value != "" {
				to.AddString(LogPrefix+name, value)
			}
		case int:
			to.AddInt(LogPrefix+name, value)
		}
	}
	return nil
}
