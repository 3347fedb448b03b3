package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// authentication is the check of one request by one verifier, begun by [Verifiers.Begin].
type authentication struct {
	of        *Verifier
	run       *runner
	request   Request
	timestamp string   // as the request has it, because so it is signed
	digests   [][]byte // the signatures
	fits      int      // the first secret or public key that fits
}

const noMatch = "no signature matches"

// values returns the values at the place of the signature, and the name of that place.
func (r *runner) values(req Request) (values []string, place string) {
	if r.parameter != "" {
		return parameters(req.Target, r.parameter), "the query parameter " + r.parameter
	}
	return req.Header.Values(r.Header), r.Header
}

// begin reads signatures, timestamp and signed fields of a request. If it refuses the request, it
// returns the reason.
func (r *runner) begin(req Request, now time.Time) (a authentication, reason string) {
	a = authentication{run: r, request: req}
	for _, f := range r.fixed {
		if req.Header.Get(f.name) != f.value {
			return a, f.name + " is not " + f.value
		}
	}
	if r.Header == "" && r.parameter == "" { // Adyen: the signatures are in the body
		return a, ""
	}
	values, place := r.values(req)
	if second := req.Header.Values(r.second); r.second != "" && len(second) > 0 {
		if strings.Join(values, "") == "" { // one of the two is enough
			values, place = second, r.second
		} else if value, reason := single(second, r.second); reason != "" {
			return a, reason
		} else if reason = a.readSignatures(value, r.second); reason != "" {
			return a, reason
		}
	}
	value, reason := single(values, place)
	switch {
	case reason != "":
		return a, reason
	case r.read != nil:
		return a, r.read(&a, value, now)
	case r.static:
		if a.fits = r.indexOf(value); a.fits < 0 {
			return a, place + " is not the secret"
		}
		return a, ""
	}
	if reason = a.readSignatures(value, place); reason != "" {
		return a, reason
	}
	return a, a.readFields(now)
}

// single returns the only value. It refuses several: software that reads the first and software
// that reads the last would disagree about the sender.
func single(values []string, place string) (value, reason string) {
	switch {
	case len(values) == 0:
		return "", "the request has no " + place
	case len(values) > 1:
		return "", "the request has " + place + " more than once"
	case values[0] == "":
		return "", place + " is empty"
	case len(values[0]) > maxValue:
		return "", fmt.Sprintf("%s is longer than %d bytes", place, maxValue)
	}
	return values[0], ""
}

// parameters returns the values of a query parameter in a request target.
func parameters(target, name string) (values []string) {
	_, query, _ := strings.Cut(target, "?")
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if value, err := url.QueryUnescape(value); err == nil {
			values = append(values, value)
		}
	}
	return values
}

// indexOf returns the index of the secret that equals a value, or -1. It compares in constant time.
func (r *runner) indexOf(value string) int {
	if r.SecretEncoding == secretUser {
		method, encoded, _ := strings.Cut(value, " ")
		user, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || !strings.EqualFold(method, "Basic") {
			return -1
		}
		value = string(user)
	}
	given, index := sha256.Sum256([]byte(value)), -1
	for i, key := range slices.Backward(r.keys) {
		own := sha256.Sum256(key)
		if hmac.Equal(given[:], own[:]) {
			index = i
		}
	}
	return index
}

// readSignatures reads the signatures in a value, and the timestamp if the format has one.
func (a *authentication) readSignatures(value, place string) string {
	timestamp, texts, err := a.run.format.read(value)
	if err != nil {
		return place + " " + err.Error()
	}
	if a.run.format.timed {
		a.timestamp = timestamp
	}
	for _, text := range texts {
		if digest := a.run.decode(text); digest != nil {
			a.digests = append(a.digests, digest)
		}
	}
	if len(a.digests) == 0 {
		return place + " has no signature of the right length and encoding"
	}
	return ""
}

// decode returns the bytes of a signature, or nil if the text is not a signature of this scheme.
func (r *runner) decode(text string) []byte {
	for encoding := range strings.SplitSeq(r.Encoding, "|") {
		digest := decodeText(text, encoding)
		if r.publicKey != nil && (r.size == 0 || len(digest) == r.size) {
			return digest
		}
		for _, newHash := range r.hashes {
			if r.publicKey == nil && len(digest) == newHash().Size() {
				return digest
			}
		}
	}
	return nil
}

// decodeText decodes hex, in either case, or base64. It returns nil for an empty or malformed text.
func decodeText(text, encoding string) []byte {
	decode := hex.DecodeString
	if encoding == "base64" {
		decode = base64.StdEncoding.Strict().DecodeString
	}
	if bytes, err := decode(text); err == nil && len(bytes) > 0 {
		return bytes
	}
	return nil
}

