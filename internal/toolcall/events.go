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

// eventIDs replaces the ids in a stream of events. Without an id of its own it removes them.
type eventIDs struct {
	id    string
	state int
}

// The states of [eventIDs] within a line. Before them are the bytes of its name that have been read.
const (
	named  = len(idName) // all of them
	inLine = iota + named
	inID
)

const idName = "id"

// replace returns the next bytes of the stream. It holds back up to two, at the beginning of a line.
func (e *eventIDs) replace(p []byte) []byte {
	to := make([]byte, 0, len(p)+len(e.id)+len(idName))
	for len(p) > 0 {
		switch {
		case e.state >= inLine:
			n := bytes.IndexAny(p, "\r\n") + 1
			end := n
			if n == 0 {
				n = len(p)
			}
			if e.state == inLine {
				to = append(to, p[:n]...)
			} else if end > 0 {
				to = append(to, p[end-1])
			}
			if p = p[n:]; end > 0 {
				e.state = 0
			}
		case e.state < named && p[0] == idName[e.state]:
			e.state, p = e.state+1, p[1:]
		case e.state == named && (p[0] == ':' || p[0] == '\r' || p[0] == '\n'):
			to, e.state = append(to, ':'), inID // a comment: an empty line would end the event
			if e.id != "" {
				to = append(append(to[:len(to)-1], "id: "...), e.id...)
			}
		default:
			to, e.state = append(to, idName[:e.state]...), inLine
		}
	}
	return to
}
