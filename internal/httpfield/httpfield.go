// Package httpfield has the header fields of dedup, and rules of HTTP about fields that every stage of a
// request needs.
package httpfield

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// The header fields of dedup. All start with [DedupPrefix]; the fields with that prefix that clients and
// upstreams send are removed.
const (
	DedupPrefix = "Dedup-"
	// Key names the operation to the upstream.
	Key         = "Dedup-Key"
	ExecutionID = "Dedup-Execution-Id"
	Attempt     = "Dedup-Attempt"
	ParentID    = "Dedup-Parent-Id"
	Retention   = "Dedup-Retention"
	// NotExecuted says of a refusal that the request has executed nothing. Its value is the code.
	NotExecuted = "Dedup-Not-Executed"
)

// Replayed marks a replay, with the value `true`.
const Replayed = "Idempotent-Replayed"

// Size returns how many bytes the fields take.
func Size(header map[string][]string) (n int) {
	for name, values := range header {
		for _, value := range values {
			n += len(name) + len(value)
		}
	}
	return n
}

// TakeDedup removes the fields under our prefix from a request, and returns the execution ID among
// them.
func TakeDedup(r *http.Request) (executionID string) {
	removeDedupTrailers(r)
	// A proxy removes the fields that Connection names (RFC 9110, section 7.6.1): the upstream would not learn which
	// run it is.
	RemoveConnectionOptions(r.Header, IsDedup)
	executionID = First(r.Header, ExecutionID)
	RemoveDedup(r.Header, nil)
	return executionID
}

// removeDedupTrailers removes our fields from a request's trailers: the announced ones at once, the
// others at the end of the body.
func removeDedupTrailers(r *http.Request) {
	if r.Trailer == nil || r.Body == nil {
		return // a proxy passes on only announced ones
	}
	RemoveDedup(r.Trailer, nil)
	r.Body = bodyBeforeTrailers{r.Body, r.Trailer}
}

// bodyBeforeTrailers is a body that removes our fields from the trailers at its end.
type bodyBeforeTrailers struct {
	io.ReadCloser
	trailers http.Header
}

// Read implements [io.Reader].
func (b bodyBeforeTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		RemoveDedup(b.trailers, nil)
	}
	return n, err
}

// RemoveUpgrade removes an offer to switch to another protocol (RFC 9110, section 7.8), such as
// h2c, which some HTTP clients send with every request: an upstream that accepts it answers with
// 101, and has executed the request.
func RemoveUpgrade(header http.Header) {
	if len(header["Upgrade"]) == 0 && len(header["Http2-Settings"]) == 0 {
		return
	}
	delete(header, "Upgrade")
	delete(header, "Http2-Settings")
	RemoveConnectionOptions(header, func(name string) bool {
		return strings.EqualFold(name, "Upgrade") || strings.EqualFold(name, "HTTP2-Settings")
	})
}

// RemoveConnectionOptions removes options from the field Connection.
func RemoveConnectionOptions(header http.Header, remove func(name string) bool) {
	var kept []string
	removed := false
	for _, line := range header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); remove(name) {
				removed = true
			} else if name != "" {
				kept = append(kept, name)
			}
		}
	}
	switch {
	case removed && len(kept) == 0:
		delete(header, "Connection")
	case removed:
		header["Connection"] = []string{strings.Join(kept, ", ")}
	}
}

// RemoveDedup removes all fields under our prefix, except those that the header had before,
// which it restores.
func RemoveDedup(header, before http.Header) {
	for name, values := range header {
		if !IsDedup(name) {
			continue
		}
		if had, is := before[name]; !is || !slices.Equal(values, had) {
			delete(header, name)
		}
	}
	for name, values := range before {
		if !IsDedup(name) {
			continue
		}
		if _, still := header[name]; !still {
			header[name] = slices.Clone(values)
		}
	}
}

// IsDedup reports whether a field is one of ours.
func IsDedup(name string) bool {
	return len(name) >= len(DedupPrefix) && strings.EqualFold(name[:len(DedupPrefix)], DedupPrefix)
}

// First is [http.Header.Get] without the check that the name is canonical.
func First(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// HopByHop are the fields that concern one connection only (RFC 9110, section 7.6.1) or are set
// anew for every response.
var HopByHop = []string{
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

// droppedByDefault are fields that apply to the first response or its client only. keep_header keeps
// them.
var droppedByDefault = []string{"Set-Cookie", "Date", "Age", "Alt-Svc", "Server-Timing"}

// Rules are the canonical names of the fields that keep_header keeps.
type Rules []string

func NewRules(keep []string) (rules Rules) {
	for _, name := range keep {
		rules = append(rules, http.CanonicalHeaderKey(name))
	}
	return rules
}

// NeverKept reports whether a field is never kept. Mcp-Session-Id names the first client's session.
func NeverKept(name string) bool {
	return slices.Contains(HopByHop, name) || name == "Mcp-Session-Id" || strings.HasPrefix(name, "Proxy-") ||
		strings.HasPrefix(name, DedupPrefix) || strings.HasPrefix(name, http.TrailerPrefix)
}

// Kept returns what is kept of a response's header: the fields that differ from the header that the
// run found. A field that the run removed has no values.
func (rules Rules) Kept(found, answered http.Header) map[string][]string {
	named := append(Listed(answered["Connection"]), Listed(answered["Trailer"])...)
	var room [16]string // on the stack
	names, lines := room[:0], 0
	for name, values := range answered {
		if !NeverKept(name) && rules.keeps(name) && !slices.Contains(named, name) && !slices.Equal(values, found[name]) {
			names, lines = append(names, name), lines+len(values)
		}
	}
	out, own := make(map[string][]string, len(names)), make([]string, 0, lines)
	for _, name := range names {
		values := answered[name]
		own = append(own, values...)
		out[name] = own[len(own)-len(values) : len(own) : len(own)]
	}
	for name := range found {
		if _, still := answered[name]; !still && !NeverKept(name) {
			out[name] = nil
		}
	}
	return out
}

// Listed returns the canonical names of the fields that the lines of another field list, such as Connection or
// Trailer.
func Listed(lines []string) (names []string) {
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return names
}

func (rules Rules) keeps(name string) bool {
	return slices.Contains(rules, name) || !slices.Contains(droppedByDefault, name)
}

// DescribesBody reports whether a field describes the body, so that a response without its body
// must not have it.
func DescribesBody(name string) bool {
	switch name {
	case "Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Content-Range",
		"Content-Disposition", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest":
		return true
	}
	return false
}

func HasTrailers(header http.Header) bool {
	if len(header["Trailer"]) > 0 {
		return true
	}
	for name := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// BodyAllowed reports whether a response with this status has a body (RFC 9110,
// section 6.4.1).
func BodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// HasWrongLength reports whether a response has fewer or more bytes than it declares. declared is -1 if it declares
// no length. A response to HEAD declares the length of a body that it does not have (RFC 9110, section 9.3.2).
func HasWrongLength(method string, status int, declared, written int64) bool {
	return declared >= 0 && declared != written && BodyAllowed(status) && method != http.MethodHead
}

// DeclaredLength returns the Content-Length, -1 for none.
func DeclaredLength(header http.Header) int64 {
	text := First(header, "Content-Length")
	if text == "" { // saves the error of ParseInt
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
