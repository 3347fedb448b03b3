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
	// Header is the name of the field with the signature.
	Header string
	// Format is the form of the field's value: {signature}, the default, alone or after a prefix,
	// such as sha256={signature}; or several entries, such as t={timestamp},v1={signature}. Entries
	// are separated by a comma, a semicolon or a space, and come in any order. Those of signatures
	// may repeat; unknown ones are ignored.
	Format string
	// Algorithm is sha256, the default, sha1 or sha512.
	Algorithm string
	// Encoding of the signature is hex, the default, or base64.
	Encoding string
	// SecretEncoding is text, the default, hex or base64.
	SecretEncoding string
	// Signed has the signed bytes: {body}, the default, alone or with text, {timestamp} and
	// {http.request.header.<Field>} around it.
	Signed string
	// TimeHeader is the name of the field with the timestamp, if Format has none.
	TimeHeader string
	// Unit of the timestamp is s, the default, ms or rfc3339.
	Unit string
}

// scheme is a row: a [Scheme], and what only the catalogue sets.
type scheme struct {
	Scheme
	parameter string // the query parameter with the signature, instead of a field
	second    string // a second field with signatures
	pointer   string // the JSON pointer to the timestamp in the body, in milliseconds
	id        string // the field with the delivery ID, if it is signed
	fixed     []field
	static    bool // the provider sends the secret itself and signs nothing
	// takes reports whether a secret is for this scheme; nil means that all are.
	takes func(secret string) bool
	// publicKey parses a public key; nil means that the scheme uses secrets. size is the length of
	// its signatures in bytes, 0 if it varies.
	publicKey func(text string) (publicKey, error)
	size      int
	// read overrides Format, and verify overrides Signed.
	read   func(a *authentication, value string, now time.Time) (reason string)
	verify func(a *authentication, body Body) (reason string, err error)
	how    string // overrides the description of the row
}

// field is a field that must have this value: the version of a scheme, if Format has none.
type field struct{ name, value string }

// The placeholders of [Scheme.Signed]; only the catalogue has {url}.
const (
	placeBody   = "{body}"
	placeTime   = "{timestamp}"
	placeURL    = "{url}"
	fieldPrefix = "{http.request.header."
)

// part is a part of the signed bytes: a placeholder, a field, or literal text.
type part struct {
	place, field, text string
	// previous and next are the texts that separate a field from its neighbors. Its value must not
	// contain them, or a forger could move bytes between parts under the same signature.
	previous, next string
}

// runner is a compiled row with the secrets or public keys of a configuration.
type runner struct {
	scheme
	format  format
	parts   []part
	hashes  []func() hash.Hash
	timed   bool // whether requests may have a signed timestamp
	keys    [][]byte
	publics []publicKey
	labels  []string // hashes of the keys or of the public keys
	urls    []string
	within  time.Duration
}

// algorithms has the hashes by [Scheme.Algorithm]. A row of the catalogue may have several, separated
// by |, and so several encodings: the length of a signature determines which it has.
var algorithms = map[string]func() hash.Hash{"sha256": sha256.New, "sha1": sha1.New, "sha512": sha512.New}

// withDefaults returns the row with its defaults.
func (s scheme) withDefaults() scheme {
	s.Format, s.Algorithm, s.Encoding = cmp.Or(s.Format, "{signature}"), cmp.Or(s.Algorithm, "sha256"), cmp.Or(s.Encoding, "hex")
	s.SecretEncoding, s.Signed = cmp.Or(s.SecretEncoding, "text"), cmp.Or(s.Signed, placeBody)
	return s
}

// checkOwn returns an error if a configured scheme has an invalid name or word.
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

// compile parses the texts of a row. A configured scheme (own) must not have adjacent parts; those of
// the catalogue cannot exchange bytes.
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
		r.format.separator = "," // a single entry may also repeat
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
		return nil, errors.New("signed has no {timestamp}: anyone could change an unsigned one")
	case signed && !from:
		return nil, errors.New("signed has {timestamp}, and neither format nor timestamp says where it is")
	case s.Unit != "" && !from:
		return nil, fmt.Errorf("timestamp has the unit %q, and neither format nor timestamp says where it is", s.Unit)
	}
	return r, nil
}

// timeTouchesBody reports whether one part is the timestamp and the other the body. They need no
// separator, because a timestamp has a fixed form.
func timeTouchesBody(a, b part) bool {
	return a.place == placeTime && b.place == placeBody || a.place == placeBody && b.place == placeTime
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}?`)

// parseSigned parses a [Scheme.Signed].
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
			return nil, fmt.Errorf("signed %q has %s directly after another placeholder: anyone could move bytes from one to the other under the same signature; write a text between them", text, p.place)
		}
		parts, end = append(parts, p), at[1]
	}
	if end < len(text) {
		parts = append(parts, part{text: text[end:]})
	}
	if !strings.Contains(text, placeBody) {
		return nil, fmt.Errorf("signed %q has no {body}: anyone with one signature could send it with any body", text)
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
