package signature

import (
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"hash"
	"strings"

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

// kind is how a scheme is verified.
type kind int

const (
	keyedHash kind = iota
	token          // the field has the secret itself
	basic          // as in HTTP's Basic authentication
	publicKeyEd25519
	publicKeyECDSA
	ofConvoy
	ofTwilio
	ofAdyen
)

// The encodings of secrets that only the catalogue has.
const (
	secretWhsec       = "whsec"         // base64, with or without whsec_ in front
	secretWhsecOrText = "whsec or text" // base64 behind whsec_, else text
	secretUser        = "user:password"
)

// scheme is a row: a [Scheme], and what only the catalogue's have.
type scheme struct {
	Scheme
	kind kind
	// second is a second field with signatures.
	second string
	// parameter is the query parameter with the signature, in place of a field.
	parameter string
	// pointer is the JSON pointer to the timestamp in the body, in milliseconds.
	pointer string
	// id is the field with the delivery ID, if it is signed.
	id string
	// fixed are fields that have these values: the version of a scheme, if it is not in Format.
	fixed []field
	// takes reports whether a secret is one of this scheme; nil means that each is.
	takes func(secret string) bool
}

type field struct{ field, value string }

// part is a piece of the bytes that are signed.
type part struct {
	is   string // literal, or the placeholder: body, timestamp, url or field
	text string // the literal, or the name of the field
	// without are texts that a field's value must not have, because they separate it from what
	// is beside it: else bytes could move from one part to the next under the same signature.
	without []string
}

const (
	literal       = "literal"
	placeBody     = "body"
	placeTime     = "timestamp"
	placeURL      = "url"
	placeField    = "field"
	fieldPrefix   = "http.request.header."
	placeholders  = "{body}, {timestamp} or {http.request.header.<Field>}"
	defaultSigned = "{body}"
)

// compiled is a row that can be run, without its secrets.
type compiled struct {
	scheme
	format  format
	parts   []part
	newHash func() hash.Hash
	size    int // of the digest, in bytes
}

// compile reads the texts of a row. Those of the catalogue may have {url} in what is signed, and
// parts side by side that cannot exchange a byte.
func (s scheme) compile(catalogue bool) (*compiled, error) {
	c := &compiled{scheme: s}
	var err error
	if !catalogue && !httpguts.ValidHeaderFieldName(s.Header) {
		return nil, fmt.Errorf("header %q is not the name of a header field, such as X-Signature", s.Header)
	}
	if c.format, err = parseFormat(cmp.Or(s.Format, "{signature}")); err != nil {
		return nil, err
	}
	if entry := c.format.entries[0].prefix; !catalogue && c.format.separator == "" && !strings.Contains(entry, ",") {
		c.format.separator = "," // an entry of its own may repeat too
	}
	switch s.Algorithm {
	case "", "sha256":
		c.newHash, c.size = sha256.New, sha256.Size
	case "sha1":
		c.newHash, c.size = sha1.New, sha1.Size
	case "sha512":
		c.newHash, c.size = sha512.New, sha512.Size
	default:
		return nil, fmt.Errorf("algorithm %q is unknown; it must be sha256, sha1 or sha512", s.Algorithm)
	}
	switch s.Encoding {
	case "", "hex", "base64":
	default:
		return nil, fmt.Errorf("encoding %q is unknown; it must be hex or base64", s.Encoding)
	}
	switch s.Unit {
	case "", "s", "ms", "rfc3339":
	default:
		return nil, fmt.Errorf("the unit %q of timestamp is unknown; it must be s, ms or rfc3339", s.Unit)
	}
	if s.TimeHeader != "" && !httpguts.ValidHeaderFieldName(s.TimeHeader) {
		return nil, fmt.Errorf("timestamp %q is not the name of a header field, such as X-Timestamp", s.TimeHeader)
	}
	if c.parts, err = parseSigned(cmp.Or(s.Signed, defaultSigned), catalogue); err != nil {
		return nil, err
	}
	return c, c.checkTime()
}

// timed reports whether requests may have a timestamp that is signed.
func (c *compiled) timed() bool {
	return c.TimeHeader != "" || c.format.timed || c.pointer != "" || c.kind == ofConvoy
}

// checkTime says what is wrong with the timestamp: one that is not signed proves nothing.
func (c *compiled) checkTime() error {
	signed := false
	for _, p := range c.parts {
		signed = signed || p.is == placeTime
	}
	switch from := c.TimeHeader != "" || c.format.timed; {
	case c.TimeHeader != "" && c.format.timed:
		return fmt.Errorf("the timestamp is in format already; leave %q out of timestamp", c.TimeHeader)
	case from && !signed:
		return errors.New("signed has no {timestamp}; a timestamp that is not signed can be changed by anybody")
	case signed && !from:
		return errors.New("signed has {timestamp}, and neither format nor timestamp says where it is")
	case c.Unit != "" && !from:
		return fmt.Errorf("timestamp has the unit %q, and neither format nor timestamp says where it is", c.Unit)
	}
	return nil
}

// parseSigned reads the template of the bytes that are signed.
func parseSigned(text string, catalogue bool) ([]part, error) {
	var parts []part
	seen := map[string]bool{}
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if before != "" {
			parts = append(parts, part{is: literal, text: before})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("signed %q has a { without its }; the placeholders are %s", text, placeholders)
		}
		p := part{is: name}
		if field, is := strings.CutPrefix(name, fieldPrefix); is && httpguts.ValidHeaderFieldName(field) {
			p = part{is: placeField, text: field}
		} else if name != placeBody && name != placeTime && !(catalogue && name == placeURL) {
			return nil, fmt.Errorf("signed %q has {%s}; the placeholders are %s", text, name, placeholders)
		}
		if !catalogue && len(parts) > 0 && parts[len(parts)-1].is != literal {
			return nil, fmt.Errorf("signed %q has {%s} right behind another placeholder: bytes could move from one to the other under the same signature; they need a text between them", text, name)
		}
		if seen[name] {
			return nil, fmt.Errorf("signed %q has {%s} twice; each placeholder may occur once", text, name)
		}
		seen[name] = true
		parts, rest = append(parts, p), after
	}
	if !seen[placeBody] {
		return nil, fmt.Errorf("signed %q has no {body}: whoever has one signature could send it with any body", text)
	}
	for i := range parts {
		if parts[i].is == placeField {
			parts[i].without = separators(parts, i)
		}
	}
	return parts, nil
}

// separators returns what separates a field from the parts beside it. An RFC 3339 timestamp
// right behind one begins with four digits, and has colons, which no ID of Twitch's has.
func separators(parts []part, i int) (all []string) {
	if i > 0 && parts[i-1].is == literal {
		all = append(all, parts[i-1].text)
	}
	if i+1 < len(parts) && parts[i+1].is == literal {
		all = append(all, parts[i+1].text)
	}
	if i+1 < len(parts) && parts[i+1].is == placeTime {
		all = append(all, ":")
	}
	return all
}
