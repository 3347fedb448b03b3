package exchange

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// RetentionSource is where a request has the retention that it asks for, in seconds. Max is the
// longest that it gets.
type RetentionSource struct {
	Source delivery.Source
	Max    time.Duration
}

// MaxRetention is the longest retention, and the longest duration in a configuration. Sums with it
// do not overflow.
const MaxRetention = 36500 * 24 * time.Hour

// requestedRetention returns the retention that a request asks for, at most the maximum, and 0 if
// it asks for none. An invalid one is logged and ignored: with an error, the sender's event would
// be lost.
func (x *exchange) requestedRetention(request delivery.Request) time.Duration {
	from := x.RetentionFrom
	if from == nil {
		return 0
	}
	if from.Source.NeedsBody() {
		_ = x.acquireParseSlot() // the failure shows below
	}
	asked, err := delivery.Seconds(from.Source, request)
	switch {
	case x.body.failed() != nil:
		return 0 // the next reader of the body ends the request
	case err != nil:
		x.logRetention("the request's own retention is ignored, and the configured one stays", zap.NamedError("reason", err))
		return 0
	case asked > from.Max:
		x.logRetention("the request asks for a longer retention than allowed, and gets the maximum", zap.Stringer("asked", asked), zap.Stringer("max", from.Max))
		return from.Max
	}
	return asked
}

// logRetention logs, at most once a second, that a request does not get the retention that it asks
// for.
func (x *exchange) logRetention(message string, fields ...zap.Field) {
	if omitted, ok := x.retentionLog.allow(time.Since(start), message); ok {
		x.Logger.With(fields...).Warn(message,
			zap.Stringer("source", x.RetentionFrom.Source), zap.Inline(x), zap.Int64("left_out", omitted))
	}
}

// upstreamRetention returns the value of the upstream's Dedup-Retention, at most [MaxRetention],
// and nil if there is none. An invalid one is logged and ignored.
func (x *exchange) upstreamRetention(text string) *time.Duration {
	if text == "" {
		return nil
	}
	const maxSeconds = uint64(MaxRetention / time.Second)
	seconds, err := strconv.ParseUint(text, 10, 64)
	if seconds > maxSeconds && (err == nil || errors.Is(err, strconv.ErrRange)) {
		x.Logger.Warn("the upstream's "+retentionHeader+" is longer than the maximum, which applies",
			zap.String("value", fmt.Sprintf("%.40q", text)), zap.Uint64("max_seconds", maxSeconds))
		seconds, err = maxSeconds, nil
	}
	if err != nil {
		x.Logger.Warn("the upstream's "+retentionHeader+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", text)))
		return nil
	}
	retention := time.Duration(seconds) * time.Second
	return &retention
}
