package caddymodule

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// droppedHeaders returns those header fields which the handler is configured to read and which
// no request has behind the given server.
func (h *Handler) droppedHeaders(server *caddyhttp.Server) (dropped []string) {
	if server == nil {
		return nil
	}
	for _, name := range h.readHeaders() {
		if dropsHeader(server, name) && !slices.Contains(dropped, name) {
			dropped = append(dropped, name)
		}
	}
	return dropped
}

// readHeaders returns the header fields of requests that the configuration names.
func (h *Handler) readHeaders() (names []string) {
	names, placeholders := h.reads()
	names = append(names, h.Force)
	if h.RetentionFrom != nil {
		names = append(names, h.RetentionFrom.Header)
	}
	for _, placeholder := range placeholders {
		if name, ok := strings.CutPrefix(placeholder, "http.request.header."); ok {
			name, _, _ = strings.Cut(name, ":") // of a default
			names = append(names, name)
		}
	}
	return names
}

// reads returns the header fields and the placeholders of which keys and scope are made.
func (h *Handler) reads() (fields, placeholders []string) {
	texts := slices.Clone(h.Scope)
	var read func(sources []delivery.Source)
	read = func(sources []delivery.Source) {
		for _, s := range sources {
			fields, texts = append(fields, s.Header), append(texts, s.Text)
			read(s.Parts)
		}
	}
	read(h.sources)
	for _, text := range texts {
		names, _ := placeholdersIn(text)
		placeholders = append(placeholders, names...)
	}
	return fields, placeholders
}

// dropsHeader reports whether a server lets no request have a header field. Caddy's drops the
// names that CGI cannot tell from those with hyphens, and, where one of these is expected, its
// form with hyphens ([caddyhttp.Server.ExpectedUnderscoreHeaders]). Go's has Host elsewhere.
func dropsHeader(server *caddyhttp.Server, name string) bool {
	expects := func(entries []string, hyphens bool) bool {
		return slices.ContainsFunc(entries, func(entry string) bool {
			if hyphens {
				entry = strings.NewReplacer("_", "-", ".", "-").Replace(entry)
			}
			// An entry has no special character but a * at its end.
			matches, _ := path.Match(strings.ToLower(entry), strings.ToLower(name))
			return matches
		})
	}
	underscores, dots := server.ExpectedUnderscoreHeaders, server.ExpectedDotHeaders
	underscore, dot := strings.Contains(name, "_"), strings.Contains(name, ".")
	switch {
	case http.CanonicalHeaderKey(name) == "Host":
		return true
	case underscore && dot: // no entry with a * counts
		return !slices.ContainsFunc(slices.Concat(underscores, dots), func(entry string) bool { return strings.EqualFold(entry, name) })
	case underscore:
		return !expects(underscores, false)
	case dot:
		return !expects(dots, false)
	default:
		return expects(underscores, true) || expects(dots, true)
	}
}
