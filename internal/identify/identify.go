// Package identify finds the key of a request, and what else the engine has to know of it: the signature,
// the delivery and its key, the scope, the fingerprint and the retention.
package identify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// Config is how a handler finds keys, checked and with its defaults filled in.
type Config struct {
	Observe bool // every request passes
	Mode    delivery.Mode
	Methods []string
	Calls   Calls // nil for all modes but mcp

	// Sources are tried in this order.
	Sources      []delivery.Source
	Verify       *Verification       // nil if signatures are not checked
	Providers    []delivery.Provider // whose handshakes pass
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

	RejectMissing  bool  // refuse requests without a key
	MaxRequestBody int64 // bytes
}

// Calls are requests of a mode that is not asked for its key before it has said what a request is.
type Calls interface {
	// May reports whether a request, by its method and header, may be a call or act on one.
	May(r *http.Request) bool
	// ReadHead says what a request is that has no message in its body. ok reports whether it is one.
	ReadHead(r *http.Request, caller func(fields ...string) []string) (read CallRead, ok bool)
	// Read says what a request is by its body, or by the beginning of one that is too large. caller
	// returns what is known of the request's caller and its session.
	Read(header http.Header, body []byte, whole bool, caller func(fields ...string) []string) CallRead
	// Unread returns the call of a request whose body could not be read.
	Unread(header http.Header) Call
	// NewAnswer returns a reader of the answer to a call. It finds a response of at most limit bytes, which
	// take room. The events of a stream get an id, or none.
	NewAnswer(limit int64, room budget.Allowance, eventID string) upstream.Answer
	// WriteFingerprint writes what two calls with one key have in common.
	WriteFingerprint(to io.Writer, body *canonicaljson.Document, exclude ...string) error
}

// Call is a call, which is answered in a form of its own.
type Call interface {
	// EventID returns the id of the events of the call with a key, "" for none.
	EventID(key idempotency.Key) string
	// Replay returns a kept response as the answer to this call, in parts.
	Replay(kept []byte) (parts [][]byte, err error)
	// Refuse returns the answer to the call if it is refused.
	Refuse(CallRefusal) (status int, body []byte)
}

// CallRefusal is why a call is refused.
type CallRefusal struct {
	Status      int    // of HTTP
	Code        string // what it is, for programs
	Message     string
	RetryAfter  int    // seconds; 0 if it is unknown
	ExecutionID string // of the run because of which the call is refused; "" if there is none
}

// CallRead is what a request is.
type CallRead struct {
	Call   Call  // nil for none
	Size   int   // of the call in memory, in bytes
	NoKey  error // why the call can have no key; nil for all others
	Resume Resume
	Answer int // the status with which it is answered, and not handed on; 0 for none
	// Later, if it is not nil, has the answered request handed on when it no longer ends a call.
	Later func(handOn func())
	// Begin, if it is not nil, counts the request as one in flight, until end is called.
	Begin func(hasKey bool) (end func())
}

// Identifier finds the keys of a handler's requests.
type Identifier struct {
	Config

	// members are the JSON pointers of the members of the body that the scope and the keys name.
	// keyNamesMembers reports whether the keys name any.
	members         []string
	keyNamesMembers bool
	// callerNamesMembers reports whether texts of `caller` name members of the body.
	callerNamesMembers bool
	// Exclude, apart: the JSON pointers, and the names of the parameters.
	excludedPointers, excludedParameters []string

	everySender         Sender         // all of them
	keyFields           []string       // header fields of which the key and the scope are made
	scopeCallers        []string       // placeholders of the scope that can name a caller
	unknownPlaceholders sync.Map       // by name, those of which a warning was logged
	withoutKeyLog       report.Sampler // about requests without a key, or with a value that cannot be it
	signatureLog        report.Sampler // about requests that no sender has signed
	retentionLog        report.Sampler // about requests that do not get the retention that they ask for
	anonymousWarning    sync.Once      // about a request in which nothing identifies the caller
	unlistedWarning     sync.Once      // about a request with another field that may identify the caller
}

