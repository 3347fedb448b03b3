package toolcall

import "github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"

// End is how a call ends, by the response to it.
type End int

const (
	// Pending: there is no response yet.
	Pending End = iota
	// Kept: a result. That of a task counts: a repeat would begin another one.
	Kept
	// Released: an error, or a result with isError; or the upstream has answered without a response.
	Released
	// Asked: a result that asks for input. The client answers with another round of the same call.
	Asked
	// Unknown: what the upstream wrote ends before a response, or cannot be read.
	Unknown
)

// response is where the members of a response are that decide what it is, and what a replay changes.
type response struct {
	id, result span
	failed     bool // it has an error
	method     bool // it is a request or a notification, and no response
}

// span is a part of a text. The zero span means absent: no value begins at the first byte of an object.
type span struct{ begin, end int }

func (s span) of(text []byte) []byte { return text[s.begin:s.end] }

// readResponse reads a message. If the text is not a whole message, it returns an error and the members
// before it.
func readResponse(text []byte) (r response, err error) {
	err = canonicaljson.Members(text, func(name []byte, begin, end int) {
		switch {
		case canonicaljson.IsString(name, "id"):
			r.id = span{begin, end}
		case canonicaljson.IsString(name, "result"):
			r.result = span{begin, end}
		case canonicaljson.IsString(name, "error"):
			r.failed = string(text[begin:end]) != "null" // some servers write all members
		case canonicaljson.IsString(name, "method"):
			r.method = string(text[begin:end]) != "null"
		}
	})
	return r, err
}

func (r response) isNone() bool { return r.method || !r.failed && r.result == span{} }

// endBy returns how a message ends the call that was answered with a status, [Pending] if it is no
// response.
func endBy(status int, text []byte) End {
	r, err := readResponse(text)
	switch {
	case err != nil, r.isNone():
		return Pending
	case r.failed, status != 200:
		return Released
	}
	result := r.result.of(text)
	var failed, resultType []byte
	_ = canonicaljson.Members(result, func(name []byte, begin, end int) {
		switch {
		case canonicaljson.IsString(name, "isError"):
			failed = result[begin:end]
		case canonicaljson.IsString(name, "resultType"):
			resultType = result[begin:end]
		}
	})
	switch {
	case string(failed) == "true":
		return Released
	case canonicaljson.IsString(resultType, "input_required"):
		return Asked
	default:
		return Kept
	}
}
