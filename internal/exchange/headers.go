package exchange

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// The header fields between us, upstreams and clients. All begin with a prefix
// that is ours alone: what clients and upstreams send under it is removed.
const (
	HeaderPrefix      = "Dedup-"
	executionIDHeader = "Dedup-Execution-Id"
	attemptHeader     = "Dedup-Attempt"
	parentIDHeader    = "Dedup-Parent-Id"
	retentionHeader   = "Dedup-Retention"
)

// replayedHeader marks a replay, with the value `true`.
const replayedHeader = "Idempotent-Replayed"

// takeDedupHeaders removes what came in under our prefix and returns the execution ID
// among it: that of the run of another dedup in front, or a forged one. What a dedup in
// this process has set for its run stays, for requests that this one does not claim.
func takeDedupHeaders(r *http.Request) (within string) {
	if run := runOf(r.Context()); run != nil {
		return run.executionID
	}
	removeDedupTrailers(r)
	removeDedupOptions(r.Header)
	within = firstValue(r.Header, executionIDHeader)
	removeDedupHeaders(r.Header, nil)
	return within
}

// takeForce removes the header field that asks to run again on purpose, and
// reports whether it does.
func (h *Handler) takeForce(r *http.Request) bool {
	if h.Force == "" {
		return false
	}
	asked := r.Header.Get(h.Force) == "true"
	r.Header.Del(h.Force)
	return asked
}

// removeDedupTrailers removes our fields from a request's trailers: from those that are
// announced, and from all others when they have come with the end of the body.
func removeDedupTrailers(r *http.Request) {
	if r.Trailer == nil || r.Body == nil {
		return // only announced ones are passed on
	}
	removeDedupHeaders(r.Trailer, nil)
	r.Body = bodyBeforeTrailers{r.Body, r.Trailer}
}

// bodyBeforeTrailers is a body whose trailers are cleared of ours at its end.
type bodyBeforeTrailers struct {
	io.ReadCloser
	trailers http.Header
}

// Read implements [io.Reader].
func (b bodyBeforeTrailers) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		removeDedupHeaders(b.trailers, nil)
	}
	return n, err
}

// removeUpgrade removes the offer to go on in another protocol (RFC 9110, section 7.8), such as
// h2c, which some HTTP clients make with every request: an upstream that accepts it answers with
// 101, and has executed the request.
func removeUpgrade(header http.Header) {
	if len(header["Upgrade"]) == 0 && len(header["Http2-Settings"]) == 0 {
		return
	}
	delete(header, "Upgrade")
	delete(header, "Http2-Settings")
	removeConnectionOptions(header, func(name string) bool {
		return strings.EqualFold(name, "Upgrade") || strings.EqualFold(name, "HTTP2-Settings")
	})
}

// removeDedupOptions takes our fields out of those that Connection names: a
// proxy removes all of these from what it sends on (RFC 9110, section 7.6.1), and
// the upstream would not learn which run it is.
func removeDedupOptions(header http.Header) { removeConnectionOptions(header, IsDedupHeader) }

// removeConnectionOptions removes options from the field Connection.
func removeConnectionOptions(header http.Header, remove func(name string) bool) {
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

// removeDedupHeaders removes all fields under our prefix, and puts back those
// that a header had before.
func removeDedupHeaders(header, before http.Header) {
	for name, values := range header {
		if !IsDedupHeader(name) {
			continue
		}
		if had, is := before[name]; !is || !slices.Equal(values, had) {
			delete(header, name)
		}
	}
	for name, values := range before {
		if !IsDedupHeader(name) {
			continue
		}
		if _, still := header[name]; !still {
			header[name] = slices.Clone(values)
		}
	}
}

// IsDedupHeader reports whether a field is one of ours.
func IsDedupHeader(name string) bool {
	return len(name) >= len(HeaderPrefix) && strings.EqualFold(name[:len(HeaderPrefix)], HeaderPrefix)
}

// firstValue is [http.Header.Get] for a name that is canonical, which Get would look into first.
func firstValue(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// HopByHop are the fields that speak of one connection only (RFC 9110, section
// 7.6.1) or are made anew for every response.
var HopByHop = []string{
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

// droppedByDefault are true of the first response only, or are meant for its
// client only. keep_header keeps them.
var droppedByDefault = []string{"Set-Cookie", "Date", "Age", "Alt-Svc", "Server-Timing"}

// headerRules are the canonical names of the fields that are kept though they are dropped by
// default.
type headerRules []string

func newHeaderRules(keep []string) (rules headerRules) {
	for _, name := range keep {
		rules = append(rules, http.CanonicalHeaderKey(name))
	}
	return rules
}

// NeverKept reports whether a field can never be kept. Mcp-Session-Id is the first client's session.
func NeverKept(name string) bool {
	return slices.Contains(HopByHop, name) || name == "Mcp-Session-Id" || strings.HasPrefix(name, "Proxy-") ||
		strings.HasPrefix(name, HeaderPrefix) || strings.HasPrefix(name, http.TrailerPrefix)
}

// kept returns what is to be kept of a response's header: the fields in which it
// differs from the header that the run found, a field that the run removed with
// no values.
func (rules headerRules) kept(found, answered http.Header) map[string][]string {
	named := connectionNames(answered)
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

// connectionNames returns the names of the fields that a header itself says are for one
// connection only, or come as trailers.
func connectionNames(header http.Header) (names []string) {
	for _, lines := range [...][]string{header["Connection"], header["Trailer"]} {
		for _, line := range lines {
			for name := range strings.SplitSeq(line, ",") {
				names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
			}
		}
	}
	return names
}

func (rules headerRules) keeps(name string) bool {
	return slices.Contains(rules, name) || !slices.Contains(droppedByDefault, name)
}

// describesBody reports whether a field is about the body, so that it must not
// stand on a response without its body.
func describesBody(name string) bool {
	switch name {
	case "Content-Type", "Content-Encoding", "Content-Language", "Content-Location", "Content-Range",
		"Content-Disposition", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest":
		return true
	}
	return false
}

func hasTrailers(header http.Header) bool {
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

// bodyAllowed reports whether a response with this status has a body (RFC 9110,
// section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// removeForbiddenLength removes the length of a body that a status 204 has not (RFC 9110,
// section 8.6): over HTTP/2 a client takes the answer for a broken one. Over HTTP/1.1 the server
// removes it.
func removeForbiddenLength(status int, header http.Header) {
	if status == http.StatusNoContent {
		delete(header, "Content-Length")
	}
}

func declaredLength(header http.Header) int64 {
	text := firstValue(header, "Content-Length")
	if text == "" { // the error would be made for nothing
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
