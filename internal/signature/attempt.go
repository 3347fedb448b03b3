package signature

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// attempt is what [Verifiers.Begin] has read of a request for one verifier.
type attempt struct {
	of        *Verifier
	scheme    *keyed
	settled   bool              // a static secret is right: the body has no part in it
	timestamp string            // as the request has it, because so it is signed
	fields    map[string]string // the fields that are signed, by their names in the template
	digests   [][]byte          // the signatures
	id        string
	request   Request // for what twilio signs of it
}

const noMatch = "no signature matches"

// isUsed reports whether a request has the field or the parameter of the scheme.
func (k *keyed) isUsed(r Request) bool {
	if k.parameter != "" {
		return len(parameters(r.Target, k.parameter)) > 0
	}
	return k.Header == "" || len(r.Header.Values(k.Header)) > 0
}

// begin reads what a request has of the scheme but the body, or returns why it is refused.
func (k *keyed) begin(r Request, now time.Time) (attempt, string) {
	a := attempt{scheme: k, request: r, id: r.Header.Get(k.id)}
	if k.kind == ofAdyen { // all is in the body
		return a, ""
	}
	for _, f := range k.fixed {
		if r.Header.Get(f.field) != f.value {
			return a, fmt.Sprintf("%s is not %s", f.field, f.value)
		}
	}
	value, reason := k.value(r)
	if reason != "" {
		return a, reason
	}
	switch k.kind {
	case token, basic:
		if k.isSecret(value) {
			a.settled = true
			return a, ""
		}
		return a, k.place() + " is not the secret"
	case ofConvoy:
		return a, a.readConvoy(value, now)
	}
	if reason := a.readSignatures(value, k.place()); reason != "" {
		return a, reason
	}
	if second := r.Header.Values(k.second); k.second != "" && len(second) > 0 {
		if value, reason = single(second, k.second); reason != "" {
			return a, reason
		}
		if reason := a.readSignatures(value, k.second); reason != "" {
			return a, reason
		}
	}
	return a, a.readFields(r, now)
}

// place names where the signature is.
func (k *keyed) place() string {
	if k.parameter != "" {
		return "the query parameter " + k.parameter
	}
	return k.Header
}

func (k *keyed) value(r Request) (value, reason string) {
	if k.parameter != "" {
		return single(parameters(r.Target, k.parameter), k.place())
	}
	return single(r.Header.Values(k.Header), k.Header)
}

// single returns the only one of the values. Software that reads the first of two fields, and
// software that reads the last, would disagree on who has sent the request.
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

// parameters returns the values of a query parameter of a request's target.
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

// isSecret reports whether a value is one of the secrets, in a time that does not depend on how
// much of it is.
func (k *keyed) isSecret(value string) bool {
	if k.kind == basic {
		method, encoded, _ := strings.Cut(value, " ")
		user, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || !strings.EqualFold(method, "Basic") {
			return false
		}
		value = string(user)
	}
	given, same := sha256.Sum256([]byte(value)), false
	for _, key := range k.keys {
		own := sha256.Sum256(key)
		same = hmac.Equal(given[:], own[:]) || same
	}
	return same
}

// readSignatures adds the signatures of a field's value, and the timestamp if it is there.
func (a *attempt) readSignatures(value, place string) string {
	k := a.scheme
	timestamp, texts, err := k.format.read(value)
	if err != nil {
		return place + " " + err.Error()
	}
	if k.format.timed {
		a.timestamp = timestamp
	}
	for _, text := range texts {
		if digest, ok := k.decode(text); ok {
			a.digests = append(a.digests, digest)
		}
	}
	if len(a.digests) == 0 {
		return place + " has no signature of the right length and encoding"
	}
	return ""
}

// decode returns the bytes of a signature, if it is of the right length.
func (k *keyed) decode(text string) ([]byte, bool) {
	size := k.size
	switch k.kind {
	case publicKeyEd25519:
		size = ed25519.SignatureSize
	case publicKeyECDSA:
		size = anySize // it is in DER
	}
	return decodeDigest(text, k.Encoding, size)
}

// anySize is the size of a digest that may have any but 0.
const anySize = -1

// decodeDigest decodes all of a text, hex in either case.
func decodeDigest(text, encoding string, size int) (digest []byte, ok bool) {
	var err error
	if encoding == "base64" {
		digest, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		digest, err = hex.DecodeString(text)
	}
	if err != nil || strings.ContainsAny(text, "\r\n") { // which base64's decoder skips
		return nil, false
	}
	return digest, len(digest) == size || size == anySize && len(digest) > 0
}

