package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// cell shows a figure: the median of the rounds and, where there was more than one and the
// column asks for it, the least and the greatest.
func (c Column) cell(row Row) string {
	s, known := row.Cells[c.Key]
	if !known || s.Rounds == 0 {
		return ""
	}
	if c.Spread && s.Rounds > 1 {
		return fmt.Sprintf("%s (%s to %s)", c.number(s.Median), c.number(s.Min), c.number(s.Max))
	}
	return c.number(s.Median)
}

func (c Column) number(v float64) string {
	if v == 0 { // and never "-0"
		v = 0
	}
	text := fmt.Sprintf("%.*f", c.Digits, v)
	if c.Digits > 0 {
		return text
	}
	// 1000000 is harder to read than 1,000,000.
	sign := strings.TrimRight(text, "0123456789")
	text = text[len(sign):]
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return sign + text
}

// used are the columns that at least one row has a figure in.
func (g Group) used() (columns []Column) {
	for _, c := range g.Columns {
		for _, row := range g.Rows {
			if c.cell(row) != "" {
				columns = append(columns, c)
				break
			}
		}
	}
	return columns
}

// only returns the table with these rows and columns, and without the spread of the rounds. Names
// that the table does not have are an error.
func (g Group) only(names []string) (Group, error) {
	columns, rows := g.Columns, g.Rows
	g.Columns, g.Rows = nil, nil
	missing := slices.Clone(names)
	has := func(name string) bool {
		missing = slices.DeleteFunc(missing, func(other string) bool { return other == name })
		return slices.Contains(names, name)
	}
	for _, c := range columns {
		if c.Spread = false; has(c.Key) {
			g.Columns = append(g.Columns, c)
		}
	}
	for _, row := range rows {
		if has(row.Name) {
			g.Rows = append(g.Rows, row)
		}
	}
	if len(missing) > 0 {
		return g, fmt.Errorf("%s: not measured: %s", g.Name, strings.Join(missing, " "))
	}
	return g, nil
}

// cells are the lines of the table, the first one its head.
func (g Group) cells() [][]string {
	columns := g.used()
	head := []string{"case"}
	for _, c := range columns {
		head = append(head, c.Title)
	}
	lines := [][]string{head}
	for _, row := range g.Rows {
		line := []string{row.What}
		for _, c := range columns {
			line = append(line, c.cell(row))
		}
		lines = append(lines, line)
	}
	return lines
}

// WriteText writes all tables for a terminal.
func (r *Result) WriteText(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, g := range r.Groups {
		fmt.Fprintf(w, "\n%s\n", g.Title)
		for _, line := range g.cells() {
			fmt.Fprintln(w, "  "+strings.Join(line, "\t"))
		}
	}
	fmt.Fprintln(w)
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	return w.Flush()
}

// Markdown is the table in Markdown.
func (g Group) Markdown() string {
	var b strings.Builder
	for i, line := range g.cells() {
		b.WriteString("|")
		for _, cell := range line {
			b.WriteString(" " + strings.ReplaceAll(cell, "|", `\|`) + " |")
		}
		b.WriteString("\n")
		if i == 0 {
			b.WriteString("|---|" + strings.Repeat("---:|", len(line)-1) + "\n")
		}
	}
	return b.String()
}

// Single is a figure that was taken once.
func Single(v float64) stats.Spread { return stats.Of(v) }
