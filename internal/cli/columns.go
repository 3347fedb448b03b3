package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// column is what rows show of a record. A column without text in any row is left out, except for the
// delivery ID.
type column struct {
	title string
	text  func(admin.Record) string
	// cut returns the text of a record cut to a width, or to the least width that still means
	// something; nil if it must not be cut.
	cut func(r admin.Record, width int) string
}

// keyDigits returns the first 16 digits of the key that differ between the keys of one delivery ID.
func keyDigits(key string) string {
	const from, to = 16, 32 // those before are the same for all keys of the ID
	if len(key) < to {
		return key
	}
	return key[from:to]
}

// listedDigits matches what keyDigits returns.
var listedDigits = regexp.MustCompile("^[0-9a-f]{16}$")

var (
	ageColumn   = column{title: "AGE", text: func(r admin.Record) string { return age(r.Claimed) }}
	digitColumn = column{title: "KEY", text: func(r admin.Record) string { return keyDigits(r.Key) }}
	ofProvider  = column{title: "PROVIDER", text: func(r admin.Record) string { return r.Provider }}
	idColumn    = column{title: "DELIVERY ID", text: func(r admin.Record) string { return r.DeliveryID }}
	partsColumn = column{title: "PARTS", text: partsOf}
	scopeColumn = column{title: "SCOPE", text: scopeOf, cut: cutScope}
	routeColumn = column{title: "ROUTE", text: routeOf, cut: cutRoute}
	keyColumn   = column{title: "KEY", text: func(r admin.Record) string { return r.Key }}
	storeColumn = column{title: "STORE", text: func(r admin.Record) string { return r.Store }}

	narrowColumns = []column{
		ageColumn, idColumn, ofProvider, partsColumn, scopeColumn, routeColumn, {title: "STATE", text: stateAndReason, cut: cutReason}, digitColumn,
	}
	// changeColumns show keys in full, for the question before a change.
	changeColumns = []column{
		ageColumn, idColumn, ofProvider, partsColumn, scopeColumn, routeColumn, {title: "STATE", text: stateAndReason}, keyColumn,
	}
	wideColumns = []column{
		idColumn, partsColumn, scopeColumn, {title: "ROUTE", text: routeOf}, {title: "STATE", text: stateOf}, {title: "REASON", text: reasonOf},
		ofProvider,
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

func scopeOf(r admin.Record) string { return strings.Join(r.Scope, ", ") }

func routeOf(r admin.Record) string { return strings.TrimSpace(r.Method + " " + r.Host + r.Path) }

// age returns how long ago a time was, in its largest unit.
func age(at time.Time) string {
	switch ago := time.Since(at); {
	case at.IsZero():
		return ""
	case ago < time.Minute:
		return fmt.Sprintf("%ds", ago/time.Second)
	case ago < time.Hour:
		return fmt.Sprintf("%dm", ago/time.Minute)
	case ago < 48*time.Hour:
		return fmt.Sprintf("%dh", ago/time.Hour)
	default:
		return fmt.Sprintf("%dd", ago/(24*time.Hour))
	}
}

func stateAndStatus(r admin.Record) string {
	return strings.TrimSuffix(stateOf(r)+" "+number(r.Status), " ")
}

func stateAndReason(r admin.Record) string {
	if reason := reasonOf(r); reason != "" && (r.Status == 0 || !strings.HasSuffix(reason, " "+number(r.Status))) {
		return stateAndStatus(r) + ": " + printable(reason)
	}
	return stateAndStatus(r)
}

var endsWithStatus = regexp.MustCompile(` [1-5]\d\d$`)

// cutReason cuts the reason and keeps the state. Of a reason that ends with a status it keeps the end.
func cutReason(r admin.Record, width int) string {
	text, state := []rune(stateAndReason(r)), utf8.RuneCountInString(stateAndStatus(r))
	if width = max(width, state+1); len(text) <= width {
		return string(text)
	}
	const end = 5 // ": …" and at least the two last digits
	if endsWithStatus.MatchString(string(text)) && width >= state+end {
		return string(text[:state]) + ": …" + string(text[len(text)-(width-state-3):])
	}
	return string(text[:width-1]) + "…"
}

// cutScope keeps the values, and a piece of these.
func cutScope(r admin.Record, width int) string {
	const piece = 16
	if text := printable(scopeOf(r)); utf8.RuneCountInString(text) <= width {
		return text
	}
	values := make([]string, len(r.Scope))
	for i, text := range r.Scope {
		_, values[i], _ = strings.Cut(text, "=")
	}
	text := []rune(printable(strings.Join(values, ", ")))
	if width = max(width, piece); len(text) <= width {
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
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return !t.needs(c, records) })
	}
	least := t.measure(columns, records)
	if last := len(columns) - 1; !pages && t.over(least) > 0 && columns[last].title == digitColumn.title && distinct(records) {
		columns, least, t.widths = columns[:last], least[:last], t.widths[:last] // the ID is enough
	}
	t.fit(columns, least)
	if !t.titled {
		t.titled = true
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

// needs reports whether a list of these records needs a column.
func (t *table) needs(c column, records []admin.Record) bool {
	switch {
	case c.title == idColumn.title:
		return true
	case c.title == ofProvider.title && t.width > 0: // only if it tells two rows apart
		providers := make(map[string]string)
		return slices.ContainsFunc(records, func(r admin.Record) bool {
			name := fmt.Sprint(r.DeliveryID, r.Parts, r.Scope, routeOf(r))
			other, known := providers[name]
			providers[name] = r.Provider
			return known && other != r.Provider
		})
	default:
		return slices.ContainsFunc(records, func(r admin.Record) bool { return c.text(r) != "" })
	}
}

// distinct reports whether each record has a delivery ID of its own.
func distinct(records []admin.Record) bool {
	ids := make(map[string]bool)
	for _, r := range records {
		ids[r.DeliveryID] = true
	}
	return len(ids) == len(records) && !ids[""]
}

// measure widens the columns for the records, and returns their least widths.
func (t *table) measure(columns []column, records []admin.Record) []int {
	if t.widths == nil {
		t.widths = make([]int, len(columns))
	}
	least := make([]int, len(columns))
	for i, c := range columns {
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.title))
		least[i] = t.widths[i]
		for _, r := range records {
			width := utf8.RuneCountInString(orDash(c.text(r)))
			t.widths[i] = max(t.widths[i], width)
			if c.cut != nil {
				width = utf8.RuneCountInString(c.cut(r, 0))
			}
			least[i] = max(least[i], width)
		}
	}
	return least
}

// over returns by how much a row with these columns is wider than the table.
func (t *table) over(widths []int) int {
	if t.width == 0 {
		return 0
	}
	over := 2*(len(widths)-1) - t.width
	for _, width := range widths {
		over += width
	}
	return over
}

// fit makes columns narrower, the first one first, until a row has the width of the table.
func (t *table) fit(columns []column, least []int) {
	over := t.over(t.widths)
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
		fmt.Fprintf(&line, "%-*s  ", t.widths[i], text(c, t.widths[i])) // Printf counts runes
	}
	fmt.Fprintln(t.out, strings.TrimRight(line.String(), " "))
}
