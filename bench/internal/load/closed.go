package load

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Until is the end of a closed loop: whatever comes first.
type Until struct {
	// For is how long a connection sends its next request, 0 for no limit. Each sends one:
	// a busy machine can let all of a short turn pass before the first.
	For time.Duration
	// Requests is how many are sent at most; 0: no limit.
	Requests int64
}

// Closed sends requests over so many connections, each its next one when it has its
// answer. It says how much the proxy can do, and little of latency: while the proxy
// stalls, nothing is sent that could wait.
func Closed(ctx context.Context, r Request, connections int, until Until) Result {
	s := newSender(r, connections)
	defer s.close()
	began := time.Now()
	ends := began.Add(until.For)
	var left atomic.Int64
	left.Store(until.Requests)
	parts := make([]Result, connections)
	var done sync.WaitGroup
	for i := range parts {
		done.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				at := time.Now()
				if until.For > 0 && !first && !at.Before(ends) || until.Requests > 0 && left.Add(-1) < 0 {
					return
				}
				failure := s.send(ctx)
				parts[i].add(time.Since(at), failure)
			}
		})
	}
	done.Wait()
	return join(parts, time.Since(began))
}

func join(parts []Result, took time.Duration) Result {
	whole := Result{Took: took}
	for _, part := range parts {
		whole.Latencies = append(whole.Latencies, part.Latencies...)
		whole.Unanswered += part.Unanswered
		if whole.Failed == nil {
			whole.Failed = part.Failed
			continue
		}
		for what, n := range maps.All(part.Failed) {
			whole.Failed[what] += n
		}
	}
	return whole
}
