package exchange

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// PlaceholdersIn returns the names of the placeholders in a text, as Caddy's replacer finds them: a
// brace behind a backslash is a brace. unclosed reports whether a brace opens and none closes it;
// the replacer would leave it as it is.
func PlaceholdersIn(text string) (names []string, unclosed bool) {
	for i := 0; i < len(text); i++ {
		if text[i] != '{' || i > 0 && text[i-1] == '\\' {
			continue
		}
		end := closingBrace(text, i)
		if end < 0 {
			unclosed = true
			continue
		}
		names = append(names, text[i+1:end])
		i = end
	}
	return names, unclosed
}

// closingBrace returns the index of the first closing brace behind i, -1 for none.
func closingBrace(text string, i int) int {
	for end := i + 1; end < len(text); end++ {
		if text[end] == '}' && text[end-1] != '\\' {
			return end
		}
	}
	return -1
}

// TrimLineEnd trims the line end from the value of an {env.*}, which often has one by accident.
// Caddy trims that of a {file.*}.
func TrimLineEnd(placeholder string, value any) any {
	text, is := value.(string)
	if !is || !strings.HasPrefix(placeholder, "env.") || !strings.HasSuffix(text, "\n") {
		return value
	}
	return strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
}

// unknownPlaceholders are the unknown placeholders that a handler has warned of.
type unknownPlaceholders struct{ warned sync.Map }

// warnOf logs each placeholder of a text that Caddy does not know, once. This is known only with a
// request: modules and handlers in front add placeholders of their own.
func (u *unknownPlaceholders) warnOf(text string, repl *caddy.Replacer, logger *zap.Logger) {
	names, _ := PlaceholdersIn(text)
	for _, name := range names {
		if _, known := repl.Get(name); known {
			continue
		}
		if _, before := u.warned.LoadOrStore(name, true); !before {
			logger.Warn("a placeholder is unknown and counts as empty; check its name",
				zap.String("placeholder", "{"+name+"}"), zap.String("text", text))
		}
	}
}

// membersPrefix precedes the JSON pointer in the name of a placeholder for a member of JSON.
const membersPrefix = "json."

// MemberPointer returns the JSON pointer in the name of a placeholder for a member of the body, and
// whether the name is one of those.
func MemberPointer(placeholder string) (pointer string, is bool) {
	pointer, is = strings.CutPrefix(placeholder, PlaceholderPrefix+membersPrefix)
	return unescaped(pointer), is
}

// unescaped returns the JSON pointer in a placeholder, where a closing brace is escaped.
func unescaped(pointer string) string { return strings.ReplaceAll(pointer, `\}`, "}") }

// membersIn returns the JSON pointers of the members of the body that texts of the configuration name.
func membersIn(texts []string) (pointers []string) {
	for _, text := range texts {
		names, _ := PlaceholdersIn(text)
		for _, name := range names {
			if pointer, is := MemberPointer(name); is {
				pointers = append(pointers, pointer)
			}
		}
	}
	return pointers
}

// keyTexts returns the texts that keys are made of.
func (c *Config) keyTexts() (texts []string) {
	for _, source := range c.Sources {
		texts = append(texts, source.Text)
		for _, part := range source.Parts {
			texts = append(texts, part.Text)
		}
	}
	return texts
}

// member is a member of a request's body.
type member struct {
	text string
	err  error // why it cannot be part of a key or a scope
}

// parse reads the body, and from it the members that the scope and the keys name. Their
// placeholders have these values from then on. It returns an error if the body cannot be read, or
// if there is no room to parse it now.
func (x *exchange) parse(request delivery.Request) error {
	if err := x.acquireParseSlot(); x.body.failed() != nil {
		return err
	}
	for _, pointer := range x.members {
		x.parseMember(request, pointer)
	}
	return x.body.failed()
}

// parseMember reads a member of the body.
func (x *exchange) parseMember(request delivery.Request, pointer string) member {
	text, err := request.Member(pointer)
	if full := x.body.admit(len(text)); full != nil {
		text, err = "", full
	}
	if x.info.members == nil {
		x.info.members = make(map[string]member)
	}
	m := member{text, err}
	x.info.members[pointer] = m
	return m
}

