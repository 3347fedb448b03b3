package toolcall

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	eventIDField  = "Last-Event-Id"
	eventIDPrefix = "dedup:"
	maxEventID    = 1 << 10 // bytes
)

// eventID returns the id of all events of the call that has a key, "" if it is too long.
func eventID(key idempotency.Key, id []byte) string {
	text := eventIDPrefix + key.String() + ":" + base64.RawURLEncoding.EncodeToString(id)
	if len(text) > maxEventID {
		return ""
	}
	return text
}

// parseEventID reads the id of an event. ok reports whether it is one of [eventID].
func parseEventID(text string) (key idempotency.Key, id []byte, ok bool) {
	text, ok = strings.CutPrefix(text, eventIDPrefix)
	hex, encoded, _ := strings.Cut(text, ":")
	key, keyErr := idempotency.ParseKey(hex)
	id, idErr := base64.RawURLEncoding.DecodeString(encoded)
	return key, id, ok && keyErr == nil && idErr == nil && isID(id) && json.Valid(id)
}

// eventIDs gives all events of a stream that have data one id: it replaces those that are there, and adds it at
// the end of an event without one. Without an id of its own it removes them.
type eventIDs struct {
	id      string
	settled bool // the response is there: what follows needs no id

	line           lineKind
	name           string // of the line so far, while it may be one of those that matter
	hasID, hasData bool   // the event has them
	last           byte   // the end of the last line
}

// lineKind is what a line is, by its name.
type lineKind int

const (
	lineUnknown lineKind = iota
	lineID
	lineOther
)

// replace returns the next bytes of the stream. It holds back up to four, at the beginning of a line.
func (e *eventIDs) replace(p []byte) []byte {
	to := make([]byte, 0, len(p)+len(e.id)+8)
	for len(p) > 0 {
		if e.line == lineUnknown {
			to, p = e.readName(to, p)
			continue
		}
		n := bytes.IndexAny(p, "\r\n")
		end := n + 1
		if n < 0 {
			n, end = len(p), len(p)
		}
		if e.line == lineOther {
			to = append(to, p[:n]...)
		}
		if n < end {
			e.line, e.last = lineUnknown, p[n]
		}
		to, p = append(to, p[n:end]...), p[end:]
	}
	return to
}

// readName reads the next byte of a name, unless that ends before it.
func (e *eventIDs) readName(to, p []byte) (_, rest []byte) {
	c := p[0]
	for _, name := range []string{"id", "data"} {
		if n := len(e.name); n < len(name) && name[:n] == e.name && name[n] == c {
			e.name = name[:n+1]
			return to, p[1:]
		}
	}
	lineEnd := c == '\r' || c == '\n'
	ends := c == ':' || lineEnd
	switch e.line = lineOther; {
	case ends && e.name == "id":
		e.line, e.hasID = lineID, true
		to = e.appendLine(to)
	case lineEnd && e.name == "" && (c == '\r' || e.last != '\r'):
		if e.hasData && !e.hasID && !e.settled && e.id != "" {
			to = append(e.appendLine(to), '\n')
		}
		e.hasID, e.hasData = false, false
	default:
		e.hasData = e.hasData || ends && e.name == "data"
		to = append(to, e.name...)
	}
	e.name = ""
	return to, p
}

// appendLine appends the line of the id. Without one it is a comment: an empty line would end the event.
func (e *eventIDs) appendLine(to []byte) []byte {
	if e.id == "" {
		return append(to, ':')
	}
	return append(append(to, "id: "...), e.id...)
}
