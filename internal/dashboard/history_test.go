package dashboard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// counting is a counter that a test adds to while it is read.
type counting struct {
	mu sync.Mutex
	counts
}

func (c *counting) Counts() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts.Counts()
}

func (c *counting) add(name string, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name] += n
}

func TestHistoryByTheMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		count := &counting{counts: counts{"fresh": 1000}} // from before there was a page
		h := NewHistory(count)
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); h.Run(ctx) }()
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		want := func(tail ...uint64) {
			t.Helper()
			minutes := h.minutes(time.Now(), 60)
			sum := uint64(0)
			for i, n := range tail {
				if got := minutes[len(minutes)-len(tail)+i].deliveries(); got != n {
					t.Errorf("minute %d from the end has %d, want %d", len(tail)-i, got, n)
				}
				sum += n
			}
			all := uint64(0)
			for _, one := range minutes {
				all += one.deliveries()
			}
			if all != sum {
				t.Errorf("the hour has %d, want %d", all, sum)
			}
		}
		want(0)
		count.add("fresh", 3)
		want(3) // at once, and not only when the minute is over
		pass(time.Minute + time.Second)
		count.add("replayed", 4)
		count.add("no outcome", 9)
		want(3, 4)
		pass(2 * time.Minute)
		want(3, 4, 0, 0)
		count.add("fresh", 1)
		pass(58 * time.Minute)
		if got := h.minutes(time.Now(), 60); got[0].deliveries() != 0 || got[1].deliveries() != 1 {
			t.Errorf("an hour later there are %v", got[:3])
		}
		pass(24 * time.Hour)
		want(0)
		for _, one := range h.minutes(time.Now(), kept) {
			if one.deliveries() != 0 {
				t.Errorf("a day later there is %v", one)
			}
		}
		end()
		<-ended
	})
}

func TestChartOfThePast(t *testing.T) {
	count := make(counts)
	h := NewHistory(count)
	now := time.Date(2026, 11, 22, 3, 30, 20, 0, time.UTC)
	if c := chartOf(h, stretchNamed("hour"), now); !c.Empty || len(c.Bars) != 60 {
		t.Errorf("nothing is drawn as %d bars, empty: %v", len(c.Bars), c.Empty)
	}
	count["fresh"], count["replayed"], count["held"], count[RunFailed] = 10, 5, 2, 4
	h.take(now.Add(-80 * time.Second)) // of the minute that began at 3:28
	count["missing"] = 30
	for name, want := range map[string]struct {
		bars  int
		last  string
		parts []int
	}{
		"hour": {60, "03:30–03:31", []int{1, 0, 4}},
		"day":  {96, "03:16–03:31", []int{5}},
	} {
		c := chartOf(h, stretchNamed(name), now)
		last := c.Bars[len(c.Bars)-1]
		if len(c.Bars) != want.bars || last.From+"–"+last.To != want.last {
			t.Errorf("%s: %d bars, the last one %s–%s", name, len(c.Bars), last.From, last.To)
		}
		for i, n := range want.parts {
			if got := len(c.Bars[len(c.Bars)-1-i].Parts); got != n {
				t.Errorf("%s: bar %d from the end has %d parts, want %d", name, i, got, n)
			}
		}
		var sums []string
		for _, l := range c.Legend {
			sums = append(sums, l.Name+" "+l.Sum)
		}
		if got := strings.Join(sums, ", "); got != "ran 6, absorbed 5, failed 4, refused 2, passed 30" {
			t.Errorf("%s: the legend says %s", name, got)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[uint64]uint64{0: 2, 1: 2, 2: 2, 3: 4, 5: 6, 7: 10, 11: 20, 61: 100, 4001: 6000, 1 << 62: 6e18} {
		if got := roundUp(n); got != want {
			t.Errorf("%d is drawn up to %d, want %d", n, got, want)
		}
	}
	if got := roundUp(1<<64 - 1); got == 0 {
		t.Error("the largest number is drawn up to nothing")
	}
}

// However much happens, the journal keeps no more than it is to, and what is rare is not
// pushed out by what is not.
func TestJournalIsBounded(t *testing.T) {
	j := NewJournal()
	key := func(i int) idempotency.Key { return idempotency.Identity{ID: fmt.Sprint(i)}.Key() }
	now := time.Now()
	j.Add(Note{At: now, Key: key(0), What: Freed, Who: "alice"})
	j.Add(Note{At: now.Add(-time.Minute), Key: key(0), What: "exhausted"})
	j.Add(Note{At: now, Key: key(1), What: "exhausted"})
	for i := range 20_000 {
		j.Add(Note{At: now, Key: key(i % 7), What: "replayed"})
	}
	if n := len(j.usual.notes); n != mostUsual {
		t.Errorf("%d usual notes", n)
	}
	got := j.of(key(0))
	if len(got) < 3 || got[0].What != "exhausted" {
		t.Errorf("of the key there are %d notes, the first %v", len(got), got[0])
	}
	if exhausted := j.exhausted(); len(exhausted) != 1 || exhausted[key(1)].IsZero() {
		t.Errorf("exhausted are %v; the freed one is not", exhausted)
	}
	for i := range 20_000 {
		j.Add(Note{At: now, Key: key(i), What: "held"})
		j.Add(Note{At: now, Key: key(i), What: Forgotten})
	}
	if a, b := len(j.notable.notes), len(j.acts.notes); a != mostNotable || b != mostActs {
		t.Errorf("%d and %d notes", a, b)
	}
}
