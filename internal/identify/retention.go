package identify

import (
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
)

// RetentionSource is where a request has the retention that it asks for, in seconds. Max is the
// longest that it gets.
type RetentionSource struct {
	Source delivery.Source
	Max    time.Duration
}

// requestedRetention returns the retention that a request asks for, at most the maximum, and 0 if
// it asks for none. An invalid one is logged and ignored: with an error, the sender's event would
// be lost. An error says that the body could not be read.
func (x *Request) requestedRetention(request delivery.Request) (time.Duration, error) {
	from := x.RetentionFrom
	if from == nil {
		return 0, nil
	}
	if from.Source.NeedsBody() {
		if err := x.acquireParseSlot(); reqbody.Failed(err) {
			return 0, err
		}
	}
	asked, err := delivery.Seconds(from.Source, request)
	switch {
	case reqbody.Failed(err):
		return 0, err
	case err != nil:
		logRetention(x, "the request's own retention is ignored, and the configured one stays", zap.NamedError("reason", err))
		return 0, nil
	case asked > from.Max:
		logRetention(x, "the request asks for a longer retention than allowed, and gets the maximum", zap.Stringer("asked", asked), zap.Stringer("max", from.Max))
		return from.Max, nil
	}
	return asked, nil
}

// logRetention logs, at most once a second, that a request does not get the retention that it asks
// for.
func logRetention(x *Request, message string, fields ...zap.Field) {
	if omitted, ok := x.retentionLog.Allow(message); ok {
		x.Logger.With(fields...).Warn(message,
			zap.Stringer("source", x.RetentionFrom.Source), zap.Inline(x), zap.Int64("left_out", omitted))
	}
}