// New returns an identifier.
func New(c Config) *Identifier {
	keyMembers := MembersIn(c.keyTexts()...)
	i := &Identifier{
		Config:             c,
		members:            slices.Concat(MembersIn(c.Scope...), MembersIn(c.Caller...), keyMembers),
		keyNamesMembers:    len(keyMembers) > 0,
		callerNamesMembers: len(MembersIn(c.Caller...)) > 0,
		everySender:        Sender{Sources: c.Sources, Providers: c.Providers},
		keyFields:          c.fieldsOf(),
		scopeCallers:       callersIn(c.Scope),
	}
	for _, word := range c.Exclude {
		if name, is := strings.CutPrefix(word, "?"); is {
			i.excludedParameters = append(i.excludedParameters, decoded(name))
		} else {
			i.excludedPointers = append(i.excludedPointers, word)
		}
	}
	return i
}

// Applies reports whether requests with this method are deduplicated. Methods are case-sensitive
// (RFC 9110, section 9.1), but many frameworks accept `patch` for PATCH. Under verify, every method is
// checked.
func (i *Identifier) Applies(r *http.Request) bool {
	if i.Verify != nil {
		return true
	}
	if i.Calls != nil && !i.Calls.May(r) {
		return false
	}
	return slices.ContainsFunc(i.Methods, func(method string) bool { return strings.EqualFold(method, r.Method) })
}

// IsKeyField reports whether the key or its scope is made of a header field. What Connection names
// does not reach the upstream (RFC 9110, section 7.6.1), which is to get the key that was claimed.
func (i *Identifier) IsKeyField(name string) bool {
	return slices.ContainsFunc(i.keyFields, func(field string) bool { return strings.EqualFold(field, name) })
}

// TakeForce removes the header field that forces a run, and reports whether it was "true".
func (i *Identifier) TakeForce(r *http.Request) bool {
	if i.Force == "" {
		return false
	}
	asked := r.Header.Get(i.Force) == "true"
	r.Header.Del(i.Force)
	return asked
}

// Decision is what a request does once its key was looked for: a [*Claim], a [Pass], a [Refusal], an [Unread]
// or an [Answered].
type Decision interface{ decision() }

// Claim is a request whose key is to be claimed.
type Claim struct {
	Key         idempotency.Key
	Fingerprint string
	Policy      idempotency.Policy
}

// Pass lets a request through without a claim.
type Pass struct {
	Outcome   report.Outcome // why; "" for a request that counts under none
	Challenge bool           // an unsigned one, under verify
}

// Refusal refuses a request before the engine is asked.
type Refusal struct {
	Reason  engine.Reason
	Detail  string
	Outcome report.Outcome
}

// Unread ends a request whose body could not be read.
type Unread struct {
	Err     error
	Outcome report.Outcome
}

// Answered ends a request with a status.
type Answered struct {
	Status int
	Later  func(handOn func()) // [CallRead.Later]
}

// Resume asks for the answer to the run of a key, and never runs. The zero value asks for none.
type Resume struct {
	Key     idempotency.Key
	EventID string // as the client has sent it
}

func (Resume) decision()   {}
func (*Claim) decision()   {}
func (Pass) decision()     {}
func (Refusal) decision()  {}
func (Unread) decision()   {}
func (Answered) decision() {}

// Reasons for which requests are refused before the engine is asked.
const (
	ReasonMissing   engine.Reason = "idempotency_key_missing"
	ReasonInvalid   engine.Reason = "idempotency_key_invalid"
	ReasonSignature engine.Reason = "signature_invalid"
	ReasonTooLarge  engine.Reason = "request_too_large"
)

// Request is a request whose key is looked for.
type Request struct {
	report.Report
	Body      reqbody.Body
	Allowance budget.Allowance // room for the body, and for what the request is answered with

	*Identifier
	r            *http.Request
	info         *report.Info
	sender       *Sender // all of them if it is not verified
	hasParseSlot bool
	memberErr    error         // of the member that [Request.replace] has read
	scoped       *scopeMembers // nil for none
	call         Call
	begin        func(hasKey bool) (end func())
	callRoom     *budget.Allowance // nil for all but calls
	claim        Claim
}

