package report

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// originalURL returns the URL of a request before rewrites.
func originalURL(r *http.Request) *url.URL {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		return original.URL
	}
	return r.URL
}

// MatcherPath returns the path before rewrites as Caddy's matcher compares it: decoded once, without
// dot segments and empty ones, and in lower case.
func MatcherPath(r *http.Request) string {
	u := originalURL(r)
	return strings.ToLower(caddyhttp.CleanPath(cmp.Or(u.Path, u.Opaque, "/"), true))
}

// normalPath returns the normal form of an escaped path (RFC 3986, section 6.2.2): unreserved
// characters are not escaped, the hex digits of escapes are in upper case, and there are no dot
// segments. Paths with one normal form name one resource.
func normalPath(path string) string {
	if strings.Contains(path, "%") {
		path = normalEscapes(path)
	}
	if strings.Contains(path, "/.") {
		path = withoutDotSegments(path)
	}
	return path
}

// normalEscapes leaves an escape that is malformed as it is.
func normalEscapes(path string) string {
	normal := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) {
			normal = append(normal, path[i])
			continue
		}
		c, err := strconv.ParseUint(path[i+1:i+3], 16, 8)
		switch {
		case err != nil:
			normal = append(normal, path[i])
			continue
		case isUnreserved(byte(c)):
			normal = append(normal, byte(c))
		default:
			normal = append(normal, strings.ToUpper(path[i:i+3])...)
		}
		i += 2
	}
	return string(normal)
}

// isUnreserved reports whether a character is unreserved (RFC 3986, section 2.3).
func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}

// withoutDotSegments removes the segments . and .. (RFC 3986, section 5.2.4).
func withoutDotSegments(path string) string {
	segments := strings.Split(path, "/")
	kept := segments[:0]
	for i, segment := range segments {
		switch last := i == len(segments)-1; {
		case segment != "." && segment != "..":
			kept = append(kept, segment)
			continue
		case segment == ".." && len(kept) > 1:
			kept = kept[:len(kept)-1]
			fallthrough
		default:
			if last {
				kept = append(kept, "") // the path ends with a slash
			}
		}
	}
	return strings.Join(kept, "/")
}

// OriginalPath returns the normal form of the path as the client sent it, escaped, before rewrites,
// and the query as it was sent. RawPath comes first: if the client sent a byte that has to be escaped,
// EscapedPath would make %2F and / one path.
func OriginalPath(r *http.Request) (path, query string) {
	u := originalURL(r)
	return normalPath(cmp.Or(u.RawPath, u.EscapedPath(), u.Opaque, "/")), u.RawQuery
}