// keyMember returns a member that is part of the scope or the key, by its name or by a placeholder of a
// handler in front, such as map.
func (x *exchange) keyMember(pointer string) string {
	m, read := x.info.members[pointer]
	if !read {
		_ = x.acquireParseSlot() // the failure shows below
		m = x.parseMember(delivery.Request{Body: x.body.joined, Reserve: x.body.reserve}.Remember(), pointer)
	}
	if m.err != nil {
		x.unusable = m.err
	}
	return m.text
}

// member returns a member of the body. A member that was not read with the key is empty once the
// handlers behind have begun to read the body, whose bytes are then no longer held, or if there is
// no room to parse it.
func (s *requestInfo) member(pointer string) string {
	if s.exchange != nil && s.exchange.identifying {
		return s.exchange.keyMember(pointer)
	}
	if m, read := s.members[pointer]; read || s.exchange == nil {
		return m.text
	}
	parseSlots <- struct{}{}
	defer func() { <-parseSlots }()
	room := Allowance{Budget: s.exchange.Budget}
	defer room.ReleaseAll()
	body := func() ([]byte, error) { return s.exchange.body.joinedIfUnread(&room) }
	text, _ := delivery.Request{Body: body, Reserve: room.Admit}.Remember().Member(pointer)
	return text
}

// replace replaces the placeholders in a text of a key or a scope, and returns their values too.
func (x *exchange) replace(text string) (replaced string, values []string, err error) {
	replaced, err = x.repl().ReplaceFunc(text, func(name string, value any) (any, error) {
		if value == nil {
			x.unknownPlaceholders.warnOf(text, x.repl(), x.Logger)
		}
		value = TrimLineEnd(name, value)
		if name == "http.request.method" { // as in the default scope
			value = strings.ToUpper(x.r.Method)
		}
		values = append(values, caddy.ToString(value))
		return value, x.unusable
	})
	return replaced, values, err
}

// first returns the value of a {http.dedup.first.*} placeholder, and whether the name is one. It is
// known from the decision on a duplicate or on a forced run.
func (x *exchange) first(name string) (value any, ours bool) {
	status, executionID, response := any(""), "", new(idempotency.Response)
	of := func(r *idempotency.Record) { status, executionID = r.Status, r.ExecutionID }
	field, isHeader := strings.CutPrefix(name, "header.")
	pointer, isMember := strings.CutPrefix(name, membersPrefix)
	if x != nil {
		switch d := x.decision.(type) {
		case *engine.Run:
			if replaced := d.Record().Previous; replaced != nil {
				of(replaced)
				if isHeader || isMember {
					response = x.replacedResponse(replaced)
				}
			}
		case engine.Replay:
			if d.Record.State == idempotency.Complete {
				of(d.Record)
				status, response = d.Response.Status, d.Response
			}
		case engine.Refusal:
			if d.Status != 0 {
				status, executionID = d.Status, d.ExecutionID
			}
		}
	}
	switch {
	case name == "status":
		return status, true
	case name == "execution_id":
		return executionID, true
	case isHeader:
		return strings.Join(response.Header[http.CanonicalHeaderKey(field)], ","), true
	case !isMember || len(response.Body) > idempotency.MaxInlineJSON:
		return "", isMember
	}
	body := func() ([]byte, error) { return response.Body, nil }
	text, _ := delivery.Request{Body: body}.Remember().Member(unescaped(pointer))
	return text, true
}

// replacedResponse returns the response that a forced run is to replace, without a body that is not
// shown. It is empty if it cannot be read, or if there is no room for it.
func (x *exchange) replacedResponse(record *idempotency.Record) *idempotency.Response {
	if x.replaced != nil {
		return x.replaced
	}
	x.replaced = new(idempotency.Response)
	ctx := context.WithoutCancel(x.r.Context()) // the run goes on without its client
	store, err := x.Store.Enter(ctx)            // the run has left it if it is settled
	if err != nil {
		return x.replaced
	}
	defer store.Leave()
	room := Allowance{Budget: x.Budget}
	defer room.ReleaseAll()
	if !room.TryTake(record.LargeBody) {
		return x.replaced
	}
	r, err := store.KeptResponse(ctx, x.key, record)
	if err == nil && r != nil {
		x.replaced.Header = r.Header
		if len(r.Body) <= idempotency.MaxInlineJSON {
			x.replaced.Body = r.Body
		}
	}
	return x.replaced
}
