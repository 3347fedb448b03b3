package exchange

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// RetentionSource is where a request asks for its retention: a number of seconds, of which at
// most Max counts.
type RetentionSource struct {
	Source delivery.Source
	Max    time.Duration
}

// MaxRetention is the longest retention of all, and the longest duration of a setting. What is added
// to it must not overflow.
const MaxRetention = 36500 * 24 * time.Hour

// requestedRetention returns the retention that a request asks for, no longer than it may;
// 0 if it asks for none that counts. What is wrong is logged. It is no error to the sender,
// whose event would be lost.
func (x *exchange) requestedRetention(request delivery.Request) time.Duration {
	from := x.RetentionFrom
	if from == nil {
		return 0
	}
	if from.Source.NeedsBody() {
		_ = x.acquireParseSlot() // a failure shows below
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

// logRetention logs that a request does not get the retention that it asks for, at
// most once a second: what senders write must not fill the log.
func (x *exchange) logRetention(message string, fields ...zap.Field) {
	if omitted, ok := x.retentionLog.allow(time.Since(start)); ok {
		x.Logger.With(fields...).Warn(message,
			zap.Stringer("source", x.RetentionFrom.Source), zap.Inline(x), zap.Int64("left_out", omitted))
	}
}

// upstreamRetention reads the upstream's Dedup-Retention, which is no longer than the longest
// that can be configured. One that is not a number of seconds is logged, and the configured
// retention stays.
func (x *exchange) upstreamRetention(text string) *time.Duration {
	if text == "" {
		return nil
	}
	const most = uint64(MaxRetention / time.Second)
	seconds, err := strconv.ParseUint(text, 10, 64)
	if seconds > most && (err == nil || errors.Is(err, strconv.ErrRange)) {
		x.Logger.Warn("the upstream's "+retentionHeader+" is longer than the maximum, which applies",
			zap.String("value", fmt.Sprintf("%.40q", text)), zap.Uint64("max_seconds", most))
		seconds, err = most, nil
	}
	if err != nil {
		x.Logger.Warn("the upstream's "+retentionHeader+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", text)))
		return nil
	}
	wished := time.Duration(seconds) * time.Second
	return &wished
}
