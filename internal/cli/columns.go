package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// column is what rows show of a record. A column without text in any row is left out, but for the
// first.
type column struct {
	title string
	text  func(admin.Record) string
	// cut returns the text of a record in a width, or in the least width in which it says something;
	// nil if it must not be cut.
	cut func(r admin.Record, width int) string
}

// listedDigits are how many digits of a key a list has that is not --wide.
const listedDigits = 16

var (
	idColumn    = column{title: "DELIVERY ID", text: func(r admin.Record) string { return r.DeliveryID }}
	partsColumn = column{title: "PARTS", text: partsOf}
	routeColumn = column{title: "ROUTE", text: routeOf, cut: cutRoute}
	keyColumn   = column{title: "KEY", text: func(r admin.Record) string { return r.Key }}
	storeColumn = column{title: "STORE", text: func(r admin.Record) string { return r.Store }}

	// In 80 columns, with an ID of 36 and a short path.
	narrowColumns = []column{
		idColumn, partsColumn, routeColumn, {title: "STATE", text: stateAndReason, cut: cutReason},
		{title: "KEY", text: func(r admin.Record) string { return r.Key[:min(len(r.Key), listedDigits)] }},
	}
	// changeColumns are for a question about keys: they are named in full.
	changeColumns = []column{
		idColumn, partsColumn, routeColumn, {title: "STATE", text: stateAndReason}, keyColumn,
	}
	wideColumns = []column{
		idColumn, partsColumn, {title: "ROUTE", text: routeOf}, {title: "STATE", text: stateOf}, {title: "REASON", text: reasonOf},
		{title: "PROVIDER", text: func(r admin.Record) string { return r.Provider }},
		{title: "ATTEMPT", text: func(r admin.Record) string { return number(r.Attempt) }},
		{title: "STATUS", text: func(r admin.Record) string { return number(r.Status) }},
		{title: "CLAIMED", text: func(r admin.Record) string { return moment(r.Claimed) }},
		{title: "ENDED", text: func(r admin.Record) string { return moment(r.Ended) }},
		{title: "LEASE UNTIL", text: func(r admin.Record) string { return moment(r.LeaseUntil) }},
		{title: "EXPIRES", text: func(r admin.Record) string { return moment(r.Expires) }},
		{title: "EXECUTION ID", text: func(r admin.Record) string { return r.ExecutionID }},
		{title: "PARENT ID", text: func(r admin.Record) string { return r.ParentID }},
		keyColumn, storeColumn,
	}
)

func stateOf(r admin.Record) string {
	if r.Observed {
		return r.State + " (observed)"
	}
	return r.State
}

func reasonOf(r admin.Record) string { return cmp.Or(r.Unreadable, r.Reason) }

func partsOf(r admin.Record) string { return strings.Join(r.Parts, ", ") }

func routeOf(r admin.Record) string { return strings.TrimSpace(r.Method + " " + r.Host + r.Path) }

func stateAndReason(r admin.Record) string {
	if reason := reasonOf(r); reason != "" {
		return stateOf(r) + ": " + printable(reason)
	}
	return stateOf(r)
}

// cutReason cuts the end of the reason, and keeps the state.
func cutReason(r admin.Record, width int) string {
	text, state := []rune(stateAndReason(r)), utf8.RuneCountInString(stateOf(r))
	if width = max(width, state+1); len(text) <= width {
		return string(text)
	}
	return string(text[:width-1]) + "…"
}

// cutRoute cuts the beginning of host and path, and keeps the method and a piece of the path.
func cutRoute(r admin.Record, width int) string {
	const piece = 7
	method, where := []rune(r.Method+" …"), []rune(printable(r.Host+r.Path))
	if len(where) <= piece || len(r.Method)+1+len(where) <= width {
		return printable(routeOf(r))
	}
	return string(method) + string(where[len(where)-max(piece, width-len(method)):])
}

// rows prints records in columns. Those of later pages of a list go on in the same ones.
func (t *table) rows(records []admin.Record, pages bool) {
	columns := t.columns
	if !pages {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool {
			return c.title != idColumn.title && !slices.ContainsFunc(records, func(r admin.Record) bool { return c.text(r) != "" })
		})
	}
	first := t.widths == nil
	if first {
		t.widths = make([]int, len(columns))
	}
	least := make([]int, len(columns))
	for i, c := range columns {
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.title))
		least[i] = t.widths[i]
		for _, r := range records {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(orDash(c.text(r))))
			if c.cut != nil {
				least[i] = max(least[i], utf8.RuneCountInString(c.cut(r, 0)))
			}
		}
	}
	t.fit(columns, least)
	if first {
		t.line(columns, func(c column, _ int) string { return c.title })
	}
	for _, r := range records {
		t.line(columns, func(c column, width int) string {
			if text := orDash(c.text(r)); c.cut == nil || utf8.RuneCountInString(text) <= width {
				return text
			}
			return c.cut(r, width)
		})
	}
}

// fit makes columns narrower, the first one first, until a row has the width of the table.
func (t *table) fit(columns []column, least []int) {
	if t.width == 0 {
		return
	}
	over := 2*(len(columns)-1) - t.width
	for _, width := range t.widths {
		over += width
	}
	for i, c := range columns {
		if c.cut != nil && over > 0 {
			less := min(over, t.widths[i]-least[i])
			t.widths[i] -= less
			over -= less
		}
	}
}

func (t *table) line(columns []column, text func(c column, width int) string) {
	var line strings.Builder
	for i, c := range columns {
		fmt.Fprintf(&line, "%-*s  ", t.widths[i], text(c, t.widths[i])) // it counts runes
	}
	fmt.Fprintln(t.out, strings.TrimRight(line.String(), " "))
}
