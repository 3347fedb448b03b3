package toolcall

import (
	"bytes"
	"strings"
)

// Reader finds the response to a call in what its upstream writes: one JSON object, or the first one
// in the data of a stream of events (WHATWG HTML, section 9.2). It holds the message that is being
// written, and no more of a stream.
type Reader struct {
	status  int
	limit   int // bytes of a message
	reserve func(bytes int) bool
	form    form

	end      End
	early    bool   // the call has ended, and the answer goes on
	outgrown bool   // there was no room for the response
	message  []byte // so far

	// In a stream, message has the data of the event so far, and then the line that is being written.
	line       int  // where that line begins
	inLine     bool // the line is not empty
	firstEnded bool // the first line, which may begin with a byte order mark, has ended
	afterCR    bool // a line feed that comes next belongs to the last line end
	other      bool // the event has another name than message, so it has no response
	skips      bool // the event is skipped: it does not fit, and is no response
	pending    int  // bytes of the stream since the last event
}

// form is the form of an answer, by its media type.
type form int

const (
	formOther form = iota // without a response
	formJSON
	formEvents
)

// smallMessage is how many bytes of a message are held without a reservation. They are enough to see
// what kind of message it is.
const smallMessage = 512

// NewReader returns a reader of an answer with this status, Content-Type and Content-Encoding. A
// response, in a stream together with the name of its field, has at most limit bytes; a limit below 512
// is 512. Before the reader allocates more than these, it asks reserve for them. They are not given back
// before the caller drops the reader and the response. Without room, a response is as one that is too
// large. An encoded answer counts as a result: only clients ask for one, under observe.
func NewReader(status int, contentType, contentEncoding string, limit int, reserve func(bytes int) bool) *Reader {
	r := &Reader{status: status, limit: max(limit, smallMessage), reserve: reserve}
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "application/json":
		r.form = formJSON
	case "text/event-stream":
		r.form = formEvents
	}
	if r.form != formOther && status == 200 && contentEncoding != "" && !strings.EqualFold(contentEncoding, "identity") {
		r.form, r.end = formOther, Kept // it cannot be read
	}
	return r
}

// Feed takes what the upstream writes next, in pieces of any size. It reports whether the call ends
// in these bytes, and how many of them come before the one with which the client has the response:
// the call has to be settled before that byte goes out. What follows decides nothing, and is not
// looked at.
func (r *Reader) Feed(p []byte) (before int, ended bool) {
	switch {
	case r.end != Pending:
	case r.form == formEvents:
		before, r.early = r.readEvents(p)
		return before, r.early
	case r.form == formJSON:
		if n := r.add(p); n < len(p) {
			r.Outgrow()
			return n, true
		}
	}
	return len(p), false
}

// Close ends an answer that is whole, and returns how the call ends.
func (r *Reader) Close() End {
	r.Whole(r.message) // if it is no stream
	if r.end == Pending {
		r.message, r.end = nil, Released
		if r.form == formEvents {
			r.end = Unknown
		}
	}
	return r.end
}

// Whole reads a whole answer that is no stream, in place of Feed. It does not copy the text.
func (r *Reader) Whole(text []byte) {
	if r.form == formJSON && r.end == Pending {
		r.message = bytes.TrimPrefix(text, byteOrderMark)
		r.end = endBy(r.status, r.message)
	}
}

// Early reports whether the call has ended, and the answer goes on.
func (r *Reader) Early() bool { return r.early }

// Message returns the response, which [ToolCall.Replay] takes: nil if there is none, or none that was held
// as a whole ([Reader.Omitted]).
func (r *Reader) Message() []byte {
	if r.end == Pending {
		return nil
	}
	return r.message
}

// Omitted reports whether there may have been a response, for which there was no room.
func (r *Reader) Omitted() bool { return r.outgrown }

// Outgrow ends an answer that there is no more room for. If it may have a response, the call was executed.
func (r *Reader) Outgrow() {
	r.early = true
	if r.end != Pending {
		return
	}
	r.end, r.outgrown, r.message = Released, r.form != formOther, nil
	if r.outgrown && r.status == 200 {
		r.end = Kept
	}
}

// add appends to the message as many bytes as there is room for, and returns how many.
func (r *Reader) add(p []byte) int {
	if r.message == nil {
		r.message = make([]byte, 0, smallMessage)
	}
	n, room := min(len(p), r.limit-len(r.message)), cap(r.message)
	if need := len(r.message) + n; need > room {
		// The old bytes are there until they are copied, and longer.
		if size := min(max(need, 2*room), r.limit); r.reserve(size) {
			r.message = append(make([]byte, 0, size), r.message...)
		} else {
			n = room - len(r.message)
		}
	}
	r.message = append(r.message, p[:n]...)
	return n
}

// Pending returns how many bytes Feed has read of an event that may be the response, and is not whole.
func (r *Reader) Pending() int {
	if r.skips {
		return 0
	}
	return r.pending
}

func (r *Reader) readEvents(p []byte) (before int, ended bool) {
	r.pending += len(p)
	for i := 0; i < len(p); {
		if c := p[i]; c == '\n' || c == '\r' {
			second, event := c == '\n' && r.afterCR, !r.inLine
			if r.afterCR = c == '\r'; !second && r.endLine() {
				return i, true
			}
			if i++; event {
				r.pending = len(p) - i
			}
			continue
		}
		r.afterCR, r.inLine = false, true
		n := bytes.IndexAny(p[i:], "\r\n")
		if n < 0 {
			n = len(p) - i
		}
		if !r.skips {
			if m := r.add(p[i : i+n]); m < n && r.skip() {
				return i + m, true
			}
		}
		i += n
	}
	return len(p), false
}

// endLine reads a line that has ended. It reports whether the call ends with it: the line is empty, and
// so ends an event with a response.
func (r *Reader) endLine() bool {
	switch {
	case !r.inLine:
		if !r.other && !r.skips {
			r.end = endBy(r.status, r.message)
		}
		if r.end != Pending {
			return true
		}
		r.message, r.line, r.other, r.skips = r.message[:0], 0, false, false
	case !r.skips:
		r.takeLine()
	}
	r.inLine, r.firstEnded = false, true
	return false
}

// takeLine moves what there is of a line into the event.
func (r *Reader) takeLine() {
	line := r.message[r.line:]
	if !r.firstEnded {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	r.message = r.message[:r.line]
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		r.other = len(value) > 0 && string(value) != "message"
	case "data":
		if r.line > 0 {
			r.message = append(r.message, '\n') // in the place of the name
		}
		r.message = append(r.message, value...)
		r.line = len(r.message)
	}
}

// skip skips the rest of an event that does not fit. It reports whether the event ends the call, as each
// does that begins neither as a request nor as a notification.
func (r *Reader) skip() bool {
	r.takeLine()
	if begun, _ := readResponse(r.message); r.other || begun.method {
		r.skips = true
		return false
	}
	r.Outgrow()
	return true
}
