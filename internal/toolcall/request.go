// Package toolcall is the mode mcp. It reads and writes the messages of tool calls (Model Context Protocol over Streamable
// HTTP, revision 2026-07-28 and before): which requests are calls, where in the upstream's answer the
// response is and whether it is kept, what a replay of it looks like to another request, and what a
// refusal does. It knows no HTTP but the fields and media types that the protocol names.
//
// Messages are JSON-RPC 2.0. Of a member that occurs twice the last counts, as it does to the official
// SDKs. What a message says is read from its text, and its text is what is kept: a number or an
// escape that is written another way is another message to some clients.
package toolcall

import (
	"bytes"
	"io"
	"slices"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// Kind is what the body of a POST is.
type Kind int

const (
	// Other is all that is no tool call: it passes.
	Other Kind = iota
	// Call is one request tools/call, with an id that a response can be for.
	Call
	// Cancellation is a notification that a request is cancelled.
	Cancellation
	// Batch is an array: revision 2025-03-26 has several messages in one.
	Batch
	// UnusableID is a request tools/call with another id.
	UnusableID
)

const (
	callMethod   = "tools/call"
	cancelMethod = "notifications/cancelled"
)

// Request is what the body of a POST says.
type Request struct {
	Kind Kind
	// ID is the id of a call, or of the call that is cancelled, as it is written: 1, "1" and "\u0031"
	// are three. It is a part of the body, and may be long. It is nil if the beginning of a call does not
	// have it. For [UnusableID] it is a number or nil, for [Other] the id of another request or nil.
	ID []byte
	// Tool is the name of the tool that is called, as it is written; nil if it was not read.
	Tool []byte
}

// Read reads a body, or the beginning of one that is too large. methods are the lines of the request's field
// Mcp-Method. Each must agree with the body. If a beginning does not have its method, the first line counts.
func Read(body []byte, whole bool, methods []string) Request {
	body = bytes.TrimPrefix(body, byteOrderMark)
	m, err := readRequest(body, whole)
	if m.method == nil && !whole && len(methods) > 0 {
		m.method = []byte(`"` + methods[0] + `"`)
	}
	disagrees := slices.ContainsFunc(methods, func(line string) bool { return !m.says(line) })
	switch {
	case isArray(body):
		return Request{Kind: Batch}
	case whole && err != nil, disagrees:
	case m.says(callMethod) && (m.id != nil || !whole):
		return m.call()
	case m.says(cancelMethod) && m.id == nil && whole:
		if id := memberOf(m.params, "requestId"); isID(id) {
			return Request{Kind: Cancellation, ID: id}
		}
	case m.method != nil && isID(m.id):
		return Request{ID: m.id}
	}
	return Request{}
}

func isArray(body []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) }

// NeedsBody reports whether [Read] needs the body. Otherwise it is [Other] by its Mcp-Method.
func NeedsBody(methods []string) bool {
	return !slices.ContainsFunc(methods, func(line string) bool { return line != callMethod && line != cancelMethod })
}

// byteOrderMark may be in front of a text.
var byteOrderMark = []byte("\ufeff")

// requestMembers are the values of a request's members, nil for those that it does not have.
type requestMembers struct{ method, id, params []byte }

func (m requestMembers) says(method string) bool { return canonicaljson.IsString(m.method, method) }

// call returns the request for the members of a call.
func (m requestMembers) call() Request {
	r := Request{Kind: Call, ID: m.id, Tool: memberOf(m.params, "name")}
	if m.id != nil && !isID(m.id) {
		r.Kind = UnusableID
		if c := m.id[0]; c != '-' && (c < '0' || '9' < c) {
			r.ID = nil
		}
	}
	return r
}

// memberOf returns the last value of a member, nil if there is none or it may be cut off.
func memberOf(object []byte, member string) (value []byte) {
	_ = canonicaljson.Members(object, func(name []byte, begin, end int) {
		if end < len(object) && canonicaljson.IsString(name, member) {
			value = object[begin:end]
		}
	})
	return value
}

// readRequest returns the members of a request. The last value of a beginning may be cut off. It is returned only
// for params, since memberOf expects that.
func readRequest(body []byte, whole bool) (m requestMembers, err error) {
	err = canonicaljson.Members(body, func(name []byte, begin, end int) {
		value := body[begin:end]
		switch {
		case canonicaljson.IsString(name, "params"):
			m.params = value
		case end == len(body) && !whole:
		case canonicaljson.IsString(name, "method"):
			m.method = value
		case canonicaljson.IsString(name, "id"):
			m.id = value
		}
	})
	return m, err
}

// isID reports whether a value can be the id of a request. Some servers take 1.0 and 1e2 for integers,
// and write them another way in the response.
func isID(value []byte) bool {
	return len(value) > 0 && (value[0] == '"' || value[0] == '-' || '0' <= value[0] && value[0] <= '9') &&
		(value[0] == '"' || !bytes.ContainsAny(value, ".eE"))
}

// notFingerprinted are the members that differ between the rounds of one operation, or between its
// repeats.
var notFingerprinted = []string{"/params/_meta", "/params/inputResponses", "/params/requestState"}

// WriteFingerprint implements [identify.Calls]. It writes the params in canonical form (RFC 8785), without
// what differs between repeats and what the JSON pointers in exclude name, which start at the body. The
// errors are those of [canonicaljson.Document.WriteCanonical].
func (Mode) WriteFingerprint(to io.Writer, body *canonicaljson.Document, exclude ...string) error {
	params, ok := body.Root().At("/params")
	if !ok {
		return nil
	}
	return params.WriteCanonical(to, append(slices.Clone(exclude), notFingerprinted...)...)
}
