package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// carryOut lets a run's request through and settles its claim by how the
// handlers behind ended. The run stays in the request's goroutine, but not under
// the client's context: a client that goes away ends nothing.
func (x *exchange) carryOut(run *engine.Run) error {
	x.announce(run.Record())
	repl := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	forgetUpstream(repl)

	ctx, limit := limited(x.r, duration(x.Timeout))
	defer limit.end()
	ctx, sent := traced(inExecution(ctx, run.ExecutionID()))
	answer := newCapture(x.w, x.MaxResponseBody, &x.held)

	settled := false
	settle := func(end idempotency.End, failed int) {
		if !settled {
			settled = true
			held := x.held // a response that cannot be stored yet is held beyond its request
			x.held = share{buffer: x.buffer}
			run.OnResponseDone(held.giveBack)
			end.Response = x.responseOf(end, answer, failed)
			_, _ = run.End(end) // the engine logs what became of it
		}
	}
	// In a panic the run was aborted, or the upstream died in mid-body.
	defer func() { settle(idempotency.End{How: idempotency.Unknown}, http.StatusBadGateway) }()
	answer.onUpgrade = func() {
		limit.lift()
		settle(upgradedEnd, http.StatusBadGateway)
	}
	err := x.next.ServeHTTP(answer, forUpstream(x.r.WithContext(ctx)))
	end := observe(err, answer, sent, repl)
	if end.Retention == nil {
		end.Retention = x.wishedRetention(answer)
	}
	settle(end, failedStatus(err, answer))
	switch {
	case err != nil:
		answer.giveUp()
		return err
	case answer.broken() && answer.streaming:
		panic(http.ErrAbortHandler) // a cut response must not look whole
	case answer.broken():
		return caddyhttp.Error(http.StatusBadGateway, errors.New("the response was cut off"))
	}
	answer.finish()
	return nil
}

// upgradedEnd is the end of a run whose connection became something else than
// HTTP. That is not deduplicated: the key is free, as if nothing had been sent.
var upgradedEnd = idempotency.End{How: idempotency.NotSent}

// runLimit is the time limit of a run.
type runLimit struct {
	end  context.CancelFunc
	lift func()
}

// limited returns a context for a run: not the client's, and with a limit of its
// own. reverse_proxy tells a deadline (504) from a cancelled context (499), but a
// deadline cannot be lifted, as it must be from a connection that was upgraded.
func limited(r *http.Request, timeout time.Duration) (context.Context, runLimit) {
	base := context.WithoutCancel(r.Context())
	if r.Header.Get("Upgrade") == "" {
		ctx, cancel := context.WithTimeout(base, timeout)
		return ctx, runLimit{end: cancel, lift: func() {}}
	}
	ctx, cancel := context.WithCancel(base)
	timer := time.AfterFunc(timeout, cancel)
	return ctx, runLimit{
		end:  func() { timer.Stop(); cancel() },
		lift: func() { timer.Stop() },
	}
}

// announce tells placeholders, the client and the upstream which run it is.
func (x *exchange) announce(run *idempotency.Record) {
	o := outcomeFresh
	if run.ParentID != "" {
		o = outcomeForced
		x.logger.Info("forced: a request that was complete runs again on purpose",
			zap.String("key", x.key), zap.String("execution_id", run.ExecutionID), zap.String("parent_id", run.ParentID),
			zap.String("provider", x.found.Provider), x.loggedID(), zap.String("remote", x.r.RemoteAddr))
	}
	x.report(o, run.ExecutionID, run.Attempt)
	nameExecution(x.w.Header(), run)
	nameRun(x.r.Header, run)
}

// loggedID is the delivery ID as a log field. What is encrypted in the store does
// not stand in the log.
func (x *exchange) loggedID() zap.Field {
	if x.encrypted {
		return zap.Skip()
	}
	return zap.String("delivery_id", x.found.ID)
}

// forUpstream returns the request as the handlers behind get it. Responses are
// kept unencoded, for clients of all kinds: without Accept-Encoding the upstream
// has no reason to encode, and Go's transport decodes what it asked for itself.
func forUpstream(r *http.Request) *http.Request {
	r.Header = r.Header.Clone()
	r.Header.Del("Accept-Encoding")
	return sentOnce(r)
}

// observe says how a run ended.
func observe(err error, answer *capture, sent *sentTrace, repl *caddy.Replacer) idempotency.End {
	end := idempotency.End{UpstreamStatus: upstreamAnswered(repl)}
	switch {
	case err == nil && answer.status == statusClientGone && end.UpstreamStatus != statusClientGone && sent.maybeSent(repl):
		// reverse_proxy notes a run that was cancelled so, as if it were an answer.
		end.How = idempotency.Unknown
	case err == nil && answer.whole():
		end.How = idempotency.Answered
	case err == nil && answer.status == 0 && end.UpstreamStatus != 0:
		// The upstream answered, and a response handler made nothing of it.
		end.How, end.Retention = idempotency.Answered, new(time.Duration)
	case answer.status != 0 || sent.maybeSent(repl):
		end.How = idempotency.Unknown
	default:
		end.How = idempotency.NotSent
	}
	return end
}

// responseOf returns what those get who wait for the run, and what is kept of it:
// its response, or, where there is none, an error with the given status.
func (x *exchange) responseOf(end idempotency.End, answer *capture, failed int) *idempotency.Response {
	switch {
	case answer.upgraded:
		return &idempotency.Response{Status: failed, Failed: true}
	case failed == 0:
		return &idempotency.Response{Status: http.StatusOK} // as the server answers the first client
	case end.How == idempotency.Answered:
		return &idempotency.Response{
			Status:  answer.status,
			Header:  x.headers.kept(answer.onset, answer.answered),
			Omitted: answer.omitted,
			Body:    answer.body,
		}
	case end.How == idempotency.NotSent:
		return &idempotency.Response{Status: failed, Failed: true, Header: x.headers.kept(answer.onset, answer.header)}
	default:
		return &idempotency.Response{Status: failed, Failed: true}
	}
}

// failedStatus returns the status with which Caddy answers an error, 502 for a
// response that is not whole, and 0 where nothing was answered and nothing
// failed.
func failedStatus(err error, answer *capture) int {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.As(err, &handlerError) && handlerError.StatusCode != 0:
		return handlerError.StatusCode
	case err != nil:
		return http.StatusInternalServerError
	case answer.status == 0:
		return 0
	default:
		return http.StatusBadGateway
	}
}

// wishedRetention reads the upstream's Dedup-Retention. One that is not a number
// of seconds is logged, and the configured retention stays.
func (x *exchange) wishedRetention(answer *capture) *time.Duration {
	if answer.retention == "" {
		return nil
	}
	seconds, err := strconv.ParseUint(answer.retention, 10, 31)
	if err != nil {
		x.logger.Warn("the upstream's "+retentionHeader+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", answer.retention)))
		return nil
	}
	wished := time.Duration(seconds) * time.Second
	return &wished
}
