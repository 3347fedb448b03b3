package dashboard

import (
	"context"
	"sync"
	"time"
)

// What a [Counter] counts beside the outcomes of requests.
const (
	// RunFailed are runs that ended without an answer to keep: their keys are free.
	RunFailed = "run_failed"
	// RunHeld are runs whose end is unknown, and whose keys are held.
	RunHeld = "run_held"
	// SavedMillis is how long the runs took whose answers duplicates got, once for each
	// duplicate, in milliseconds: what the upstream was spared.
	SavedMillis = "saved_milliseconds"
)

// Counter counts what happens in this process.
type Counter interface {
	// Counts returns how often each thing has happened since the process began: the
	// outcomes of requests by their name, and [RunFailed], [RunHeld], [SavedMillis].
	Counts() map[string]uint64
}

// group is what the chart makes of outcomes that mean the same to who reads it.
type group int

const (
	ran group = iota
	absorbed
	failed
	refused
	passed
	groups
)

// groupOf says which group each outcome belongs to.
var groupOf = map[string]group{
	"fresh": ran, "forced": ran,
	"replayed": absorbed, "waited": absorbed, "acknowledged": absorbed, "conflict": absorbed, "not_kept": absorbed,
	"in_flight": refused, "reused": refused, "held": refused, "exhausted": refused, "invalid": refused, "too_large": refused,
	"overloaded": refused, "store_unavailable": refused, "record_unreadable": refused, "no_handler": refused, "loop": refused,
	"missing": passed, "unprotected": passed,
}

// measures are the names of what is kept of the past, in the order of [sample].
var measures = measureNames()

func measureNames() []string {
	names := []string{RunFailed, RunHeld, SavedMillis}
	for name := range groupOf {
		names = append(names, name)
	}
	return names
}

// Groups names the chart's groups for the outcomes, for who has to know all outcomes.
func Groups() map[string]string {
	names := make(map[string]string, len(groupOf))
	for outcome, g := range groupOf {
		names[outcome] = groupTexts[g].name
	}
	return names
}

const (
	// sampleEvery is how often the counters are read.
	sampleEvery = time.Minute
	// kept is how many samples there are: a day of them.
	kept = 24 * 60
)

// sample is what was counted in one minute.
type sample struct {
	minute int64 // since 1970
	counts []uint64
}

// History is what one process has counted, minute by minute, for a day. It takes the
// same memory however much happens.
type History struct {
	counter Counter
	begun   time.Time

	mu   sync.Mutex
	last map[string]uint64 // of the counter, when it was read last
	ring [kept]sample
}

// NewHistory begins to keep what is counted from now on.
func NewHistory(counter Counter) *History {
	return &History{counter: counter, begun: time.Now(), last: counter.Counts()}
}

// Run reads the counters at the end of each minute, until the context ends.
func (h *History) Run(ctx context.Context) {
	for {
		timer := time.NewTimer(time.Until(time.Now().Truncate(sampleEvery).Add(sampleEvery)))
		select {
		case now := <-timer.C:
			h.take(now)
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func minuteOf(at time.Time) int64 { return at.Unix() / 60 }

// take notes what was counted in the minute that has just ended.
func (h *History) take(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := h.counter.Counts()
	minute := minuteOf(now.Add(-sampleEvery / 2))
	slot := &h.ring[minute%kept]
	if slot.minute != minute || slot.counts == nil {
		slot.minute = minute
		slot.counts = make([]uint64, len(measures))
	}
	for i, name := range measures {
		slot.counts[i] += counts[name] - h.last[name]
	}
	h.last = counts
}

// past is what was counted in a stretch of time.
type past map[string]uint64

func (p past) of(g group) uint64 {
	switch g {
	case ran: // what failed has run, too, and is another part of the bar
		begun, lost := p["fresh"]+p["forced"], p[RunFailed]+p[RunHeld]
		return begun - min(begun, lost)
	case failed:
		return p[RunFailed] + p[RunHeld]
	}
	var sum uint64
	for name, of := range groupOf {
		if of == g {
			sum += p[name]
		}
	}
	return sum
}

// deliveries are all requests, whatever became of them.
func (p past) deliveries() uint64 {
	var sum uint64
	for name := range groupOf {
		sum += p[name]
	}
	return sum
}

func (p past) add(other past) {
	for name, n := range other {
		p[name] += n
	}
}

// minutes returns the latest n minutes, the oldest first; the last one is not over yet.
func (h *History) minutes(now time.Time, n int) []past {
	h.mu.Lock()
	defer h.mu.Unlock()
	current := h.counter.Counts()
	all := make([]past, n)
	for i := range all {
		minute := minuteOf(now) - int64(n-1-i)
		if slot := h.ring[minute%kept]; slot.minute == minute {
			all[i] = make(past)
			for j, count := range slot.counts {
				all[i][measures[j]] = count
			}
		}
	}
	latest := make(past)
	for _, name := range measures {
		latest[name] = all[n-1][name] + current[name] - h.last[name]
	}
	all[n-1] = latest
	return all
}

// sinceStart is all that this process has counted.
func (h *History) sinceStart() past { return h.counter.Counts() }