// Init initializes a request. w is that of its client.
func (x *Request) Init(of *Identifier, by *report.Reporter, room *budget.Budget, w http.ResponseWriter, r *http.Request, info *report.Info) {
	x.Identifier, x.r, x.info, x.sender = of, r, info, &of.everySender
	x.Allowance.Budget = room
	x.Report.Init(by, r, info)
	x.Body.Init(w, r, of.MaxRequestBody, &x.Allowance)
}

// Call returns the call that the request is, nil for none. It is known when the request is identified.
func (x *Request) Call() Call { return x.call }

// EventID returns the id of the events of the request's call; "" for none. A request without a body, which asks
// for them, has to have the same scope: its record has the members of the body that `scope` names, and not those
// of `caller`, which may be a secret.
func (x *Request) EventID() string {
	if x.callerNamesMembers {
		return ""
	}
	return x.call.EventID(x.Key())
}

// Resumes reports whether the request has the scope of the POST that claimed the key, and names that.
func (x *Request) Resumes(key idempotency.Key, by idempotency.Origin) bool {
	own := x.r
	defer func() { x.r = own }()
	post := *own
	post.Method = http.MethodPost
	x.r = &post
	for _, member := range by.Scope {
		pointer, value, _ := strings.Cut(member, "=")
		x.info.Remember(pointer, report.Member{Text: value})
	}
	found := delivery.Found{Provider: by.Provider, ID: by.DeliveryID, Parts: by.Parts}
	for _, found.Content = range []bool{false, true} { // the session is a part of the scope of some keys
		x.Report.Name(idempotency.Key{}, found)
		if scope, err := x.appendScopeOf(nil, found); err == nil && by.ScopeHash != nil && *by.ScopeHash == x.hash(scope) {
			x.Report.Name(key, found)
			return true
		}
	}
	x.Report.Name(idempotency.Key{}, delivery.Found{})
	return false
}

// hash returns the hash of a scope.
func (x *Request) hash(scope []string) idempotency.Key {
	return idempotency.Identity{Namespace: x.Namespace, Scope: scope}.Key()
}

// Begin counts the request as one in flight, until end is called.
func (x *Request) Begin(hasKey bool) (end func()) {
	if x.begin == nil {
		return func() {}
	}
	return x.begin(hasKey)
}

// Close releases what the request holds.
func (x *Request) Close() {
	x.Allowance.ReleaseAll()
	if x.callRoom != nil {
		x.callRoom.ReleaseAll()
	}
}

// Identify checks the request's signature, looks for its key, and reads the body for both.
func (x *Request) Identify() Decision {
	if x.Verify != nil {
		if d := x.verify(); d != nil {
			return d
		}
	}
	x.info.SetMembers((*identifying)(x))
	defer func() {
		x.releaseParseSlot()
		x.info.SetMembers((*identified)(x))
	}()
	return x.identify()
}

