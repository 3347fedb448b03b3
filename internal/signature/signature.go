// Package signature tells whether a webhook comes from its provider: by a signature over the
// request, or by a static secret that the provider sends with it.
//
// A scheme is a row: where the signature is, how it is written, and which bytes it is over. One
// verifier runs all rows; twilio, adyen and convoy have code of their own. A request is looked at
// twice: [Verifiers.Begin] needs no body, and [Pending.Verify] hashes it as it was received.
package signature

import (
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Request is what a signature is looked for in, before the body is read.
type Request struct {
	Method string
	// Target is the target of the request line as it was sent, before any rewrite.
	Target string
	// Header must not change until [Pending.Verify] has returned.
	Header http.Header
	// HasBody reports whether a body is announced. A challenge has none.
	HasBody bool
}

// Body is the body of a request, as it was received: before it is decompressed or parsed.
type Body struct {
	// Pieces yields all bytes in order. It is called once for each secret that is tried.
	Pieces iter.Seq[[]byte]
	// Whole returns all bytes in one piece, for the few schemes that parse the body or whose
	// algorithm needs it so. The caller accounts for the bytes.
	Whole func() ([]byte, error)
	// Reserve is asked for the bytes that are needed beside the body before they are allocated.
	Reserve func(bytes int) error
}

// BodyOf returns a body that is held in one piece, and for which there is room.
func BodyOf(body []byte) Body {
	return Body{
		Pieces:  func(yield func([]byte) bool) { yield(body) },
		Whole:   func() ([]byte, error) { return body, nil },
		Reserve: func(int) error { return nil },
	}
}

// begins reports whether a byte is the first of the body.
func (b Body) begins(with byte) bool {
	for piece := range b.Pieces {
		if len(piece) > 0 {
			return piece[0] == with
		}
	}
	return false
}

// start returns up to n bytes from the beginning of the body.
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

// size returns how many bytes the body has.
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
	// Challenge is the provider whose unsigned challenge this is, such as a GET of Dropbox. The
	// request passes as it is: there is nothing to verify, and it has no key.
	Challenge string
	attempts  []attempt
	now       time.Time
}

// Secrets returns how many secrets and public keys the signatures are compared with.
func (p Pending) Secrets() (n int) {
	for _, a := range p.attempts {
		n += len(a.run.keys) + len(a.run.publics)
	}
	return n
}

// Verified says who has sent a request.
type Verified struct {
	// Provider is [Verifier.Provider].
	Provider string
	// ID is the delivery ID that the signature covers, where it covers a header field that has it.
	// Then the key has to be made of this ID, and of no other field that a forger could add.
	ID string
	// Secret is a hash of the secret or public key that fits, of several the first of the
	// configuration.
	Secret string
}

// Begin looks at all but the body. Its error is a [Refusal]: no verifier finds what may be a
// signature of its provider, and one whose timestamp is within its tolerance of now.
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
		p.attempts = append(p.attempts, a)
	}
	if len(p.attempts) == 0 {
		return Pending{}, Refusal(strings.Join(reasons, "; "))
	}
	return p, nil
}

// Verify checks the signatures over the body. It returns all senders whose signatures are right:
// several, if they have the same secret. Its error is a [Refusal] if there is none, or that of
// [Body.Whole] or [Body.Reserve].
func (p Pending) Verify(body Body) ([]Verified, error) {
	var reasons []string
	var by []Verified
	for i := range p.attempts {
		a := &p.attempts[i]
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

// begin returns the attempt at the request, or the reason why there is none.
func (v *Verifier) begin(r Request, now time.Time) (attempt, string) {
	for _, foreign := range v.row.foreign {
		for name := range r.Header {
			if len(name) >= len(foreign) && strings.EqualFold(name[:len(foreign)], foreign) {
				return attempt{}, "the request has " + foreign + "* fields, which another sender has"
			}
		}
	}
	// Where a provider has two schemes, the first that the request uses decides: there is no way
	// back from a wrong signature to a weaker scheme.
	used := slices.IndexFunc(v.schemes, func(s *runner) bool {
		values, _ := s.values(r)
		return len(values) > 0
	})
	a, reason := v.schemes[max(used, 0)].begin(r, now)
	a.of = v
	return a, reason
}
