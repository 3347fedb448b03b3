package idempotency

import (
	"encoding/json"
	"mime"
	"strings"
	"unicode/utf8"
)

// MaxInlineJSON is the size, in bytes, up to which a kept JSON body is shown within another
// response.
const MaxInlineJSON = 4 << 10

// InlineJSON returns the body if it is JSON of at most [MaxInlineJSON] bytes, otherwise nil, as it
// does for a nil response.
func (r *Response) InlineJSON() json.RawMessage {
	if r == nil || len(r.Body) > MaxInlineJSON || len(r.Header["Content-Type"]) == 0 || !isJSON(r.Header["Content-Type"][0]) {
		return nil
	}
	if !utf8.Valid(r.Body) || !json.Valid(r.Body) {
		return nil
	}
	return r.Body
}

// isJSON reports whether a media type is JSON (RFC 8259) or has the suffix +json (RFC 6839,
// section 3.1).
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}