// readFields reads the timestamp and the fields that are signed.
func (a *attempt) readFields(r Request, now time.Time) (reason string) {
	k := a.scheme
	for _, p := range k.parts {
		if p.is != placeField {
			continue
		}
		value, reason := single(r.Header.Values(p.text), http.CanonicalHeaderKey(p.text))
		if reason != "" {
			return reason
		}
		for _, text := range p.without {
			if strings.Contains(value, text) {
				return fmt.Sprintf("%s has %q in it, which ends it in what is signed", http.CanonicalHeaderKey(p.text), text)
			}
		}
		if a.fields == nil {
			a.fields = map[string]string{}
		}
		a.fields[p.text] = value
	}
	if k.TimeHeader != "" {
		if a.timestamp, reason = single(r.Header.Values(k.TimeHeader), k.TimeHeader); reason != "" {
			return reason
		}
	}
	if k.TimeHeader != "" || k.format.timed {
		return checkTimestamp(a.timestamp, k.Unit, now, k.within)
	}
	return ""
}

// verify returns why the signatures are not over this body, or "". An error is that of reading the
// body or of reserving room.
func (a attempt) verify(body Body, now time.Time) (reason string, err error) {
	k := a.scheme
	switch {
	case a.settled:
		return "", nil
	case k.kind == ofAdyen:
		return k.verifyAdyen(body)
	case k.kind == ofTwilio:
		return a.verifyTwilio(body)
	case k.kind == ofConvoy:
		return a.verifyConvoy(body)
	case k.kind == publicKeyEd25519 || k.kind == publicKeyECDSA:
		return a.verifyPublic(body)
	case !a.matches(body):
		return noMatch, nil
	case len(k.urls) > 1 && body.begin() != '{':
		// Where one URL begins with another, the rest of it could be moved to the body.
		return "the body is not a JSON object, and there is more than one url", nil
	case k.pointer != "":
		return k.checkMember(body, now)
	}
	return "", nil
}

// matches reports whether one of the signatures is that of one of the secrets.
func (a attempt) matches(body Body) bool {
	k := a.scheme
	urls := k.urls
	if len(urls) == 0 {
		urls = []string{""}
	}
	for _, key := range k.keys {
		for _, url := range urls {
			mac := hmac.New(k.newHash, key)
			a.write(mac, url, body)
			if isOneOf(mac.Sum(nil), a.digests) {
				return true
			}
		}
	}
	return false
}

func isOneOf(sum []byte, digests [][]byte) bool {
	for _, digest := range digests {
		if hmac.Equal(sum, digest) {
			return true
		}
	}
	return false
}

// write writes the bytes that are signed. A hash and a buffer have no errors.
func (a attempt) write(to io.Writer, url string, body Body) {
	for _, p := range a.scheme.parts {
		text := p.text
		switch p.is {
		case placeBody:
			for piece := range body.Pieces {
				_, _ = to.Write(piece)
			}
			continue
		case placeTime:
			text = a.timestamp
		case placeURL:
			text = url
		case placeField:
			text = a.fields[p.text]
		}
		_, _ = io.WriteString(to, text)
	}
}

func (a attempt) verifyPublic(body Body) (string, error) {
	if a.scheme.kind == publicKeyECDSA {
		sum := sha256.New()
		a.write(sum, "", body)
		digest := sum.Sum(nil)
		for _, key := range a.scheme.publics {
			if ecdsa.VerifyASN1(key.(*ecdsa.PublicKey), digest, a.digests[0]) {
				return "", nil
			}
		}
		return noMatch, nil
	}
	n := len(a.timestamp)
	for piece := range body.Pieces {
		n += len(piece)
	}
	if err := body.reserve(n); err != nil {
		return "", err
	}
	message := bytes.NewBuffer(make([]byte, 0, n))
	a.write(message, "", body)
	for _, key := range a.scheme.publics {
		if ed25519.Verify(key.(ed25519.PublicKey), message.Bytes(), a.digests[0]) {
			return "", nil
		}
	}
	return noMatch, nil
}

// checkMember checks the timestamp in a body whose signature is right.
func (k *keyed) checkMember(body Body, now time.Time) (string, error) {
	doc, reason, err := parse(body)
	if doc == nil {
		return reason, err
	}
	value, ok := doc.Root().At(k.pointer)
	if !ok || value.Kind() != jsontext.KindNumber {
		return "the body has no number at " + k.pointer, nil
	}
	text, err := value.Text()
	if err != nil {
		return "the body has no number at " + k.pointer, nil
	}
	return checkTimestamp(text, "ms", now, k.within), nil
}

// parse reads the body as JSON. Without a document, it returns the reason or an error of the body.
func parse(body Body) (doc *canonicaljson.Document, reason string, err error) {
	text, err := body.Whole()
	if err != nil {
		return nil, "", err
	}
	var noRoom error
	doc, err = canonicaljson.Parse(text, func(bytes int) error {
		noRoom = body.reserve(bytes)
		return noRoom
	})
	if err != nil && noRoom == nil {
		return nil, "the body is " + err.Error(), nil
	}
	return doc, "", noRoom
}
