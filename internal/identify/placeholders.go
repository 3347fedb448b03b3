package identify

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
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

// warnUnknown logs a placeholder of a text, once, if Caddy does not know it. This is known only with a
// request: modules and handlers in front add placeholders of their own.
func warnUnknown(x *Request, name, text string) {
	if _, known := replacerOf(x.r).Get(name); known {
		return
	}
	if _, before := x.unknownPlaceholders.LoadOrStore(name, true); !before {
		x.Logger.Warn("a placeholder is unknown and counts as empty; check its name",
			zap.String("placeholder", "{"+name+"}"), zap.String("text", text))
	}
}

// MemberPointer returns the JSON pointer in the name of a placeholder for a member of the body, and
// whether the name is one of those.
func MemberPointer(placeholder string) (pointer string, is bool) {
	pointer, is = strings.CutPrefix(placeholder, report.PlaceholderPrefix+report.MembersPrefix)
	return report.Unescaped(pointer), is
}

// MembersIn returns the JSON pointers of the members of the body that texts of the configuration name.
func MembersIn(texts ...string) (pointers []string) {
	for _, name := range namesIn(texts) {
		if pointer, is := MemberPointer(name); is {
			pointers = append(pointers, pointer)
		}
	}
	return pointers
}

// namesIn returns the names of the placeholders in texts.
func namesIn(texts []string) (names []string) {
	for _, text := range texts {
		in, _ := PlaceholdersIn(text)
		names = append(names, in...)
	}
	return names
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

// parse reads the body, and from it the members that the scope and the keys name. Their placeholders have
// these values from then on. It returns an error if the body cannot be read, or if there is no room to
// parse it now.
func (x *Request) parse(request delivery.Request) error {
	if err := x.acquireParseSlot(); reqbody.Failed(err) {
		return err
	}
	for _, pointer := range x.members {
		if m := x.parseMember(request, pointer); reqbody.Failed(m.Err) {
			return m.Err
		}
	}
	return nil
}

// parseMember reads a member of the body.
func (x *Request) parseMember(request delivery.Request, pointer string) report.Member {
	text, err := request.Member(pointer)
	if full := x.Body.Admit(len(text)); full != nil {
		text, err = "", full
	}
	m := report.Member{Text: text, Err: err}
	x.info.Remember(pointer, m)
	return m
}

// identifying finds members of the body while the key is looked for: those that are part of the scope or
// the key, by their names or by a placeholder of a handler in front, such as map.
type identifying Request

// Member implements [report.Members].
func (i *identifying) Member(pointer string) string {
	x := (*Request)(i)
	m, read := x.info.Remembered(pointer)
	if !read {
		if err := x.acquireParseSlot(); reqbody.Failed(err) {
			x.memberErr = cmp.Or(x.memberErr, err)
			return ""
		}
		m = x.parseMember(delivery.Request{Body: x.Body.Joined, Reserve: x.Body.Reserve}.Remember(), pointer)
	}
	x.memberErr = cmp.Or(x.memberErr, m.Err)
	x.scoped.note(pointer, m.Text)
	return m.Text
}

// identified finds members of the body when the key is known. A member that was not read with the key is
// empty once the handlers behind have begun to read the body, whose bytes are then no longer held, or if
// there is no room to parse it.
type identified Request

// Member implements [report.Members].
func (i *identified) Member(pointer string) string {
	x := (*Request)(i)
	if m, read := x.info.Remembered(pointer); read {
		return m.Text
	}
	parseSlots <- struct{}{}
	defer func() { <-parseSlots }()
	room := budget.Allowance{Budget: x.Allowance.Budget}
	defer room.ReleaseAll()
	body := func() ([]byte, error) { return x.Body.JoinedIfUnread(&room) }
	text, _ := delivery.Request{Body: body, Reserve: room.Admit}.Remember().Member(pointer)
	return text
}

// replace replaces the placeholders in a text of a key or a scope, and returns their values too. Its
// error is that of a member that this text names.
func (x *Request) replace(text string) (replaced string, values []string, err error) {
	x.memberErr = nil
	replaced, err = replacerOf(x.r).ReplaceFunc(text, func(name string, value any) (any, error) {
		if value == nil {
			warnUnknown(x, name, text)
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

// replacerOf returns the placeholders of a request.
func replacerOf(r *http.Request) *caddy.Replacer {
	return r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}
