package exchange

import (
	"cmp"
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

// MembersIn returns the JSON pointers of the members of the body that texts of the configuration name.
func MembersIn(texts ...string) (pointers []string) {
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
	x.memberErr = cmp.Or(x.memberErr, m.err)
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

// replace replaces the placeholders in a text of a key or a scope, and returns their values too. Its
// error is that of a member that this text names.
func (x *exchange) replace(text string) (replaced string, values []string, err error) {
	x.memberErr = nil
	replaced, err = x.repl().ReplaceFunc(text, func(name string, value any) (any, error) {
		if value == nil {
			x.unknownPlaceholders.warnOf(text, x.repl(), x.Logger)
		}
		value = TrimLineEnd(name, value)
		if name == "http.request.method" { // as in the default scope
			value = strings.ToUpper(x.r.Method)
		}
		values = append(values, caddy.ToString(value))
		return value, x.memberErr
	})
	return replaced, values, err
}

// first returns the value of a {http.dedup.first.*} placeholder, and whether the name is one. It is
// known from the decision, for a duplicate of a complete key and for a forced run.
func (x *exchange) first(name string) (value any, ours bool) {
	var record *idempotency.Record
	if x != nil {
		record = completeRecord(x.decision)
		if x.ended {
			defer x.dropFirst()
		}
	}
	field, isHeader := strings.CutPrefix(name, "header.")
	pointer, isMember := strings.CutPrefix(name, membersPrefix)
	known := name == "status" || name == "execution_id" || isHeader || isMember
	switch {
	case record == nil || !known:
		return "", known
	case name == "status":
		return record.Status, true
	case name == "execution_id":
		return record.ExecutionID, true
	case isHeader:
		return strings.Join(x.firstResponse(record).Header[http.CanonicalHeaderKey(field)], ","), true
	default:
		return x.firstMember(record, unescaped(pointer)), true
	}
}

// completeRecord returns the record of the complete key that a decision found, nil for none. For a
// forced run, it is the one that the run is to replace.
func completeRecord(decision engine.Decision) *idempotency.Record {
	switch d := decision.(type) {
	case *engine.Run:
		return d.Record().Previous
	case engine.Replay:
		if d.Record.State == idempotency.Complete {
			return d.Record
		}
	case engine.Refusal:
		return d.Complete()
	}
	return nil
}

// maxFirstBody is the size up to which members of a kept response are placeholders, in bytes.
const maxFirstBody = 64 << 10

// firstRun is what {http.dedup.first.*} has read of a kept response.
type firstRun struct {
	response *idempotency.Response
	body     delivery.Request
	room     Allowance
}

// firstResponse returns the kept response, without a body whose members are no placeholders. It is
// read once, and empty if it cannot be read or there is no room for it.
func (x *exchange) firstResponse(record *idempotency.Record) *idempotency.Response {
	if d, ok := x.decision.(engine.Replay); ok && d.Response != nil {
		return d.Response
	}
	if x.firstRun != nil {
		return x.firstRun.response
	}
	response := x.readFirst(record)
	x.keepFirst(response, len(response.Body))
	return response
}

// keepFirst keeps a response until the request ends. bytes is what it holds.
func (x *exchange) keepFirst(response *idempotency.Response, bytes int) {
	f := &firstRun{response: response, room: Allowance{Budget: x.Budget}}
	f.room.Count(bytes)
	f.body = delivery.Request{Body: func() ([]byte, error) { return response.Body, nil }, Reserve: f.room.Admit}.Remember()
	x.firstRun = f
}

// readFirst reads the kept response from the store.
func (x *exchange) readFirst(record *idempotency.Record) *idempotency.Response {
	none, room := new(idempotency.Response), Allowance{Budget: x.Budget}
	defer room.ReleaseAll()
	if !room.TryTake(record.LargeBody) {
		return none
	}
	ctx := context.WithoutCancel(x.r.Context()) // the run goes on without its client
	store, err := x.Store.Enter(ctx)            // the request may have left it
	if err != nil {
		return none
	}
	defer store.Leave()
	r, err := store.KeptResponse(ctx, x.key, record)
	if err != nil || r == nil {
		return none
	}
	if len(r.Body) > maxFirstBody {
		return &idempotency.Response{Header: r.Header}
	}
	return r
}

// firstMember returns a member of the kept response, whose body is parsed once. It is empty if the
// body is too large, or there is no room to parse it.
func (x *exchange) firstMember(record *idempotency.Record, pointer string) string {
	response := x.firstResponse(record)
	if len(response.Body) > maxFirstBody {
		return ""
	}
	if x.firstRun == nil {
		x.keepFirst(response, 0) // the replay counts it
	}
	text, _ := x.firstRun.body.Member(pointer)
	return text
}

// dropFirst drops what was read. What is asked for when the request has ended is read anew, and dropped
// at once.
func (x *exchange) dropFirst() {
	if x.firstRun != nil {
		x.firstRun.room.ReleaseAll()
		x.firstRun = nil
	}
}
