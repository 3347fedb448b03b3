package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// oftenKept are fields besides Content-* with which upstreams and proxies say something to
// clients, so that none of ours may have their names.
var oftenKept = []string{
	"Age", "Allow", "Cache-Control", "Date", "Etag", "Expires", "Last-Modified", "Link", "Location", "Retry-After", "Server",
	"Set-Cookie", "Vary", "Via", "Www-Authenticate",
}

func checkHeaderNames(setting string, names []string) error {
	for i, name := range names {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%s: %q is not the name of a header field", setting, withoutPassword(name))
		}
		if strings.Contains(name, "*") { // a name may have it, and none has
			return fmt.Errorf("%s: %q stands for no other fields; name each of them", setting, name)
		}
		if slices.ContainsFunc(names[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return fmt.Errorf("%s: %s is named twice", setting, name)
		}
	}
	return nil
}

func checkReplayedHeader(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	if connectionOnly(canonical) || strings.HasPrefix(canonical, "Content-") || slices.Contains(oftenKept, canonical) {
		return fmt.Errorf("replayed_header: %s has a meaning of its own; use another field such as Idempotent-Replayed", name)
	}
	return checkHeaderNames("replayed_header", []string{name})
}

func checkKeepHeader(names []string) error {
	for _, name := range names {
		if connectionOnly(http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("keep_header: %s speaks of one connection or one request and can never be kept", name)
		}
	}
	return checkHeaderNames("keep_header", names)
}

func checkDropHeader(names []string) error {
	for _, name := range names {
		if isDedupHeader(name) || strings.EqualFold(name, "Content-Length") {
			return fmt.Errorf("drop_header: %s is made anew for each replay, and is never the upstream's; leave it out", name)
		}
	}
	if slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, "Content-Encoding") }) {
		return errors.New("drop_header: Content-Encoding says how the body is to be read, and without it no client could read a replay; leave it out")
	}
	return checkHeaderNames("drop_header", names)
}

// checkHeadersTogether finds words about header fields that exclude each other or another
// setting, and names one of them.
func (s *Settings) checkHeadersTogether() (word string, err error) {
	same := func(name string) func(string) bool {
		return func(other string) bool { return strings.EqualFold(other, name) }
	}
	for _, name := range s.KeepHeader {
		if slices.ContainsFunc(s.DropHeader, same(name)) {
			return "drop_header", fmt.Errorf("%s stands in keep_header and in drop_header; use one of them", name)
		}
	}
	mark := same(cmp.Or(s.ReplayedHeader, usualReplayedHeader))
	for word, names := range map[string][]string{"keep_header": s.KeepHeader, "drop_header": s.DropHeader} {
		if i := slices.IndexFunc(names, mark); i >= 0 {
			return word, fmt.Errorf("%s: %s marks a replay, in which it is true; leave it out, or use another field for replayed_header", word, names[i])
		}
	}
	if i := slices.IndexFunc(s.DropHeader, same("Location")); i >= 0 && s.Duplicate == duplicateSeeOther {
		return "drop_header", fmt.Errorf("drop_header: without %s no duplicate gets the 303 of duplicate see_other; leave it out, or use another word for duplicate", s.DropHeader[i])
	}
	return "", nil
}
