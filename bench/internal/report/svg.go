package report

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// The pictures are written by hand: a plotting library draws on white, or with one colour
// of text, and a page is read on dark and on light ground.

// Picture is a file of its own.
type Picture struct {
	Name string
	// Alt says in words what the picture shows.
	Alt  string
	Text string
}

// Pictures are those of all that was measured: bars for groups with ratios, lines for the
// plots.
func (r *Result) Pictures() (pictures []Picture) {
	for _, g := range r.Groups {
		if g.Name == "requests" {
			if text := bars(g, "ratio"); text != "" {
				pictures = append(pictures, Picture{"ratios", "Requests per second against plain Caddy, by case", text})
			}
		}
	}
	for _, p := range r.Plots {
		pictures = append(pictures, Picture{p.Name, p.Title, lines(p)})
	}
	return pictures
}

// The colours of the lines are readable on both grounds; text and axes change with it.
var colours = []string{"#2f81f7", "#d9822b", "#2da44e", "#bf3989", "#8a63d2", "#c93c37", "#1b9aaa", "#7d8590"}

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.small { font-size: 11px }
.axis { stroke: #59636e; stroke-width: 1; fill: none }
.grid { stroke: #59636e; stroke-width: 1; opacity: .2 }
.line { stroke-width: 2; fill: none }
.spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.axis, .grid { stroke: #9198a1 }
.spread { stroke: #e6edf3 }
}
</style>
`

// escape makes a text safe within an SVG.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}

func open(b *strings.Builder, title string, width, height float64) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img">`+"\n<title>%s</title>\n%s", width, height, width, height, escape(title), style)
	fmt.Fprintf(b, `<text class="title" x="10" y="20">%s</text>`+"\n", escape(title))
}

// bars draws one bar for each row that has the figure, with its spread.
func bars(g Group, key string) string {
	const left, top, step, wide = 290.0, 40.0, 22.0, 400.0
	var rows []Row
	most := 1.0
	for _, row := range g.Rows {
		if s, known := row.Cells[key]; known && s.Rounds > 0 {
			rows = append(rows, row)
			most = max(most, s.Max)
		}
	}
	if len(rows) == 0 {
		return ""
	}
	ticks := tickStep(most)
	most = math.Ceil(most/ticks) * ticks
	x := func(v float64) float64 { return left + wide*v/most }
	bottom := top + step*float64(len(rows))
	var b strings.Builder
	open(&b, "Requests per second, plain Caddy = 1", left+wide+90, bottom+40)
	for v := 0.0; v <= most+ticks/2; v += ticks {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fV%.1f"/><text class="small" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x(v), top-6, bottom, x(v), bottom+16, short(v))
	}
	for i, row := range rows {
		s, y := row.Cells[key], top+step*float64(i)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, left-8, y+12, escape(strings.ReplaceAll(row.What, "`", "")))
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="15" rx="2" fill="%s"/>`, left, y, x(s.Median)-left, colours[0])
		fmt.Fprintf(&b, `<path class="spread" d="M%.1f %.1fH%.1f"/>`, x(s.Min), y+7.5, x(s.Max))
		fmt.Fprintf(&b, `<text class="small" x="%.1f" y="%.1f">%.2f</text>`+"\n", x(s.Max)+6, y+12, s.Median)
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%.1f %.1fV%.1f"/><path class="axis" stroke-dasharray="4 3" d="M%.1f %.1fV%.1f"/>`+"\n</svg>\n", left, top-6, bottom, x(1), top-6, bottom)
	return b.String()
}

// lines draws one line for each series.
func lines(p Plot) string {
	const left, top, wide, high = 70.0, 50.0, 560.0, 260.0
	right, mostX, mostY, leastY := left+wide, 0.0, 0.0, math.Inf(1)
	for _, s := range p.Series {
		for _, point := range s.Points {
			mostX, mostY = max(mostX, point.X), max(mostY, point.Y)
			if point.Y > 0 {
				leastY = min(leastY, point.Y)
			}
		}
	}
	axis := verticalAxis(p.Log, leastY, mostY)
	ticksX := tickStep(mostX)
	x := func(v float64) float64 { return left + wide*v/max(mostX, ticksX) }
	y := func(v float64) float64 { return top + high*(1-axis.at(v)) }
	var b strings.Builder
	legend := top + high + 62
	open(&b, p.Title, right+30, legend+18*float64((len(p.Series)+1)/2))
	for v := 0.0; v <= mostX+ticksX/1000; v += ticksX {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fV%.1f"/><text class="small" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x(v), top, top+high, x(v), top+high+16, short(v))
	}
	for _, v := range axis.ticks {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %.1fH%.1f"/><text class="small" x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", left, y(v), right, left-6, y(v)+4, short(v))
	}
	fmt.Fprintf(&b, `<path class="axis" d="M%.1f %.1fV%.1fH%.1f"/>`+"\n", left, top, top+high, right)
	fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text><text class="small" x="10" y="%.1f">%s</text>`+"\n", left+wide/2, top+high+36, escape(p.X), top-10, escape(p.Y))
	for i, s := range p.Series {
		colour := colours[i%len(colours)]
		var path strings.Builder
		for j, point := range s.Points {
			path.WriteString(map[bool]string{true: "M", false: "L"}[j == 0])
			fmt.Fprintf(&path, "%.1f %.1f", x(point.X), y(point.Y))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, x(point.X), y(point.Y), colour)
		}
		fmt.Fprintf(&b, `<path class="line" stroke="%s" d="%s"/>`, colour, path.String())
		atX, atY := 10+float64(i%2)*(right-10)/2, legend+18*float64(i/2)
		fmt.Fprintf(&b, `<path class="line" stroke="%s" d="M%.1f %.1fh18"/><text x="%.1f" y="%.1f">%s</text>`+"\n", colour, atX, atY-4, atX+24, atY, escape(s.Name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// vertical is an axis: at says where a value lies on it, from 0 to 1.
type vertical struct {
	ticks []float64
	at    func(v float64) float64
}

func verticalAxis(logarithmic bool, least, most float64) vertical {
	if !logarithmic || most <= 0 {
		step := tickStep(most)
		end := max(math.Ceil(most/step)*step, step)
		a := vertical{at: func(v float64) float64 { return v / end }}
		for v := 0.0; v <= end+step/1000; v += step {
			a.ticks = append(a.ticks, v)
		}
		return a
	}
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most))
	if to == from {
		to++
	}
	a := vertical{at: func(v float64) float64 { return max(math.Log10(max(v, 1e-12))-from, 0) / (to - from) }}
	for e := from; e <= to; e++ {
		a.ticks = append(a.ticks, math.Pow(10, e))
	}
	return a
}

// tickStep is a round number of which four to ten reach the value.
func tickStep(most float64) float64 {
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most)))
	for _, step := range []float64{0.1, 0.2, 0.25, 0.5, 1} {
		if most/(power*step) <= 10 {
			return power * step
		}
	}
	return power
}

// short is a number of an axis.
func short(v float64) string {
	text := fmt.Sprintf("%.3g", v)
	if v >= 1000 {
		text = Column{}.number(v)
	}
	return text
}