// identify looks for the request's key.
func (x *Request) identify() Decision {
	if x.Verify == nil && isGRPC(x.r) { // no way past a signature
		return x.withoutKey(errors.New("a gRPC call streams both ways and cannot be replayed"))
	}
	if x.Calls != nil {
		if d := x.readCall(); d != nil {
			return d
		}
	}
	request := delivery.Request{
		Header:  x.r.Header,
		Body:    x.Body.Joined,
		Replace: x.keyValue,
		Exclude: x.excludedPointers,
		Signed:  x.Verify != nil,
		Reserve: x.Body.Reserve,
	}.Remember()
	if x.call != nil {
		request.LastCounts, request.Content = true, x.callFingerprint
	}
	parsed := x.keyNamesMembers || delivery.NeedsBody(x.sender.Sources, x.sender.Providers, x.r.Header)
	if parsed {
		if err := x.parse(request); err != nil {
			return x.unread(err)
		}
	}
	if name, ok := delivery.PassThrough(x.sender.Providers, x.sender.Sources, request); ok {
		x.Report.Name(idempotency.Key{}, delivery.Found{Provider: name})
		return Pass{Outcome: report.Passed}
	}
	found, err := delivery.Find(x.sender.Sources, request, x.MaxKeyLength)
	_, isInvalid := errors.AsType[delivery.InvalidError](err)
	switch {
	case isInvalid && x.Mode != delivery.ModeWebhook:
		return x.refuse(ReasonInvalid, err.Error())
	case isInvalid:
		return x.withoutKey(fmt.Errorf("the delivery ID is invalid: %w", err))
	case err != nil:
		return x.failed(err, "the key")
	}
	if !parsed && (len(x.members) > 0 || x.Fingerprint == idempotency.FingerprintJSON || x.call != nil) { // the scope needs members, or the fingerprint parses
		if err := x.parse(request); err != nil {
			return x.unread(err)
		}
	}
	if err := x.setKey(found); err != nil {
		return x.failed(err, "the scope")
	}
	retention, err := x.requestedRetention(request)
	if err != nil {
		return x.unread(err)
	}
	kind := x.FingerprintFor(found)
	noted := kind == idempotency.FingerprintNone && x.Mode == delivery.ModeWebhook && !found.Content && !changesBody(x.sender.Providers, found.Provider)
	fingerprint, err := "", x.readFor(kind, noted)
	if err == nil {
		fingerprint, err = x.fingerprint(kind, request)
	}
	if err != nil {
		return x.failed(err, "the fingerprint")
	}
	if noted && x.Body.Complete() {
		// The hash by which a duplicate that differs is noticed. It parses no body that was not parsed for the key.
		body := x.Body.Bytes()
		if parts, err := request.Multipart(x.Body.Bytes()); err == nil && parts != "" {
			body = slices.Values([][]byte{[]byte(parts)})
		}
		fingerprint = idempotency.NotedFingerprint(body, request.Parsed(), x.excludedPointers...)
	}
	x.claim = Claim{x.Key(), fingerprint, x.policyOf(found.Provider)}
	if retention != 0 {
		x.claim.Policy.Retention = retention
	}
	return &x.claim
}

// readFor reads the body for a fingerprint. A body without one may be larger than the limit. Under observe, it
// reaches the upstream as it comes, and its hash is noted only if it can be read.
func (x *Request) readFor(kind idempotency.FingerprintKind, noted bool) error {
	switch {
	case kind != idempotency.FingerprintNone:
		return x.Body.ReadAll()
	case x.Observe && !noted:
		return nil
	}
	if err := x.Body.ReadToLimit(); reqbody.Failed(err) && !x.Observe {
		return err
	}
	return nil
}

// changesBody reports whether a provider sends another body with each try.
func changesBody(providers []delivery.Provider, name string) bool {
	return slices.ContainsFunc(providers, func(p delivery.Provider) bool { return p.Name == name && p.ChangesBody })
}

// FingerprintFor returns the kind of fingerprint for a key: the configured one, as far as it fits the
// key, else the default of the mode.
func (c *Config) FingerprintFor(found delivery.Found) idempotency.FingerprintKind {
	switch kind := c.Fingerprint; {
	case c.Mode == delivery.ModeMCP && found.Content:
		return idempotency.FingerprintNone // the key has it
	case c.Mode == delivery.ModeMCP:
		return idempotency.FingerprintCall
	case kind == idempotency.FingerprintBody && found.Content:
		// White space and excluded members are not part of a content key: requests that differ only
		// in them are equal.
		return idempotency.FingerprintJSON
	case kind != "":
		return kind
	case c.Mode == delivery.ModeWebhook || found.Content:
		return idempotency.FingerprintNone
	default:
		return idempotency.FingerprintBody
	}
}

// fingerprint returns the fingerprint of the request, whose body was read. It returns an error if
// there is no room to parse the body.
func (x *Request) fingerprint(kind idempotency.FingerprintKind, request delivery.Request) (string, error) {
	if kind == idempotency.FingerprintNone {
		return "", nil
	}
	if kind == idempotency.FingerprintCall {
		doc, err := request.Document()
		if err != nil {
			return "", err
		}
		return x.callFingerprint(doc)
	}
	path, query := report.OriginalPath(x.r)
	query = withoutParameters(query, x.excludedParameters)
	parts, err := request.Multipart(x.Body.Bytes())
	switch {
	case err != nil:
		return "", err
	case parts != "":
		return idempotency.Fingerprint(kind, path, query, []byte(parts), nil, x.Exclude...), nil
	case kind == idempotency.FingerprintJSON:
		doc, err := request.Document()
		if err != nil {
			return "", err
		}
		return idempotency.Fingerprint(kind, path, query, x.Body.Whole(), doc, x.Exclude...), nil
	case x.Body.Len() > budget.SmallBody:
		return idempotency.FingerprintPieces(path, query, x.Body.Bytes(), x.Exclude...), nil
	default:
		return idempotency.Fingerprint(kind, path, query, x.Body.Whole(), nil, x.Exclude...), nil
	}
}

