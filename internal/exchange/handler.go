// Package exchange takes one HTTP request through dedup, from its key to the last byte at its
// client: it asks package delivery for the key and the engine for a decision. A run's response is
// recorded, settled, and only then finished to the client.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/jsonrpc"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// Config is the configuration of a handler, checked and with its defaults filled in.
type Config struct {
	Observe bool // every request passes; only its outcome is reported
	Mode    delivery.Mode
	Methods []string

	// Sources are tried in this order.
	Sources      []delivery.Source
	Verify       *Verification       // nil if signatures are not checked
	Providers    []delivery.Provider // whose handshakes pass
	Label        string              // metric label for requests without a provider
	Exclude      []string            // JSON pointers, and query parameters with a leading ?
	MaxKeyLength int                 // bytes
	Namespace    string
	Scope        []string                    // texts with placeholders, or [SharedScope] and a name; nil for the default of the mode
	Caller       []string                    // placeholders that the default scope has as well
	Fingerprint  idempotency.FingerprintKind // "" for the default of the mode
	Force        string                      // a request header field; "" for none

	// Policies has a policy for each provider; that of "" applies to all others.
	Policies      map[string]idempotency.Policy
	RetentionFrom *RetentionSource // nil for none
	ReleaseIf     []ReleaseIf      // the first one that is met releases the key
	Timeout       time.Duration    // of one run
	Wait          time.Duration    // maximum for a duplicate; with 0 it is refused at once

	RejectMissing   bool // refuse requests without a key
	PassUnavailable bool // pass requests unprotected when the store fails
	OnDuplicate     OnDuplicate

	MaxRequestBody, MaxResponseBody int64 // bytes
	KeepHeader                      []string
	ClientIdle                      time.Duration
	Docs                            string // a URL, or ""

	Store     *storepool.Handle
	Encrypted bool
	Budget    *Budget
	Observer  Observer
	Logger    *zap.Logger
}

// OnDuplicate is what the duplicate of a complete request gets.
type OnDuplicate string

// What a duplicate gets: the kept response, a 409 that names the first run, an empty 200, or a
// 303 to the first response's Location.
const (
	ReplayDuplicate      OnDuplicate = "replay"
	ConflictDuplicate    OnDuplicate = "conflict"
	AcknowledgeDuplicate OnDuplicate = "acknowledge"
	SeeOtherDuplicate    OnDuplicate = "see_other"
)

// Observer counts requests. Its methods are called concurrently.
type Observer interface {
	// Request counts a request by the provider of its key, or [Config.Label], and its outcome.
	// observed is [Config.Observe].
	Request(provider string, o Outcome, observed bool)
	// Differing counts a duplicate whose body differs from the first, by provider as Request does.
	Differing(provider string, observed bool)
	// Overloaded counts a request that was refused because of a limit.
	Overloaded(engine.Limit)
}

// Handler handles requests. It is used concurrently.
type Handler struct {
	Config

	// members are the JSON pointers of the members of the body that the scope and the keys name.
	// keyNamesMembers reports whether the keys name any.
	members         []string
	keyNamesMembers bool
	// Exclude, apart: the JSON pointers, and the names of the parameters.
	excludedPointers, excludedParameters []string

	everySender         Sender   // all of them
	keyFields           []string // header fields of which the key, the scope and force are made
	scopeCallers        []string // placeholders of the scope that can name a caller
	headers             headerRules
	unknownPlaceholders unknownPlaceholders
	withoutKeyLog       logSampler // about requests without a key, or with a value that cannot be it
	differingLog        logSampler // about duplicates whose body differs from the first
	signatureLog        logSampler // about requests that no sender has signed
	retentionLog        logSampler // about requests that do not get the retention that they ask for
	unobservedLog       logSampler // about requests that could not be observed
	anonymousWarning    sync.Once  // about a request in which nothing identifies the caller
	unlistedWarning     sync.Once  // about a request with another field that may identify the caller

	// Used only under observe.
	keyPlaceholders []string    // [Config.placeholders]
	slowStore       atomic.Bool // the last claim took longer than reportTimeout
	settling        sync.Map    // runs being settled, by execution ID; a channel for each, closed when it is
}

// New returns a handler.
func New(c Config) *Handler {
	if c.Observe {
		c = c.observing()
	}
	keyMembers := MembersIn(c.keyTexts()...)
	h := &Handler{
		Config:          c,
		members:         slices.Concat(MembersIn(c.Scope...), MembersIn(c.Caller...), keyMembers),
		keyNamesMembers: len(keyMembers) > 0,
		everySender:     Sender{Sources: c.Sources, Providers: c.Providers},
		headers:         newHeaderRules(c.KeepHeader),
		keyPlaceholders: c.placeholders(),
		keyFields:       c.fieldsOf(),
		scopeCallers:    callersIn(c.Scope),
	}
	for _, word := range c.Exclude {
		if name, is := strings.CutPrefix(word, "?"); is {
			h.excludedParameters = append(h.excludedParameters, decoded(name))
		} else {
			h.excludedPointers = append(h.excludedPointers, word)
		}
	}
	return h
}

