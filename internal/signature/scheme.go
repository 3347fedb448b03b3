package signature

import (
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Scheme is a keyed hash (HMAC) over the request, in a header field.
type Scheme struct {
	// Header is the field with the signature.
	Header string
	// Format is how the field's value is written: {signature}, the default, alone or behind a
	// prefix, such as sha256={signature}; or several entries, such as t={timestamp},v1={signature}.
	// They are separated by a comma, a semicolon or a space, and come in any order; those of
	// signatures may repeat, and others are ignored.
	Format string
	// Algorithm is sha256, the default, sha1 or sha512.
	Algorithm string
	// Encoding of the signature is hex, the default, or base64.
	Encoding string
	// SecretEncoding is text, the default, hex or base64.
	SecretEncoding string
	// Signed are the bytes that are signed: {body}, the default, and text, {timestamp} and
	// {http.request.header.<Field>} around it.
	Signed string
	// TimeHeader is the field with the timestamp, if Format has none.
	TimeHeader string
	// Unit of the timestamp is s, the default, ms or rfc3339.
	Unit string
}

// scheme is a row: a [Scheme], and what only the catalogue's have.
type scheme struct {
	Scheme
	parameter string // the query parameter with the signature, in place of a field
	second    string // a second field with signatures
	pointer   string // the JSON pointer to the timestamp in the body, in milliseconds
	id        string // the field with the delivery ID, if it is signed
	fixed     []field
	static    bool // the secret itself is sent, and nothing is signed
	// takes reports whether a secret is one of this scheme; nil means that each is.
	takes func(secret string) bool
	// publicKey reads a public key, of which a signature has size bytes, or any number if that is
	// 0; nil means that the scheme has a secret, and a signature the size of the hash.
	publicKey func(text string) (publicKey, error)
	size      int
	// read is in place of what Format says, and verify of what Signed says.
	read   func(a *attempt, value string, now time.Time) (reason string)
	verify func(a *attempt, body Body) (reason string, err error)
	how    string // in words, if there is more to say than the row does
}

// field is a field that has this value: the version of a scheme, where Format has none.
type field struct{ name, value string }

// The placeholders of [Scheme.Signed]; only the catalogue has {url}.
const (
	placeBody   = "{body}"
	placeTime   = "{timestamp}"
	placeURL    = "{url}"
	fieldPrefix = "{http.request.header."
)

// part is a piece of the bytes that are signed: a placeholder, the name of a field, or a text.
type part struct {
	place, field, text string
	// previous and next separate a field from what is beside it. Its value must not have them, or
	// bytes could move from one part to the next under the same signature.
	previous, next string
}

// runner is a row with the secrets or public keys of a configuration.
type runner struct {
	scheme
	format  format
	parts   []part
	hashes  []func() hash.Hash
	timed   bool // whether requests may have a timestamp that is signed
	keys    [][]byte
	publics []publicKey
	labels  []string // hashes of the keys or of the public keys
	urls    []string
	within  time.Duration
}

// algorithms are what [Scheme.Algorithm] may be. A row of the catalogue may have several, with a |
// between them, and encodings too: a signature is in the first that its length fits.
var algorithms = map[string]func() hash.Hash{"sha256": sha256.New, "sha1": sha1.New, "sha512": sha512.New}

// withDefaults returns the row with what it leaves out.
func (s scheme) withDefaults() scheme {
	s.Format, s.Algorithm, s.Encoding = cmp.Or(s.Format, "{signature}"), cmp.Or(s.Algorithm, "sha256"), cmp.Or(s.Encoding, "hex")
	s.SecretEncoding, s.Signed = cmp.Or(s.SecretEncoding, "text"), cmp.Or(s.Signed, placeBody)
	return s
}

// checkOwn says what is wrong with the words of a scheme of the user's own.
func (s Scheme) checkOwn() error {
	if !httpguts.ValidHeaderFieldName(s.Header) {
		return fmt.Errorf("header %q is not the name of a header field, such as X-Signature", s.Header)
	}
	if s.TimeHeader != "" && !httpguts.ValidHeaderFieldName(s.TimeHeader) {
		return fmt.Errorf("timestamp %q is not the name of a header field, such as X-Timestamp", s.TimeHeader)
	}
	for _, setting := range []struct {
		name, word string
		accepted   []string
	}{
		{"algorithm", s.Algorithm, []string{"sha256", "sha1", "sha512"}},
		{"encoding", s.Encoding, []string{"hex", "base64"}},
		{"secret_encoding", s.SecretEncoding, []string{"text", "hex", "base64"}},
		{"the unit of timestamp", s.Unit, []string{"s", "ms", "rfc3339"}},
	} {
		if setting.word != "" && !slices.Contains(setting.accepted, setting.word) {
			return fmt.Errorf("%s %q is unknown; it must be %s", setting.name, setting.word, strings.Join(setting.accepted, ", "))
		}
	}
	return nil
}

// compile reads the texts of a row. One of the user's own may not have parts side by side; those of
// the catalogue that do cannot exchange a byte.
func (s scheme) compile(own bool) (*runner, error) {
	r := &runner{scheme: s.withDefaults()}
	for name := range strings.SplitSeq(r.Algorithm, "|") {
		r.hashes = append(r.hashes, algorithms[name])
	}
	var err error
	if r.format, err = parseFormat(r.Format); err != nil {
		return nil, err
	}
	if own && r.format.separator == "" && !strings.Contains(r.Format, ",") {
		r.format.separator = "," // a single entry may repeat too
	}
	if r.parts, err = parseSigned(r.Signed, own); err != nil {
		return nil, err
	}
	signed := strings.Contains(r.Signed, placeTime)
	r.timed = signed || s.pointer != "" || s.read != nil
	switch from := s.TimeHeader != "" || r.format.timed; {
	case s.TimeHeader != "" && r.format.timed:
		return nil, fmt.Errorf("the timestamp is in format already; leave %q out of timestamp", s.TimeHeader)
	case from && !signed:
		return nil, errors.New("signed has no {timestamp}: one that is not signed can be changed by anybody")
	case signed && !from:
		return nil, errors.New("signed has {timestamp}, and neither format nor timestamp says where it is")
	case s.Unit != "" && !from:
		return nil, fmt.Errorf("timestamp has the unit %q, and neither format nor timestamp says where it is", s.Unit)
	}
	return r, nil
}

// timeTouchesBody reports whether one of two parts is the timestamp, which has a fixed form, and the
// other one the body.
func timeTouchesBody(a, b part) bool {
	return a.place == placeTime && b.place == placeBody || a.place == placeBody && b.place == placeTime
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}?`)

// parseSigned reads the template of the bytes that are signed.
func parseSigned(text string, own bool) (parts []part, err error) {
	end := 0
	for _, at := range placeholder.FindAllStringIndex(text, -1) {
		p := part{place: text[at[0]:at[1]]}
		name, isField := strings.CutPrefix(p.place, fieldPrefix)
		if name, closed := strings.CutSuffix(name, "}"); isField && closed && httpguts.ValidHeaderFieldName(name) {
			if p.field = name; strings.EqualFold(name, "Host") {
				return nil, fmt.Errorf("signed %q has the field Host, which a server removes from the header, so that no request would verify; leave it out", text)
			}
		} else if p.place != placeBody && p.place != placeTime && (p.place != placeURL || own) {
			return nil, fmt.Errorf("signed %q has %s; the placeholders are {body}, {timestamp} and {http.request.header.<Field>}", text, p.place)
		}
		if strings.Count(text, p.place) > 1 {
			return nil, fmt.Errorf("signed %q has %s twice", text, p.place)
		}
		if before := text[end:at[0]]; before != "" {
			parts = append(parts, part{text: before})
		} else if own && end > 0 && !timeTouchesBody(parts[len(parts)-1], p) {
			return nil, fmt.Errorf("signed %q has %s right behind another placeholder: bytes could move from one to the other under the same signature; they need a text between them", text, p.place)
		}
		parts, end = append(parts, p), at[1]
	}
	if end < len(text) {
		parts = append(parts, part{text: text[end:]})
	}
	if !strings.Contains(text, placeBody) {
		return nil, fmt.Errorf("signed %q has no {body}: whoever has one signature could send it with any body", text)
	}
	for i := range parts {
		if i > 0 {
			parts[i].previous = parts[i-1].text
		}
		if i+1 < len(parts) {
			parts[i].next = parts[i+1].text
			if parts[i+1].place == placeTime {
				parts[i].next = ":" // Twitch's timestamp has some, and its IDs have none
			}
		}
	}
	return parts, nil
}