// callFingerprint returns the fingerprint of a call, which is also its key made of content. The error is
// [delivery.ErrUnusable] if the call has no canonical form.
func (x *Request) callFingerprint(doc *canonicaljson.Document) (string, error) {
	if doc == nil {
		return "", fmt.Errorf("%w: the tool call is not JSON in UTF-8", delivery.ErrUnusable)
	}
	_, query := report.OriginalPath(x.r)
	query = withoutParameters(query, x.excludedParameters)
	text, err := idempotency.CallFingerprint(query, x.Exclude, func(to io.Writer) error {
		return x.Calls.WriteFingerprint(to, doc, x.excludedPointers...)
	})
	if err != nil {
		return "", fmt.Errorf("%w: the tool call has no canonical form: %w", delivery.ErrUnusable, err)
	}
	return text, nil
}

// parseSlots limits how many bodies are parsed at a time. A parsed body takes many times the room
// of its bytes, and there is nothing to gain from parsing more bodies than there are processors.
var parseSlots = make(chan struct{}, runtime.GOMAXPROCS(0))

// acquireParseSlot reads the body, and then waits for a parse slot: a slow client must not hold
// one. It acquires none for a body that is too large to be parsed.
func (x *Request) acquireParseSlot() error {
	err := x.Body.ReadAll()
	if err == nil && !x.hasParseSlot {
		parseSlots <- struct{}{}
		x.hasParseSlot = true
	}
	return err
}

// releaseParseSlot releases the parse slot, if the request has one, and the room that parsing took.
func (x *Request) releaseParseSlot() {
	x.Body.EndParsing()
	if x.hasParseSlot {
		<-parseSlots
		x.hasParseSlot = false
	}
}

// outcomes are those of the reasons for which requests are refused here.
var outcomes = map[engine.Reason]report.Outcome{
	ReasonInvalid:           report.Invalid,
	ReasonSignature:         report.SignatureInvalid,
	ReasonTooLarge:          report.TooLarge,
	engine.ReasonOverloaded: report.Overloaded,
}

// refuse refuses the request.
func (x *Request) refuse(reason engine.Reason, detail string) Decision {
	return Refusal{reason, detail, outcomes[reason]}
}

// failed is for a request whose key was not found, or whose body could not be read for what the key needs.
func (x *Request) failed(err error, needs string) Decision {
	switch {
	case reqbody.Failed(err):
		return x.unread(err)
	case errors.Is(err, delivery.ErrBodyTooLarge):
		return x.withLargeBody(err, needs)
	default:
		return x.withoutKey(err)
	}
}

// unread ends a request whose body could not be read, or refuses one if there is no room for it.
func (x *Request) unread(err error) Decision {
	if full, ok := errors.AsType[budget.SpentError](err); ok {
		x.Observer.Overloaded(engine.LimitBuffered)
		return x.refuse(engine.ReasonOverloaded, full.Error()+"; repeat the request later")
	}
	d := Unread{Err: bodyError(x.r.Context(), err), Outcome: report.Invalid}
	if upstream.FailedStatus(d.Err) == http.StatusRequestEntityTooLarge {
		d.Outcome = report.TooLarge
	}
	return d
}

// bodyError returns an error with the status of a request whose body could not be read.
func bodyError(ctx context.Context, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, new(caddyhttp.HandlerError)):
		return err
	case errors.As(err, &tooLarge):
		return caddyhttp.Error(http.StatusRequestEntityTooLarge, err)
	case errors.Is(err, budget.ErrCut):
		return caddyhttp.Error(http.StatusRequestTimeout, err)
	case errors.Is(err, os.ErrDeadlineExceeded): // the server then cancels the context too
		return caddyhttp.Error(http.StatusRequestTimeout, err)
	case ctx.Err() != nil:
		return caddyhttp.Error(upstream.StatusClientGone, err)
	default:
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
}

