package dashboard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// groupTexts says what the groups of outcomes are called, in the order in which a bar is
// made of them, from below.
var groupTexts = [groups]struct{ name, title, text string }{
	ran:      {"ran", "Ran", "the service answered, and the answer is kept"},
	absorbed: {"absorbed", "Absorbed", "duplicates that were answered without the service"},
	failed:   {"failed", "Failed", "runs that left nothing to keep"},
	refused:  {"refused", "Refused", "requests that got a refusal"},
	passed:   {"passed", "Unprotected", "requests that passed without a key or a store"},
}

// stretch is how much of the past the chart shows.
type stretch struct {
	Name, Title string
	minutes     int // in all
	each        int // in one bar
	layout      string
}

var stretches = []stretch{
	{"hour", "Last hour", 60, 1, "15:04"},
	{"day", "Last day", kept, 15, "15:04"},
}

func stretchNamed(name string) stretch {
	for _, s := range stretches {
		if s.Name == name {
			return s
		}
	}
	return stretches[0]
}

// The chart's own units; it is stretched to the width that there is.
const (
	chartWidth  = 960
	chartHeight = 200
)

// chart is the chart of the deliveries over time, ready to be drawn.
type chart struct {
	Width, Height int
	Bars          []bar
	Lines         []string // how far from above the lines are
	Highs         []string // what the lines stand for, from above
	Times         []string
	Legend        []legend
	Empty         bool
}

type legend struct{ Name, Title, Text, Sum string }

// bar is what happened in one step of time.
type bar struct {
	From, To string
	X, W     string
	Parts    []part
	Counts   []string // of each group
}

// part is what one group has in a bar.
type part struct{ Group, Y, H string }

// chartOf draws the past.
func chartOf(h *History, s stretch, now time.Time) chart {
	minutes := h.minutes(now, s.minutes)
	c := chart{Width: chartWidth, Height: chartHeight}
	steps := make([][groups]uint64, 0, s.minutes/s.each)
	var sums [groups]uint64
	top := uint64(0)
	for chunk := range slices.Chunk(minutes, s.each) {
		all := make(past)
		for _, one := range chunk {
			all.add(one)
		}
		var counts [groups]uint64
		sum := uint64(0)
		for g := range groups {
			counts[g] = all.of(g)
			sums[g] += counts[g]
			sum += counts[g]
		}
		steps, top = append(steps, counts), max(top, sum)
	}
	c.Empty = top == 0
	scale := roundUp(top)
	width := float64(chartWidth) / float64(len(steps))
	first := now.UTC().Truncate(time.Minute).Add(-time.Duration(s.minutes-1) * time.Minute)
	for i, counts := range steps {
		from := first.Add(time.Duration(i*s.each) * time.Minute)
		b := bar{
			From: from.Format(s.layout), To: from.Add(time.Duration(s.each) * time.Minute).Format(s.layout),
			X: units(float64(i)*width + width*0.1), W: units(width * 0.8),
		}
		below := 0.0
		for g, n := range counts {
			b.Counts = append(b.Counts, grouped(n))
			if n == 0 {
				continue
			}
			high := float64(n) / float64(scale) * chartHeight
			below += high
			b.Parts = append(b.Parts, part{Group: groupTexts[g].name, Y: units(chartHeight - below), H: units(high)})
		}
		c.Bars = append(c.Bars, b)
	}
	for i := range 3 {
		c.Lines = append(c.Lines, units(float64(i)*chartHeight/2))
		c.Highs = append(c.Highs, strings.TrimSuffix(fmt.Sprintf("%.1f", float64(scale)*float64(2-i)/2), ".0"))
	}
	for i := range 5 {
		c.Times = append(c.Times, first.Add(time.Duration(i*s.minutes/4)*time.Minute).Format(s.layout))
	}
	for g, text := range groupTexts {
		c.Legend = append(c.Legend, legend{text.name, text.title, text.text, grouped(sums[g])})
	}
	return c
}

// units writes a place in the chart.
func units(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// roundUp returns the next number that people like to read at a line, at least 2.
func roundUp(n uint64) uint64 {
	for step := uint64(1); ; step *= 10 {
		for _, factor := range []uint64{2, 4, 6, 10} {
			if factor*step >= n {
				return factor * step
			}
		}
		if step > 1<<58 {
			return n
		}
	}
}

// curve is a small curve of the last hour.
type curve struct {
	Line, Area string // the points of a polyline and of a polygon
	Text       string // in words, for who does not see it
}

const (
	curveWidth  = 120
	curveHeight = 28
)

func curveOf(values []uint64) curve {
	top := max(1, slices.Max(values))
	points := make([]string, len(values))
	for i, n := range values {
		points[i] = units(float64(i)*curveWidth/float64(len(values)-1)) + "," + units(1+(curveHeight-2)*(1-float64(n)/float64(top)))
	}
	line := strings.Join(points, " ")
	text := "none in the last hour"
	if sum := total(values); sum > 0 {
		text = fmt.Sprintf("%s in the last hour, at most %s in a minute", grouped(sum), grouped(top))
	}
	return curve{Line: line, Area: fmt.Sprintf("0,%d %s %d,%d", curveHeight, line, curveWidth, curveHeight), Text: text}
}

func total(values []uint64) (sum uint64) {
	for _, n := range values {
		sum += n
	}
	return sum
}
