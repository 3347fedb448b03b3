package exchange

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// runLogFields returns the upstream of a run and why it ended, for the log line about a key that is
// held or released: an operator decides by them whether the upstream has executed the request. The
// reason is for the record. A run whose response is kept has neither.
func (x *exchange) runLogFields(err error, end idempotency.End) (facts []zap.Field, reason string) {
	if err == nil && end.How == idempotency.Answered && end.Response != nil && end.Response.Status < 300 && end.UpstreamStatus < 300 {
		return nil, ""
	}
	if repl, ok := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		if _, chosen := repl.Get(upstreamAddress); chosen {
			host, _ := repl.GetString(upstreamHostPort)
			facts = append(facts, zap.String("upstream", host))
		}
	}
	cause := causeOf(err, end)
	if cause != nil {
		reason = idempotency.CutReason(cause.Error())
	}
	return append(facts, zap.NamedError("error", cause)), reason
}

// MarshalLogObject implements [zapcore.ObjectMarshaler], for the request and its delivery in our
// own log lines. The path has no query, which may contain a token.
func (x *exchange) MarshalLogObject(to zapcore.ObjectEncoder) error {
	path, _ := originalPath(x.r)
	for _, field := range [...][2]string{
		{"method", x.r.Method}, {"host", x.r.Host}, {"path", path},
		{"key", x.keyText()}, {"provider", x.found.Provider}, {"delivery_id", x.shownID()},
	} {
		if field[1] != "" {
			to.AddString(field[0], field[1])
		}
	}
	if len(x.found.Parts) > 0 && !x.Encrypted {
		zap.Strings("parts", x.found.Parts).AddTo(to)
	}
	return nil
}

// shownID returns the delivery ID for logs and placeholders. It is "" under encrypt: what the store
// encrypts is not shown.
func (x *exchange) shownID() string {
	if x.Encrypted {
		return ""
	}
	return x.found.ID
}

// causeOf returns why a run ended without a response that is kept, or nil.
func causeOf(err error, end idempotency.End) error {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.Is(err, errAborted):
		return errors.New("the response was cut off, or a handler was aborted")
	case errors.As(err, &handlerError) && handlerError.Err != nil:
		return handlerError.Err
	case err != nil:
		return err
	case end.How == idempotency.Answered && end.UpstreamStatus != 0:
		return fmt.Errorf("the upstream answered with %d", end.UpstreamStatus)
	case end.How == idempotency.Unknown:
		return errors.New("the response was cut off, or the run was cancelled")
	default:
		return nil
	}
}

// logWithoutKey logs, at most once a second for each reason, that a request has no key, or none that
// can be used, and where dedup looked for one: a provider's name or a `key` line may be wrong.
func (x *exchange) logWithoutKey(o Outcome, reason error) {
	message := "missing: a request has no key and passes unprotected"
	if o == OutcomeUnusable {
		message = "unusable: a request has a value that cannot be its key, and passes unprotected"
	}
	if leftOut, ok := x.withoutKeyLog.allow(time.Since(start), reason.Error()); ok {
		x.Logger.Info(message,
			zap.Inline(x), zap.Stringers("looked_for", x.sender.Sources), zap.NamedError("reason", reason), zap.Int64("left_out", leftOut))
	}
}

// leftOutField returns how many lines were left out since the last one, if any were.
func leftOutField(n int64) zap.Field {
	if n == 0 {
		return zap.Skip()
	}
	return zap.Int64("left_out", n)
}

// logSampler allows one line a second for each reason, and counts the others. A reason names its
// provider.
type logSampler struct {
	mu      sync.Mutex
	reasons map[string]*sampledReason
}

type sampledReason struct {
	next    time.Duration // when the next line may be logged, since start
	leftOut int64
}

// maxReasons bounds the reasons of a sampler. Others than these share a line.
const maxReasons = 64

// withoutNumbers returns a reason without its numbers: clients choose the lengths and positions in it.
func withoutNumbers(reason string) string {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	if !strings.ContainsFunc(reason, isDigit) {
		return reason
	}
	return strings.Map(func(r rune) rune {
		if isDigit(r) {
			return -1
		}
		return r
	}, reason)
}

// start is the zero of a monotonic clock.
var start = time.Now()

// allow reports whether a line may be logged now, and how many were left out since the last one.
func (o *logSampler) allow(now time.Duration, reason string) (leftOut int64, ok bool) {
	reason = withoutNumbers(reason)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reasons == nil {
		o.reasons = make(map[string]*sampledReason)
	}
	if o.reasons[reason] == nil && len(o.reasons) >= maxReasons {
		maps.DeleteFunc(o.reasons, func(_ string, r *sampledReason) bool { return r.next <= now })
		if len(o.reasons) >= maxReasons {
			reason = ""
		}
	}
	r := o.reasons[reason]
	if r == nil {
		r = new(sampledReason)
		o.reasons[reason] = r
	}
	if now < r.next {
		r.leftOut++
		return 0, false
	}
	leftOut, r.leftOut, r.next = r.leftOut, 0, now+time.Second
	return leftOut, true
}
