package caddymodule

import (
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// noteMissing logs why a request without a key passes unprotected. A webhook's sender
// always sends an ID: without one, the provider or the key is probably configured
// wrong, which is to be seen without debug logs. An API's clients may leave it out.
func (x *exchange) noteMissing(reason error) {
	if x.mode() == delivery.ModeWebhook {
		if leftOut, ok := x.missed.allow(time.Since(start)); ok {
			path, _ := asSent(x.r)
			x.logger.Info("missing: a request has no key and passes unprotected",
				zap.String("provider", strings.Join(x.Providers, ", ")),
				zap.String("method", x.r.Method), zap.String("host", x.r.Host), zap.String("path", path),
				zap.NamedError("reason", reason),
				zap.Int64("left_out", leftOut))
			return
		}
	}
	if line := x.logger.Check(zap.DebugLevel, "the request has no key"); line != nil {
		line.Write(zap.Error(reason))
	}
}

// oneASecond lets one line a second into a log, and counts those that are left out.
type oneASecond struct {
	next    atomic.Int64 // when the next line may come, in nanoseconds
	leftOut atomic.Int64
}

// start is when the clock of these lines begins; steps of the host's clock do not
// move it.
var start = time.Now()

// allow reports whether a line may be logged at a time, and how many were left out
// since the last one.
func (o *oneASecond) allow(now time.Duration) (leftOut int64, ok bool) {
	next := o.next.Load()
	if int64(now) < next || !o.next.CompareAndSwap(next, int64(now+time.Second)) {
		o.leftOut.Add(1)
		return 0, false
	}
	return o.leftOut.Swap(0), true
}