// ServeHTTP finds the request's key, has the engine decide about it, and does what that says.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	info := infoOf(r)
	if h.Observe {
		return h.observe(w, r, next, info)
	}
	within, forced := takeDedupHeaders(r), h.takeForce(r)
	if h.Verify == nil && !h.applies(r) {
		return next.ServeHTTP(w, r)
	}
	x := &exchange{Handler: h, w: w, r: r, next: next, info: info, sender: &h.everySender, allowance: Allowance{Budget: h.Budget}}
	x.body = requestBody{w: w, r: r, limit: h.MaxRequestBody, held: heldBody{allowance: &x.allowance}}
	defer x.close()
	switch d := x.verifyAndIdentify().(type) {
	case claim:
		d.Within, d.Force = within, forced
		if x.call != nil {
			defer keyedCalls.add(x.flightOf(x.call.id))()
		}
		return x.claim(d.Request)
	case cancellation:
		x.counted = true
		if keyedCalls.has(d.of) {
			return x.takeCancellation()
		}
		return x.passUnclaimed()
	case pass:
		x.reportPass(d)
		if d.challenge {
			return next.ServeHTTP(w, r)
		}
		return x.passUnclaimed()
	case refusal:
		return x.refuse(d)
	case unreadBody:
		x.report(unreadOutcome(d.err), "", 0)
		return x.failed(d.err)
	default:
		return fmt.Errorf("identify returned %T", d)
	}
}

// keyDecision is what a request does once dedup has looked for its key: [claim], [pass], [refusal],
// [unreadBody] or [cancellation].
type keyDecision interface{ keyDecision() }

// claim is a request whose key is to be claimed.
type claim struct{ *engine.Request }

// pass lets a request through without a claim. Its outcome says why.
type pass struct {
	outcome   Outcome
	challenge bool // an unsigned one, under verify
}

// refusal refuses a request before the engine is asked.
type refusal struct {
	reason  engine.Reason
	detail  string
	outcome Outcome // "" for that of the reason
}

// unreadBody ends a request whose body could not be read.
type unreadBody struct{ err error }

// cancellation is the notification that a tool call is cancelled.
type cancellation struct{ of callInFlight }

func (claim) keyDecision()        {}
func (pass) keyDecision()         {}
func (refusal) keyDecision()      {}
func (unreadBody) keyDecision()   {}
func (cancellation) keyDecision() {}

// claim claims the key, and does what the engine decides.
func (x *exchange) claim(request *engine.Request) error {
	request.OnWait = func() { x.traceEvent(spanWait) }
	if !x.body.complete {
		request.Wait = 0 // what is unread would stall its HTTP/2 connection, and the run on it
	}
	decision, err := x.decide(request)
	if err != nil { // the request waited, and its client has left
		x.report(OutcomeInFlight, "", 0)
		if errors.Is(err, context.DeadlineExceeded) { // the run in front, which the request is part of, has timed out
			return x.answerError(caddyhttp.Error(http.StatusGatewayTimeout, err))
		}
		return x.answerError(caddyhttp.Error(statusClientGone, err))
	}
	x.noteDiffering(decision)
	if request.Force {
		x.auditForce(decision)
	}
	switch d := decision.(type) {
	case *engine.Run:
		return x.execute(d)
	case engine.Replay:
		return x.replay(d)
	case engine.Follow:
		return x.follow(d)
	case engine.Refusal:
		return x.refuseOrPass(d)
	default:
		return fmt.Errorf("the engine decided on %T", d)
	}
}

// applies reports whether requests with this method are deduplicated. Methods are case-sensitive
// (RFC 9110, section 9.1), but many frameworks accept `patch` for PATCH. A tool call may also say by
// Mcp-Method that it is none.
func (h *Handler) applies(r *http.Request) bool {
	if h.Mode == delivery.ModeMCP && !jsonrpc.NeedsBody(r.Header[mcpMethod]) {
		return false
	}
	return slices.ContainsFunc(h.Methods, func(method string) bool { return strings.EqualFold(method, r.Method) })
}

// isGRPC reports whether a request is a gRPC call, which streams both ways. gRPC needs HTTP/2 or
// HTTP/3.
func isGRPC(r *http.Request) bool {
	mediaType, _, _ := strings.Cut(firstValue(r.Header, "Content-Type"), ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return r.ProtoMajor >= 2 && (mediaType == "application/grpc" || strings.HasPrefix(mediaType, "application/grpc+"))
}