// readFields checks the fields that are signed, and reads the timestamp.
func (a *authentication) readFields(now time.Time) (reason string) {
	r := a.run
	for _, p := range r.parts {
		if p.field == "" {
			continue
		}
		value, reason := single(a.request.Header.Values(p.field), p.field)
		if reason != "" {
			return reason
		}
		if p.next != "" && strings.Index(value+p.next, p.next) < len(value) || p.previous != "" && strings.LastIndex(p.previous+value, p.previous) > 0 {
			return p.field + " contains the separator between the signed parts"
		}
	}
	if r.TimeHeader != "" {
		if a.timestamp, reason = single(a.request.Header.Values(r.TimeHeader), r.TimeHeader); reason != "" {
			return reason
		}
	}
	if r.TimeHeader == "" && !r.format.timed {
		return ""
	}
	return checkTimestamp(a.timestamp, r.Unit, now, r.within)
}

// verify checks the signatures over the body, and returns the reason if none is valid. The error is
// that of [Body.Whole] or [Body.Reserve].
func (a *authentication) verify(body Body, now time.Time) (reason string, err error) {
	r := a.run
	switch {
	case r.static:
		return "", nil
	case r.scheme.verify != nil:
		return r.scheme.verify(a, body)
	case r.publicKey != nil:
		return a.verifyPublic(body)
	case len(r.urls) > 1 && body.start(1) != "{":
		// If one URL is a prefix of another, a forger could move the rest of it into the body.
		return "the body is not a JSON object, and there is more than one url", nil
	}
	var messages []func(io.Writer)
	for _, url := range r.urls {
		messages = append(messages, func(to io.Writer) { a.write(to, url, body) })
	}
	switch {
	case !a.matches(messages...):
		return noMatch, nil
	case r.pointer != "":
		return r.checkMember(body, now)
	}
	return "", nil
}

// matches reports whether any signature is valid for any of the messages and any secret, and sets
// fits.
func (a *authentication) matches(messages ...func(io.Writer)) bool {
	for i, key := range a.run.keys {
		for _, newHash := range a.run.hashes {
			for _, write := range messages {
				mac := hmac.New(newHash, key)
				write(mac)
				sum := mac.Sum(nil)
				if slices.ContainsFunc(a.digests, func(digest []byte) bool { return hmac.Equal(sum, digest) }) {
					a.fits = i
					return true
				}
			}
		}
	}
	return false
}

// write writes the signed bytes to a hash or a buffer, neither of which returns errors.
func (a *authentication) write(to io.Writer, url string, body Body) {
	for _, p := range a.run.parts {
		text := p.text
		switch {
		case p.place == placeBody:
			for piece := range body.Pieces {
				_, _ = to.Write(piece)
			}
		case p.place == placeTime:
			text = a.timestamp
		case p.place == placeURL:
			text = url
		case p.field != "":
			text = a.request.Header.Get(p.field)
		}
		_, _ = io.WriteString(to, text)
	}
}

// verifyPublic checks a signature with the public keys. Ed25519 needs the message in one piece.
func (a *authentication) verifyPublic(body Body) (string, error) {
	n := len(a.timestamp) + body.size()
	if err := body.Reserve(n); err != nil {
		return "", err
	}
	message := bytes.NewBuffer(make([]byte, 0, n))
	a.write(message, "", body)
	for i, isSigned := range a.run.publics {
		if isSigned(message.Bytes(), a.digests[0]) {
			a.fits = i
			return "", nil
		}
	}
	return noMatch, nil
}

// checkMember checks the timestamp in a body whose signature is valid.
func (r *runner) checkMember(body Body, now time.Time) (string, error) {
	doc, reason, err := parse(body)
	if doc == nil {
		return reason, err
	}
	value, ok := doc.Root().At(r.pointer)
	if !ok || value.Kind() != jsontext.KindNumber {
		return "the body has no number at " + r.pointer, nil
	}
	text, _ := value.Text() // only strings return an error
	return checkTimestamp(text, "ms", now, r.within), nil
}

// parse parses the body as JSON. If it is not JSON, parse returns the reason.
func parse(body Body) (doc *canonicaljson.Document, reason string, err error) {
	text, err := body.Whole()
	if err != nil {
		return nil, "", err
	}
	var noRoom error
	doc, err = canonicaljson.Parse(text, func(bytes int) error {
		noRoom = body.Reserve(bytes)
		return noRoom
	})
	if err != nil && noRoom == nil {
		return nil, "the body is " + err.Error(), nil
	}
	return doc, "", noRoom
}
