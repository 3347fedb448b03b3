package report

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// PlaceholderPrefix is the prefix of our placeholders.
	PlaceholderPrefix = "http.dedup."
	// MembersPrefix precedes the JSON pointer in the name of a placeholder for a member of JSON.
	MembersPrefix = "json."
	// LogPrefix is the prefix of our fields in the access log.
	LogPrefix = "dedup_"
)

// Info is what is known of a request and its key, for placeholders, the access log and traces. If several
// dedup handlers see one request, they share it, and the last one that found a key wins. A value that this
// one does not know stays as it was.
type Info struct {
	outcome              Outcome
	key                  idempotency.Key
	provider, deliveryID string
	executionID          string
	attempt              int
	differs              bool // the request is a duplicate whose body differs from the first
	logged               bool // it was added to the access log

	read    map[string]Member // members of the body that were read with a key, by JSON pointer
	members Members
	first   *FirstRun // nil for none
}

// Member is a member of a request's body.
type Member struct {
	Text string
	Err  error // why it cannot be part of a key or a scope
}

// Remember keeps a member that was read with a key.
func (s *Info) Remember(pointer string, m Member) {
	if s.read == nil {
		s.read = make(map[string]Member)
	}
	s.read[pointer] = m
}

// Remembered returns a member that was read with a key, and whether it was.
func (s *Info) Remembered(pointer string) (m Member, read bool) {
	m, read = s.read[pointer]
	return m, read
}

// Members finds members of a request's body.
type Members interface {
	// Member returns the text of a member by its JSON pointer, "" for none.
	Member(pointer string) string
}

// SetMembers sets what finds the members of the body from now on.
func (s *Info) SetMembers(m Members) { s.members = m }

// SetFirst sets the first run from now on; nil for none.
func (s *Info) SetFirst(f *FirstRun) { s.first = f }

// Key returns the key that the last handler found.
func (s *Info) Key() idempotency.Key { return s.key }

// Quiet keeps the info out of the access log.
func (s *Info) Quiet() { s.logged = true }

// Show reports to a request what a copy of it has had reported.
func (s *Info) Show(to *Report, of *Report) {
	to.key, to.found, to.counted = of.key, of.found, true
	to.info.differs = s.differs
	to.Set(of.outcome, s.executionID, s.attempt)
}

// infoName is the name of a placeholder whose value is the request's info. No configuration can
// contain it. Placeholders have a lock. The request's variables have none, and a dial that a proxy
// in front has abandoned may still read them.
const infoName = "\x00caddy-dedup"

// InfoOf returns the info of a request, and adds our placeholders to the request. A placeholder
// without a value is empty. Caddy leaves an unknown one as it is, and a service that gets the text
// `{http.dedup.key}` would take it for one key of many requests.
func InfoOf(r *http.Request) *Info {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return new(Info)
	}
	known, _ := repl.Get(infoName)
	if s, ok := known.(*Info); ok {
		return s
	}
	s := new(Info)
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
var InfoFields = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt", "differs"}

// value returns the value of a placeholder, "" for none, and whether the placeholder is ours.
func (s *Info) value(name string) (value any, ours bool) {
	switch name {
	case "outcome":
		return string(s.outcome), true
	case "key":
		return keyText(s.key), true
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
	case "differs":
		if !s.differs {
			return "", true
		}
		return "true", true
	}
	if pointer, is := strings.CutPrefix(name, MembersPrefix); is {
		if s.members == nil {
			return "", true
		}
		return s.members.Member(Unescaped(pointer)), true
	}
	if name, is := strings.CutPrefix(name, "first."); is && isFirst(name) {
		if s.first == nil {
			return "", true
		}
		return s.first.value(name), true
	}
	return nil, false
}

func isFirst(name string) bool {
	return name == "status" || name == "execution_id" || strings.HasPrefix(name, "header.") || strings.HasPrefix(name, MembersPrefix)
}

// Unescaped returns the JSON pointer in the name of a placeholder, where a closing brace is escaped.
func Unescaped(pointer string) string { return strings.ReplaceAll(pointer, `\}`, "}") }

// MarshalLogObject implements [zapcore.ObjectMarshaler], for the access log.
func (s *Info) MarshalLogObject(to zapcore.ObjectEncoder) error {
	for name, value := range s.known {
		zap.Any(LogPrefix+name, value).AddTo(to)
	}
	return nil
}

// known yields those of [InfoFields] that have a value, which is a string or an int.
func (s *Info) known(yield func(name string, value any) bool) {
	for _, name := range InfoFields {
		if value, _ := s.value(name); value != "" && !yield(name, value) {
			return
		}
	}
}

// User returns the user that a handler in front has authenticated, "" for none.
func User(r *http.Request) string {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "" // the admin API has none
	}
	user, _ := repl.GetString("http.auth.user.id")
	return user
}
