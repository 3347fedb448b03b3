package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// openConnections bounds what a fixed rate has under way. A request that finds all of
// them taken waits, and its waiting counts.
const openConnections = 256

// openPatience is how long after the last arrival the answers may come.
const openPatience = 2 * time.Second

// Schedule returns the moments of arrivals, from the beginning on: so many in a second on
// average, at random, as independent clients come (a Poisson process). The same seed
// gives the same arrivals, so that all cases of a round get the same ones.
func Schedule(perSecond float64, lasts time.Duration, seed uint64) []time.Duration {
	random := rand.New(rand.NewPCG(seed, 0))
	var arrivals []time.Duration
	at := 0.0
	for {
		at += random.ExpFloat64() / perSecond
		moment := time.Duration(at * float64(time.Second))
		if moment >= lasts {
			return arrivals
		}
		arrivals = append(arrivals, moment)
	}
}

// Open sends requests at the moments of a schedule, whether or not earlier ones have
// their answers. A latency counts from the scheduled moment: if the proxy stalls, all
// that should have been sent meanwhile is late, and shows it.
func Open(ctx context.Context, r Request, arrivals []time.Duration) Result {
	s := newSender(r, openConnections)
	defer s.close()
	return open(ctx, arrivals, openConnections, s.send)
}

func open(ctx context.Context, arrivals []time.Duration, senders int, send func(context.Context) string) Result {
	if len(arrivals) == 0 {
		return Result{}
	}
	began := time.Now()
	ends := began.Add(arrivals[len(arrivals)-1] + openPatience)
	ctx, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	due := make(chan time.Duration, len(arrivals)) // the schedule never waits for a sender
	parts := make([]Result, senders)
	var done sync.WaitGroup
	for i := range parts {
		done.Go(func() {
			for arrival := range due {
				failure := "unanswered"
				if ctx.Err() == nil {
					failure = send(ctx)
				}
				latency := time.Since(began.Add(arrival))
				if failure != "" && ctx.Err() != nil {
					parts[i].Unanswered++
					failure = ""
				}
				parts[i].add(latency, failure)
			}
		})
	}
	for _, arrival := range arrivals {
		wait(ctx, time.Until(began.Add(arrival)))
		due <- arrival
	}
	close(due)
	done.Wait()
	return join(parts, time.Since(began))
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