// keyValue returns the text of a key with its placeholders replaced. It returns "" if one of them is
// empty or unknown: the rest alone would be one key for many requests.
func (x *Request) keyValue(text string) (string, error) {
	value, values, err := x.replace(text)
	if err != nil || slices.Contains(values, "") {
		return "", err
	}
	return value, nil
}

// withoutKey passes a request that has no key, or refuses it under `on_missing reject`.
func (x *Request) withoutKey(reason error) Decision {
	outcome := report.Missing
	if errors.Is(reason, delivery.ErrUnusable) {
		outcome = report.Unusable
	}
	if x.RejectMissing {
		return Refusal{ReasonMissing, fmt.Sprintf("%v; looked for %v", reason, x.sender.Sources), outcome}
	}
	x.logWithoutKey(outcome, reason)
	x.Report.Name(idempotency.Key{}, delivery.Found{}) // where the body is too large, they may be set
	if outcome == report.Unusable {
		return Pass{Outcome: report.Unusable}
	}
	return Pass{Outcome: report.Missing} // a constant needs no allocation
}

// logWithoutKey logs, at most once a second for each reason, that a request has no key, or none that
// can be used, and where dedup looked for one: a provider's name or a `key` line may be wrong.
func (x *Request) logWithoutKey(o report.Outcome, reason error) {
	message := "missing: a request has no key and passes unprotected"
	if o == report.Unusable {
		message = "unusable: a request has a value that cannot be its key, and passes unprotected"
	}
	if leftOut, ok := x.withoutKeyLog.Allow(reason.Error()); ok {
		x.Logger.Info(message,
			zap.Inline(x), zap.Stringers("looked_for", x.sender.Sources), zap.NamedError("reason", reason), zap.Int64("left_out", leftOut))
	}
}

// LogMissing reports whether the refusal of a request without a key may be logged now, and how many were
// left out since the last one.
func (i *Identifier) LogMissing(detail string) (leftOut int64, ok bool) {
	return i.withoutKeyLog.Allow(detail)
}

// withLargeBody refuses a request whose body is needed whole and is too large to be held or parsed, or
// passes it without a key.
func (x *Request) withLargeBody(err error, needs string) Decision {
	excess := x.Body.Excess()
	if errors.Is(err, delivery.ErrTooManyFields) {
		excess = err.Error()
	}
	detail := excess + ", and " + needs + " needs all of it"
	if x.Mode != delivery.ModeWebhook || x.Verify != nil {
		return x.refuse(ReasonTooLarge, detail)
	}
	return x.withoutKey(errors.New(detail))
}

// readCall reads what a request is. It returns nil for a call, whose key is then looked for.
func (x *Request) readCall() Decision {
	if read, ok := x.Calls.ReadHead(x.r, scope{x}.callerAndSession); ok {
		switch {
		case read.Resume != Resume{}:
			x.call = read.Call
			return read.Resume
		case read.Answer != 0:
			return Answered{read.Answer, read.Later}
		}
		return Pass{}
	}
	tooLarge := x.Body.ReadToLimit()
	var text []byte
	err := tooLarge
	if !reqbody.Failed(err) {
		text, err = x.Body.Join()
	}
	if errors.Is(err, delivery.ErrBodyTooLarge) { // for one piece
		text, tooLarge, err = x.Body.Beginning(), err, nil
	}
	if err != nil { // whether it is a call is unknown
		x.call = x.Calls.Unread(x.r.Header)
		return x.unread(err)
	}
	read := x.Calls.Read(x.r.Header, text, tooLarge == nil, scope{x}.callerAndSession)
	x.begin = read.Begin
	switch {
	case read.Answer != 0:
		return Answered{Status: read.Answer}
	case read.Call == nil:
		return Pass{}
	case read.NoKey != nil && !x.RejectMissing:
		x.logWithoutKey(report.Unusable, read.NoKey)
		return Pass{Outcome: report.Unusable}
	}
	x.callRoom = &budget.Allowance{Budget: x.Allowance.Budget}
	if err := x.callRoom.Admit(read.Size); err != nil {
		x.call = x.Calls.Unread(x.r.Header)
		return x.unread(err)
	}
	x.call = read.Call
	if read.NoKey != nil {
		return Refusal{ReasonMissing, read.NoKey.Error(), report.Unusable}
	}
	if tooLarge != nil {
		return x.withLargeBody(tooLarge, "a tool call")
	}
	return nil
}

