package identify

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// Verification is how a handler checks signatures.
type Verification struct {
	Verifiers signature.Verifiers
	// Senders has the sender of each verifier, by [signature.Verifier.Provider].
	Senders map[string]*Sender
}

// Sender is where the requests of a sender have their keys, and how its handshakes are known.
type Sender struct {
	Sources   []delivery.Source // tried in this order
	Providers []delivery.Provider
	// SignedCaller are the header fields that name the caller and that the sender signs. Where there are some,
	// only these and [Config.Caller] tell callers apart: others could be changed in a captured request.
	SignedCaller []string
	// Unsigned are the sources of requests that nothing verifies: with the fields by which the
	// sender is known. They tell senders with one secret apart.
	Unsigned []delivery.Source

	by signature.Verified // of one request
}

// verify checks the request's signature. It returns nil for a request that a sender has signed.
func (x *Request) verify() Decision {
	if x.r.Method == http.MethodConnect {
		return x.refuseUnsigned(errConnect, 0, 0)
	}
	httpfield.RemoveUpgrade(x.r.Header) // what the client sends after a 101 is not verified
	pending, err := x.Verify.Verifiers.Begin(asReceived(x.r), time.Now())
	if err != nil {
		return x.refuseUnsigned(err, x.r.ContentLength, 0)
	}
	if pending.Challenge != "" {
		x.Report.Name(idempotency.Key{}, delivery.Found{Provider: pending.Challenge})
		return Pass{Outcome: report.Passed, Challenge: true}
	}
	if err := x.readUnverified(); err != nil {
		return x.unverifiable(err)
	}
	hasSlot := false
	by, err := pending.Verify(signature.Body{
		Pieces: x.Body.Bytes(),
		Whole: func() ([]byte, error) {
			select {
			case unverifiedSlots <- struct{}{}:
				hasSlot = true
				return x.Body.Joined()
			case <-x.r.Context().Done():
				return nil, &reqbody.Error{Err: context.Cause(x.r.Context())}
			}
		},
		Reserve: x.Body.Reserve,
	})
	if hasSlot {
		x.Body.EndParsing()
		<-unverifiedSlots
	}
	if _, is := errors.AsType[signature.Refusal](err); is {
		return x.refuseUnsigned(err, int64(x.Body.Len()), pending.Secrets())
	}
	if err != nil {
		return x.unverifiable(err)
	}
	if !x.Observe {
		x.Allowance.EndUnverified()
	}
	x.sender = x.Verify.sender(by, x.r.Header)
	return nil
}

var errConnect = errors.New("CONNECT has no signature")

// unverifiedSlots limit how many bodies are parsed at a time before their signatures are checked. They
// are not those of verified requests, which must not wait for forged ones.
var unverifiedSlots = make(chan struct{}, runtime.GOMAXPROCS(0))

// sender returns the sender of a verified request. Of several with one secret, it is the one whose own
// fields the request has.
func (v *Verification) sender(by []signature.Verified, header http.Header) *Sender {
	i := slices.IndexFunc(by, func(by signature.Verified) bool {
		return len(v.Senders) == 1 || delivery.Sends(v.Senders[by.Provider].Unsigned, header)
	})
	verified := by[max(i, 0)]
	sender := *v.Senders[verified.Provider]
	sender.by = verified
	if verified.ID != "" {
		sender.Sources = signedSources(sender.Sources, header, verified.ID)
	}
	return &sender
}

// asReceived returns what a signature is looked for in, as the client sent it, before rewrites.
func asReceived(of *http.Request) signature.Request {
	r := signature.Request{Method: of.Method, Target: of.RequestURI, Header: of.Header, HasBody: of.ContentLength != 0}
	if original, ok := of.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		r.Target = original.RequestURI
	}
	return r
}

// readUnverified reads the whole body. Under observe, the pace is that of the handlers behind, and it is never cut.
func (x *Request) readUnverified() error {
	if x.Observe {
		return x.Body.ReadAll()
	}
	x.Allowance.BeginUnverified(x.Body.Cut)
	err := x.Body.ReadAll()
	if cut := x.Allowance.EndReading(); cut != nil {
		err = &reqbody.Error{Err: cut}
	}
	if err != nil && !errors.Is(err, delivery.ErrBodyTooLarge) { // others wait for its room, and its client may be slow to read the answer
		x.Body.Drop()
	}
	return err
}

// unverifiable ends a request whose body could not be read or parsed, or refuses one whose body is too
// large: padding is no way past a signature.
func (x *Request) unverifiable(err error) Decision {
	if !errors.Is(err, delivery.ErrBodyTooLarge) {
		return x.unread(err)
	}
	return x.refuse(ReasonTooLarge, x.Body.Excess()+", and its signature is over all of it")
}

// refuseUnsigned refuses a request that no sender has signed, and logs that, at most once a second.
// secrets is with how many secrets the body was hashed.
func (x *Request) refuseUnsigned(reason error, bodyBytes int64, secrets int) Decision {
	message := "refused a request"
	if x.Observe {
		message = "observe: a request passes that verify would refuse"
	}
	if leftOut, ok := x.signatureLog.Allow(reason.Error()); ok {
		x.Logger.Warn(message, zap.Inline(x), zap.String("code", string(ReasonSignature)),
			zap.NamedError("reason", reason), zap.Int64("body_bytes", bodyBytes), zap.Int("secrets_tried", secrets), report.LeftOut(leftOut))
	}
	return x.refuse(ReasonSignature, "the request has no valid signature of a sender that is accepted here")
}

// signedSources returns the sources of which a signed ID can be the key: a forger could add any other
// field, or change one that the scope has.
func signedSources(sources []delivery.Source, header http.Header, id string) (signed []delivery.Source) {
	for _, source := range sources {
		if source.Kind == delivery.KindHeader && slices.Equal(header.Values(source.Header), []string{id}) {
			source.ScopeHeaders = nil
			return []delivery.Source{source}
		}
		if source.Kind != delivery.KindHeader {
			signed = append(signed, source)
		}
	}
	return signed
}
