package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// Rules are by what a service decides about the key, besides its status.
type Rules struct {
	ReleaseIf []ReleaseIf // the first one that is met releases the key
}

// ReleaseIf is a member of the JSON of a response by which a service says that the request failed,
// although the status says that it did not.
type ReleaseIf struct {
	Pointer string   // RFC 6901
	Values  []string // that the member has if the request failed; none for any but null, false, 0, "", [] and {}
}

// MaxReleaseBody is the size in bytes up to which a response is read for [Rules.ReleaseIf].
const MaxReleaseBody = 1 << 20

var errNoParseRoom = errors.New("there was no room within `buffered` to parse it")

// Response is the response of a run that has ended.
type Response interface {
	// Shared returns the response that the requests get that waited for the run, nil if they claim in
	// turn. err is what the client gets in place of the response.
	Shared(share Share, err error) *idempotency.Response
	// Body returns the body of a shared response in one piece.
	Body(of *idempotency.Response) ([]byte, error)
	// Take takes room for n bytes that the body is parsed into, and reports whether there is some.
	Take(n int) bool
	// Room is what Take takes room from.
	Room() *budget.Allowance
}

// Conclusion is how a run has ended.
type Conclusion struct {
	End idempotency.End
	// Err is what the client gets in place of the response; nil for the response.
	Err error
	// Fields are those of the run's log line.
	Fields []zap.Field
}

// Conclude returns how a run ended, by what was observed of it, by its response, and by what its service
// says in it. of is what is said of the request.
func (c *Rules) Conclude(o Ended, policy *idempotency.Policy, response Response, repl *caddy.Replacer, of *report.Report) Conclusion {
	end, share, err := o.End()
	if end.How == idempotency.Answered && o.Verdict.Silent {
		of.Silent(o.Verdict.Why, o.Status)
	}
	end.Response = response.Shared(share, err)
	failure := c.failure(end, policy, response, of)
	end.SaysFailed = end.SaysFailed || failure != nil
	if wished := retention(o.Retention, of); end.Retention == nil {
		end.Retention = wished
	}
	fields, reason := logFields(cmp.Or(failure, o.cause(err)), end, repl)
	end.Reason = reason
	return Conclusion{end, err, fields}
}

// failure returns an error that names the first [ReleaseIf] that the response of a run meets, nil for none.
// A response that its status releases is not read. Without room the response is kept: to run again what was
// executed would be worse than to keep a failure, which a log line names.
func (c *Rules) failure(end idempotency.End, policy *idempotency.Policy, response Response, of *report.Report) error {
	if len(c.ReleaseIf) == 0 || end.How != idempotency.Answered || end.Response == nil || end.Response.Omitted || policy.Releases(end) {
		return nil
	}
	body, err := response.Body(end.Response)
	if err == nil && len(body) <= MaxReleaseBody {
		var taken int64
		defer func() { response.Room().Release(taken) }()
		reserve := func(n int) error {
			if len(body) <= budget.SmallBody {
				response.Room().Count(n)
			} else if !response.Take(n) {
				return errNoParseRoom
			}
			taken += int64(n)
			return nil
		}
		read := func() ([]byte, error) { return body, nil }
		failure, parseErr := c.met(delivery.Request{Body: read, Reserve: reserve}.Remember())
		if err = parseErr; err == nil {
			return failure
		}
	}
	if err != nil {
		of.Logger.Warn("release_if: a response was not read, and is kept", zap.Inline(of), zap.NamedError("reason", err))
	}
	return nil
}

// met returns the first condition that a response meets. err says why it cannot be read.
func (c *Rules) met(response delivery.Request) (failure, err error) {
	doc, err := response.Document()
	if doc == nil { // it is not JSON
		return nil, err
	}
	for _, condition := range c.ReleaseIf {
		member, ok := doc.Root().At(condition.Pointer)
		if !ok {
			continue
		}
		if len(condition.Values) == 0 {
			if !member.IsZero() {
				return fmt.Errorf("the response says that the request failed: release_if %s", condition.Pointer), nil
			}
			continue
		}
		// The text of an object or array is "", which is none of the values.
		if value, err := member.Text(); err == nil && slices.Contains(condition.Values, value) {
			return fmt.Errorf("the response says that the request failed: release_if %s %s", condition.Pointer, value), nil
		}
	}
	return nil, nil
}

// retention returns the value of the upstream's Dedup-Retention, at most [idempotency.MaxRetention],
// and nil if there is none. An invalid one is logged and ignored.
func retention(text string, of *report.Report) *time.Duration {
	if text == "" {
		return nil
	}
	const maxSeconds = uint64(idempotency.MaxRetention / time.Second)
	seconds, err := strconv.ParseUint(text, 10, 64)
	if seconds > maxSeconds && (err == nil || errors.Is(err, strconv.ErrRange)) {
		of.Logger.Warn("the upstream's "+httpfield.Retention+" is longer than the maximum, which applies",
			zap.String("value", fmt.Sprintf("%.40q", text)), zap.Uint64("max_seconds", maxSeconds))
		seconds, err = maxSeconds, nil
	}
	if err != nil {
		of.Logger.Warn("the upstream's "+httpfield.Retention+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", text)))
		return nil
	}
	retention := time.Duration(seconds) * time.Second
	return &retention
}

// logFields returns the upstream of a run and why it ended, for the log line about a key that is held or
// released: an operator decides by them whether the upstream has executed the request. The reason is for
// the record. A run whose response is kept has neither.
func logFields(err error, end idempotency.End, repl *caddy.Replacer) (facts []zap.Field, reason string) {
	if err == nil && end.How == idempotency.Answered && end.Response != nil && end.Response.Status < 300 && end.UpstreamStatus < 300 {
		return nil, ""
	}
	if _, chosen := repl.Get(Address); chosen {
		host, _ := repl.GetString(HostPort)
		facts = append(facts, zap.String("upstream", host))
	}
	cause := causeOf(err, end)
	if cause != nil {
		reason = idempotency.CutReason(cause.Error())
	}
	return append(facts, zap.NamedError("error", cause)), reason
}

// causeOf returns why a run ended without a response that is kept, or nil.
func causeOf(err error, end idempotency.End) error {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.Is(err, ErrAborted):
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
