// Package signature verifies that a webhook comes from its provider: by a signature over the request,
// or by a static secret that the provider sends with it.
//
// A scheme is a row of a table: where the signature is, its form, and the bytes that it covers. The
// same code runs all rows, except for twilio, adyen and convoy. A request is checked in two steps:
// [Verifiers.Begin] checks everything but the body, and [Pending.Verify] hashes the body as received.
package signature

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Request is the part of a request that is known before its body is read.
type Request struct {
	Method string
	// Target is the target of the request line as sent, before any rewrite.
	Target string
	// Header must not change until [Pending.Verify] has returned.
	Header http.Header
	// HasBody reports whether the request announces a body. A challenge has none.
	HasBody bool
}

// Body is the body of a request as received, before it is decompressed or parsed.
type Body struct {
	// Pieces yields all bytes in order. It is called several times, at least once for each secret.
	Pieces iter.Seq[[]byte]
	// Whole returns all bytes in one piece, for schemes that parse the body or whose algorithm
	// needs that. It reserves the bytes itself.
	Whole func() ([]byte, error)
	// Reserve reserves bytes that are needed besides the body, before they are allocated.
	Reserve func(bytes int) error
}

// start returns the first n bytes of the body, or all of a shorter one.
func (b Body) start(n int) string {
	var start []byte
	for piece := range b.Pieces {
		start = append(start, piece[:min(len(piece), n-len(start))]...)
		if len(start) == n {
			break
		}
	}
	return string(start)
}

// size returns the number of bytes in the body.
func (b Body) size() (n int) {
	for piece := range b.Pieces {
		n += len(piece)
	}
	return n
}

// Refusal is the error of a request that does not come from any of the providers. Its text is for
// logs: it has neither a secret nor anything else that the client chose.
type Refusal string

// Error implements error.
func (r Refusal) Error() string { return string(r) }

// Verifiers are those of one handler, in the order in which they are tried.
type Verifiers []*Verifier

// Pending is a request of which everything but the body has been looked at.
type Pending struct {
	// Challenge is the name of the provider if the request is its unsigned challenge, such as a GET
	// of Dropbox. The request passes as it is: it has no signature and no key.
	Challenge       string
	authentications []authentication
	now             time.Time
}

// Secrets returns the number of secrets and public keys that Verify may try.
func (p Pending) Secrets() (n int) {
	for _, a := range p.authentications {
		n += len(a.run.keys) + len(a.run.publics)
	}
	return n
}

// Verified is the sender of a request whose signature is valid.
type Verified struct {
	// Provider is [Verifier.Provider].
	Provider string
	// ID is the delivery ID, if it is in a signed header field; else "". The key must then be made
	// of this ID, and of no other field, which a forger could add.
	ID string
	// Secret is a hash of the secret or public key that matches, the first one if several do.
	Secret string
}

// Begin checks everything but the body. Its error is a [Refusal]: no verifier has found a well-formed
// signature of its provider with a timestamp within its tolerance of now.
func (all Verifiers) Begin(r Request, now time.Time) (Pending, error) {
	p := Pending{now: now}
	for _, v := range all {
		if v.row.challenge.matches(r) {
			return Pending{Challenge: v.row.Name}, nil
		}
	}
	var reasons []string
	for _, v := range all {
		a, reason := v.begin(r, now)
		if reason != "" {
			reasons = append(reasons, v.label()+": "+reason)
			continue
		}
		p.authentications = append(p.authentications, a)
	}
	if len(p.authentications) == 0 {
		return Pending{}, Refusal(strings.Join(reasons, "; "))
	}
	return p, nil
}

// Verify checks the signatures over the body. It returns all senders whose signatures are valid; there
// are several if they share a secret. Its error is a [Refusal] if there is none, or that of
// [Body.Whole] or [Body.Reserve].
func (p Pending) Verify(body Body) ([]Verified, error) {
	var reasons []string
	var by []Verified
	for i := range p.authentications {
		a := &p.authentications[i]
		reason, err := a.verify(body, p.now)
		if err != nil {
			return nil, err
		}
		if reason == "" {
			by = append(by, Verified{Provider: a.of.row.Name, ID: a.request.Header.Get(a.run.id), Secret: a.run.labels[a.fits]})
		}
		reasons = append(reasons, a.of.label()+": "+reason)
	}
	if len(by) == 0 {
		return nil, Refusal(strings.Join(reasons, "; "))
	}
	return by, nil
}

// begin begins the authentication of a request, or returns the reason to refuse it.
func (v *Verifier) begin(r Request, now time.Time) (authentication, string) {
	for _, foreign := range v.row.foreign {
		for name := range r.Header {
			if len(name) >= len(foreign) && strings.EqualFold(name[:len(foreign)], foreign) {
				return authentication{}, "the request has " + foreign + "* fields, which another sender has"
			}
		}
	}
	// If a provider has two schemes, the first that the request uses decides: an invalid signature
	// must not fall back to a weaker scheme.
	used := slices.IndexFunc(v.schemes, func(s *runner) bool {
		values, _ := s.values(r)
		return len(values) > 0
	})
	a, reason := v.schemes[max(used, 0)].begin(r, now)
	a.of = v
	return a, reason
}
