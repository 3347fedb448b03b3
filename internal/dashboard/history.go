package dashboard

import (
	"strconv"
	"strings"
	"sync"
	"time"
)

// group is what outcomes of requests have in common, for the chart.
type group int

const (
	executed group = iota
	answered
	refused
	unprotected
	groups
)

// groupTexts name the groups, in the order in which a bar is stacked, from below.
var groupTexts = [groups]struct{ name, title, text string }{
	executed:    {"executed", "Executed", "requests that ran"},
	answered:    {"answered", "Duplicates answered", "without the service"},
	refused:     {"refused", "Refused", "requests that were refused"},
	unprotected: {"unprotected", "Unprotected", "requests that passed without a key or a store"},
}

// groupOf has the groups of outcomes. Outcomes that are not in it are refusals.
var groupOf = map[string]group{
	"executed": executed, "forced": executed, "passed": executed,
	"replayed": answered, "waited": answered, "acknowledged": answered, "conflict": answered, "see_other": answered, "not_kept": answered,
	"missing": unprotected, "unusable": unprotected, "unprotected": unprotected,
}

const (
	// minutes is how many minutes the chart shows.
	minutes = 60
	// chartAfter is when there is enough to be drawn.
	chartAfter = 10 * time.Minute
)

// History has the outcomes of the requests of this process in the last hour, by minute.
type History struct {
	counts func() map[string]uint64
	began  time.Time

	mu     sync.Mutex
	last   [groups]uint64          // the counters at the latest update
	minute time.Time               // when the latest of the minutes began
	ring   [minutes][groups]uint64 // the oldest first
}

// NewHistory returns a history of counters, which counts returns by outcome.
func NewHistory(counts func() map[string]uint64) *History {
	h := &History{counts: counts, began: time.Now()}
	h.update(time.Now())
	h.ring = [minutes][groups]uint64{} // what was counted before
	return h
}

// Run reads the counters at the end of every minute. It does not return.
func (h *History) Run() {
	for {
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		h.update(time.Now())
	}
}

// update adds what was counted since the latest update to its minute, and returns the
// minutes up to now.
func (h *History) update(now time.Time) [minutes][groups]uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var counts [groups]uint64
	for outcome, n := range h.counts() {
		g, known := groupOf[outcome]
		if !known {
			g = refused
		}
		counts[g] += n
	}
	for g, n := range counts {
		h.ring[minutes-1][g] += n - h.last[g]
	}
	h.last = counts
	minute := now.Truncate(time.Minute)
	for range min(minutes, minute.Sub(h.minute)/time.Minute) {
		copy(h.ring[:], h.ring[1:])
		h.ring[minutes-1] = [groups]uint64{}
	}
	h.minute = minute
	return h.ring
}

// chart is the last hour, ready to be drawn in units of barWidth and chartHeight.
type chart struct {
	Width, Height int
	Bars          []bar  // none before there is enough to be drawn
	Max           string // requests in the highest bar
	Legend        []legend
}

// bar is one minute.
type bar struct {
	Time   string
	X, W   int
	Parts  []part
	Counts []string // by group
}

// part is what a group has of a bar.
type part struct {
	Group string
	Y, H  uint64
}

type legend struct{ Name, Title, Text, Sum string }

const (
	barWidth    = 16
	chartHeight = 200
)

// chart draws the history.
func (h *History) chart(now time.Time) chart {
	ring := h.update(now)
	highest := uint64(1)
	var sums [groups]uint64
	for _, counts := range ring {
		sum := uint64(0)
		for g, n := range counts {
			sum += n
			sums[g] += n
		}
		highest = max(highest, sum)
	}
	c := chart{Width: minutes * barWidth, Height: chartHeight, Max: grouped(highest)}
	for i, counts := range ring {
		if now.Sub(h.began) < chartAfter {
			break
		}
		at := now.UTC().Add(time.Duration(i+1-minutes) * time.Minute)
		b := bar{Time: at.Format("15:04"), X: i*barWidth + 2, W: barWidth - 4}
		below := uint64(0)
		for g, n := range counts {
			b.Counts = append(b.Counts, grouped(n))
			top := below + n
			y := chartHeight - chartHeight*top/highest
			if high := chartHeight - chartHeight*below/highest - y; high > 0 {
				b.Parts = append(b.Parts, part{groupTexts[g].name, y, high})
			}
			below = top
		}
		c.Bars = append(c.Bars, b)
	}
	for g, text := range groupTexts {
		c.Legend = append(c.Legend, legend{text.name, text.title, text.text, grouped(sums[g])})
	}
	return c
}

// grouped writes a number with its thousands apart.
func grouped[N int | uint64](n N) string {
	digits := strconv.FormatUint(uint64(n), 10)
	var out strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteRune('\u202f') // a narrow space that does not break
		}
		out.WriteRune(digit)
	}
	return out.String()
}
