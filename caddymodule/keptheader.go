package caddymodule

import (
	"net/http"
	"slices"
	"strings"
)

// hopByHop are the fields that speak of one connection only (RFC 9110, section
// 7.6.1) or are made anew for every response.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

// droppedByDefault are true of the first response only, or are meant for its
// client only. keep_header keeps them.
var droppedByDefault = []string{"Set-Cookie", "Date", "Age", "Alt-Svc", "Server-Timing"}

// headerRules says which fields of a response are kept with it.
type headerRules struct {
	keep, drop []string // canonical names
}

func newHeaderRules(keep, drop []string) headerRules {
	var rules headerRules
	for _, name := range keep {
		rules.keep = append(rules.keep, http.CanonicalHeaderKey(name))
	}
	for _, name := range drop {
		rules.drop = append(rules.drop, http.CanonicalHeaderKey(name))
	}
	return rules
}

// connectionOnly reports whether a field can never be kept.
func connectionOnly(name string) bool {
	return slices.Contains(hopByHop, name) || strings.HasPrefix(name, "Proxy-") ||
		strings.HasPrefix(name, dedupHeaderPrefix) || strings.HasPrefix(name, http.TrailerPrefix)
}

// kept returns what is to be kept of a response's header: the fields in which it
// differs from the header that the run found, a field that the run removed with
// no values.
func (rules headerRules) kept(found, answered http.Header) map[string][]string {
	named := make(map[string]bool)
	for _, line := range answered["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for _, line := range answered["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	out := make(map[string][]string)
	for name, values := range answered {
		if !connectionOnly(name) && !named[name] && rules.keeps(name) && !slices.Equal(values, found[name]) {
			out[name] = slices.Clone(values)
		}
	}
	for name := range found {
		if _, still := answered[name]; !still && !connectionOnly(name) {
			out[name] = nil
		}
	}
	return out
}

func (rules headerRules) keeps(name string) bool {
	if slices.Contains(rules.drop, name) {
		return false
	}
	return slices.Contains(rules.keep, name) || !slices.Contains(droppedByDefault, name)
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