// setKey sets the delivery and its key, which logs and refusals name from then on. It returns an error
// if a member of the body cannot be part of the scope.
func (x *Request) setKey(found delivery.Found) error {
	x.Report.Name(idempotency.Key{}, found)
	scope, err := x.appendScopeOf(make([]string, 0, 16), found) // on the stack
	if err != nil {
		return err
	}
	if x.call != nil {
		if x.scoped == nil {
			x.scoped = new(scopeMembers)
		}
		hash := x.hash(scope)
		x.scoped.hash = &hash
	}
	key := idempotency.Identity{
		Namespace: x.Namespace,
		Scope:     scope,
		Kind:      found.Kind,
		Prefix:    found.Prefix,
		ID:        found.ID,
		Tuple:     found.Tuple,
	}.Key()
	x.Report.Name(key, found)
	return nil
}

// appendScopeOf appends the scope of a key. It returns an error if a member of the body cannot be part of it.
func (x *Request) appendScopeOf(parts []string, found delivery.Found) (_ []string, err error) {
	if x.Verify != nil { // no request that nothing verifies uses up its keys
		by := x.sender.by
		parts = append(parts, "verified", by.Provider, by.Secret)
	}
	switch {
	case len(x.Scope) == 0 && x.Verify != nil:
		parts, err = scope{x}.appendSignedScope(parts)
	case len(x.Scope) == 0:
		parts, err = scope{x}.appendScope(parts)
	case x.Scope[0] == SharedScope:
		parts = append(parts, x.Scope...)
	default:
		parts, err = scope{x}.appendTexts(append(parts, "text"), x.Scope)
	}
	return append(parts, found.Scope...), err
}

// Origin returns what operators see of the request that claims the key.
func (x *Request) Origin() idempotency.Origin {
	path, _ := report.OriginalPath(x.r)
	o := idempotency.Origin{
		Provider: x.Found().Provider, DeliveryID: x.Found().ID, Parts: x.Found().Parts,
		Method: x.r.Method, Host: x.r.Host, Path: path[:min(len(path), idempotency.MaxPath)],
	}
	if x.scoped != nil {
		o.Scope, o.ScopeHash = x.scoped.texts, x.scoped.hash
	}
	return o
}

// policyOf returns the policy for a provider, or for a prefix that the configuration names.
func (i *Identifier) policyOf(provider string) idempotency.Policy {
	if policy, ok := i.Policies[provider]; ok {
		return policy
	}
	return i.Policies[""]
}

// withoutParameters returns a query without the parameters of these names, * for all. It leaves the
// others as they were sent.
func withoutParameters(query string, names []string) string {
	if len(names) == 0 || query == "" {
		return query
	}
	if slices.Contains(names, "*") {
		return ""
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(parameter string) bool {
		name, _, _ := strings.Cut(parameter, "=")
		return slices.Contains(names, decoded(name))
	})
	return strings.Join(kept, "&")
}

// decoded returns the unescaped name of a parameter, or the name itself if its escapes are invalid.
func decoded(name string) string {
	if text, err := url.QueryUnescape(name); err == nil {
		return text
	}
	return name
}

// hostOf returns the host as the client sent it, in lower case, without a trailing dot, and with
// its port unless that is the scheme's default.
func hostOf(r *http.Request) string {
	u := url.URL{Host: strings.ToLower(r.Host)}
	host, port, standard := strings.TrimSuffix(u.Hostname(), "."), u.Port(), "80"
	if r.TLS != nil {
		standard = "443"
	}
	if port == "" || port == standard {
		return host
	}
	return net.JoinHostPort(host, port)
}

// isGRPC reports whether a request is a gRPC call, which streams both ways. gRPC needs HTTP/2 or
// HTTP/3.
func isGRPC(r *http.Request) bool {
	mediaType, _, _ := strings.Cut(httpfield.First(r.Header, "Content-Type"), ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	return r.ProtoMajor >= 2 && (mediaType == "application/grpc" || strings.HasPrefix(mediaType, "application/grpc+"))
}
