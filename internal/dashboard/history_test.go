package dashboard

import (
	"maps"
	"strings"
	"testing"
	"time"
)

func TestHistoryByMinute(t *testing.T) {
	counts := map[string]uint64{"executed": 1000} // from before there was a page
	h := NewHistory(func() map[string]uint64 { return maps.Clone(counts) })
	start := time.Now().Truncate(time.Minute)
	h.update(start)
	want := func(after time.Duration, tail ...uint64) {
		t.Helper()
		ring := h.update(start.Add(after))
		for i := range ring {
			expected := uint64(0)
			if at := i - (minutes - len(tail)); at >= 0 {
				expected = tail[at]
			}
			if got := ring[i][executed]; got != expected {
				t.Errorf("after %s, minute %d has %d, want %d", after, i, got, expected)
			}
		}
	}
	want(time.Second, 0)
	counts["executed"] += 3
	want(2*time.Second, 3) // at once, not only at the end of the minute
	counts["executed"]++
	want(time.Minute, 4, 0)
	counts["executed"] += 5
	want(61*time.Second, 4, 5)
	want(3*time.Minute, 4, 5, 0, 0)
	want(50*time.Second, 4, 5, 0, 0) // the clock was set back
	want(time.Minute, 4, 5, 0, 0, 0)
	want(62*time.Minute, 0)
	counts["executed"]++
	want(62*time.Minute, 1)
	want(30*24*time.Hour, 0)
}

func TestChart(t *testing.T) {
	counts := make(map[string]uint64)
	h := NewHistory(func() map[string]uint64 { return counts })
	at := time.Date(2026, 11, 22, 3, 30, 20, 0, time.UTC)
	h.began = at.Add(time.Minute - chartAfter)
	h.update(at)
	counts = map[string]uint64{"executed": 2000, "replayed": 500, "held": 1000, "an outcome of later": 500}
	h.update(at)
	counts["missing"] = 3
	if early := h.chart(at.Add(time.Minute - 1)); early.Bars != nil || len(early.Legend) != 4 {
		t.Errorf("before ten minutes it has %d bars, and %d sums", len(early.Bars), len(early.Legend))
	}
	c := h.chart(at.Add(time.Minute))
	if len(c.Bars) != 60 || c.Max != "4\u202f003" || c.Bars[59].Time != "03:31" || c.Bars[0].Time != "02:32" {
		t.Errorf("%d bars from %s to %s, up to %s", len(c.Bars), c.Bars[0].Time, c.Bars[59].Time, c.Max)
	}
	var sums []string
	for _, l := range c.Legend {
		sums = append(sums, l.Name+" "+l.Sum)
	}
	if got := strings.Join(sums, ", "); got != "executed 2\u202f000, answered 500, refused 1\u202f500, unprotected 3" {
		t.Errorf("the legend says %s", got)
	}
	below := uint64(chartHeight)
	for _, p := range c.Bars[58].Parts {
		if p.Y+p.H != below {
			t.Errorf("%s is from %d to %d, and what is below it begins at %d", p.Group, p.Y, p.Y+p.H, below)
		}
		below = p.Y
	}
	if len(c.Bars[58].Parts) != 4 || below != 0 {
		t.Errorf("the highest bar is %+v", c.Bars[58].Parts)
	}
}
