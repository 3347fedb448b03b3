package dashboard

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// plain returns a text of a sender's in which all that a browser could obey, or that
// would not be seen, is written out: control characters, and those that turn the
// direction of writing.
func plain(text string) string {
	if !strings.ContainsFunc(text, unseen) && utf8.ValidString(text) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case unseen(r):
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			out.WriteRune(r)
		}
		text = text[size:]
	}
	return out.String()
}

func unseen(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// plainLines is plain for a text of several lines.
func plainLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		indented := strings.TrimLeft(line, "\t")
		lines[i] = line[:len(line)-len(indented)] + plain(indented)
	}
	return strings.Join(lines, "\n")
}

// grouped writes a number with its thousands apart.
func grouped(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:] // a narrow space that does not break
	}
	return digits
}

// span writes a length of time for people, in its two largest units.
func span(d time.Duration) string {
	d = max(d, -d)
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	units := []struct {
		name string
		is   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}}
	for i, unit := range units {
		if d < unit.is {
			continue
		}
		text := fmt.Sprintf("%d %s", d/unit.is, unit.name)
		if i+1 < len(units) {
			if rest := d % unit.is / units[i+1].is; rest > 0 && d/unit.is < 10 {
				text += fmt.Sprintf(" %d %s", rest, units[i+1].name)
			}
		}
		return text
	}
	return ""
}

// when is a time as the page shows it.
type when struct {
	// Machine is for the attribute datetime, Exact for people, and Ago how far it is away.
	Machine, Exact, Ago string
}

// whenOf shows a time; nil is none.
func whenOf(at, now time.Time) *when {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	w := &when{Machine: at.Format(time.RFC3339Nano), Exact: at.Format("2006-01-02 15:04:05")}
	switch away := now.Sub(at); {
	case away >= time.Second:
		w.Ago = span(away) + " ago"
	case away <= -time.Second:
		w.Ago = "in " + span(away)
	default:
		w.Ago = "now"
	}
	return w
}

// state is how a state is told: by a word and a shape, and not by a colour alone.
type state struct{ Name, Word string }

var stateWords = map[string]string{
	"in_flight": "in flight", "lapsed": "lapsed", "complete": "complete", "released": "released", "held": "held", "unreadable": "unreadable",
	"failing": "failing", "exhausted": "exhausted", "kept_failure": "failure kept", "freed": "freed",
}

// stateOf is the state of a record as the page tells it: what needs attention is named
// by that.
func stateOf(s seen) state {
	name := s.state
	switch {
	case s.kind == needsAttempts || s.kind == needsMending || s.kind == needsFreeing:
		name = string(s.kind)
	case name == string(idempotency.Released) && s.record.Attempt > 0 && s.record.FreedAttempts >= s.record.Attempt:
		name = "freed"
	}
	return state{Name: name, Word: stateWords[name]}
}

const (
	// mostBody is how much of a kept body is shown, and mostHex how much of one that is
	// no text.
	mostBody = 64 << 10
	mostHex  = 512
)

// bodyView is a kept body, as text.
type bodyView struct {
	Text  string
	Bytes string // how many it has
	Note  string // what is not shown, or how it is
}

func bodyOf(r *idempotency.Response) bodyView {
	view := bodyView{Bytes: grouped(uint64(len(r.Body)))}
	switch {
	case r.Omitted:
		view.Note = "The body was larger than is kept, and is not there."
	case len(r.Body) == 0:
		view.Note = "The body is empty."
	case !utf8.Valid(r.Body):
		view.Text = fmt.Sprintf("% x", r.Body[:min(len(r.Body), mostHex)])
		view.Note = "The body is not text. In hex:"
		if len(r.Body) > mostHex {
			view.Note = fmt.Sprintf("The body is not text. The first %d bytes in hex:", mostHex)
		}
	case len(r.Body) > mostBody:
		cut := mostBody
		for !utf8.RuneStart(r.Body[cut]) {
			cut--
		}
		view.Text = plainLines(string(r.Body[:cut]))
		view.Note = fmt.Sprintf("Only the first %d KiB are shown.", mostBody>>10)
	default:
		view.Text = plainLines(string(r.Body))
	}
	return view
}
