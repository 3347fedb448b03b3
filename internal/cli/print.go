package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// printer prints records, for people or programs.
type printer interface {
	// rows prints records in columns. pages reports whether more of the same list follow.
	rows(records []admin.Record, pages bool)
	// whole prints all that is known of a record.
	whole(admin.Record)
	// changed prints what was done to a key, and in which store, "" if only one has it.
	changed(done string, before admin.Record, store string)
}

func newPrinter(cmd *cobra.Command) printer {
	if json, _ := cmd.Flags().GetBool("json"); json {
		return jsonLines{cmd.OutOrStdout()}
	}
	t := newTable(cmd.OutOrStdout())
	if wide, _ := cmd.Flags().GetBool("wide"); wide {
		t.columns, t.width = wideColumns, 0
	}
	return t
}

// jsonLines prints one JSON object a line.
type jsonLines struct{ out io.Writer }

func (j jsonLines) whole(r admin.Record) { j.print(r) }

func (j jsonLines) rows(records []admin.Record, _ bool) {
	for _, r := range records {
		j.print(r)
	}
}

func (j jsonLines) changed(done string, before admin.Record, store string) {
	j.print(struct {
		Result     string `json:"result"`
		Key        string `json:"key"`
		Provider   string `json:"provider,omitempty"`
		DeliveryID string `json:"delivery_id,omitempty"`
		StateWas   string `json:"state_was"`
		Store      string `json:"store,omitempty"`
	}{done, before.Key, before.Provider, before.DeliveryID, before.State, store})
}

func (j jsonLines) print(value any) {
	var line strings.Builder
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false) // IDs stay readable
	if err := encoder.Encode(value); err != nil {
		panic("cli: a record that JSON cannot hold: " + err.Error()) // it came as JSON
	}
	fmt.Fprintln(j.out, escaped(strings.TrimSuffix(line.String(), "\n")))
}

// escaped escapes the characters of a JSON text that control a terminal. JSON allows them in strings only.
func escaped(text string) string {
	var out strings.Builder
	for _, r := range text {
		const del = 0x7f
		if r < del || unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// table prints records for people: many in columns, or all that is known of each.
type table struct {
	out     io.Writer
	columns []column
	width   int   // the maximum of a row, 0 for none
	widths  []int // of the columns so far
	begun   bool  // the titles, or a record, are printed
}

func newTable(out io.Writer) *table {
	return &table{out: out, columns: narrowColumns, width: 80}
}

func (t *table) whole(r admin.Record) {
	if t.begun {
		fmt.Fprintln(t.out)
	}
	t.begun = true
	var fields []field
	for _, c := range wholeColumns {
		label := strings.Replace(strings.ToLower(c.title), " id", " ID", 1)
		fields = append(fields, field{label, printable(c.text(r))})
	}
	if r.Response != nil {
		fields = append(fields, field{"response", number(r.Response.Status)})
		for _, name := range slices.Sorted(maps.Keys(r.Response.Header)) {
			for _, value := range r.Response.Header[name] {
				fields = append(fields, field{"", printable(name + ": " + value)})
			}
		}
	}
	printFields(t.out, fields)
	switch response := r.Response; {
	case response == nil:
	case response.Omitted:
		fmt.Fprintln(t.out, "the body was too large, and is not kept")
	case len(response.Base64) > 0:
		fmt.Fprintf(t.out, "the body is %d bytes that are not text; --json has them in base64\n", len(response.Base64))
	case response.Body != "":
		fmt.Fprintf(t.out, "\n%s\n", printableLines(response.Body))
	}
}

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
	ageColumn       = column{title: "AGE", text: func(r admin.Record) string { return age(r.Claimed) }}
	digitColumn     = column{title: "KEY", text: func(r admin.Record) string { return keyDigits(r.Key) }}
	keyColumn       = column{title: "KEY", text: func(r admin.Record) string { return r.Key }}
	outcomeColumn   = column{title: "STATE", text: stateAndReason, cut: cutReason}
	stateColumn     = column{title: "STATE", text: stateOf}
	reasonColumn    = column{title: "REASON", text: reasonOf}
	ofProvider      = column{title: "PROVIDER", text: func(r admin.Record) string { return r.Provider }}
	idColumn        = column{title: "DELIVERY ID", text: func(r admin.Record) string { return r.DeliveryID }}
	partsColumn     = column{title: "PARTS", text: func(r admin.Record) string { return strings.Join(r.Parts, ", ") }}
	scopeColumn     = column{title: "SCOPE", text: scopeOf, cut: cutScope}
	routeColumn     = column{title: "ROUTE", text: routeOf, cut: cutRoute}
	attemptColumn   = column{title: "ATTEMPT", text: func(r admin.Record) string { return number(r.Attempt) }}
	statusColumn    = column{title: "STATUS", text: func(r admin.Record) string { return number(r.Status) }}
	claimedColumn   = column{title: "CLAIMED", text: func(r admin.Record) string { return moment(r.Claimed) }}
	endedColumn     = column{title: "ENDED", text: func(r admin.Record) string { return moment(r.Ended) }}
	leaseColumn     = column{title: "LEASE UNTIL", text: func(r admin.Record) string { return moment(r.LeaseUntil) }}
	expiresColumn   = column{title: "EXPIRES", text: func(r admin.Record) string { return moment(r.Expires) }}
	executionColumn = column{title: "EXECUTION ID", text: func(r admin.Record) string { return r.ExecutionID }}
	parentColumn    = column{title: "PARENT ID", text: func(r admin.Record) string { return r.ParentID }}
	storeColumn     = column{title: "STORE", text: func(r admin.Record) string { return r.Store }}

	narrowColumns = []column{ageColumn, idColumn, partsColumn, scopeColumn, routeColumn, outcomeColumn, digitColumn}
	// changeColumns show keys in full, for the question before a change.
	changeColumns = []column{ageColumn, idColumn, ofProvider, partsColumn, scopeColumn, routeColumn, outcomeColumn, keyColumn}
	wideColumns   = []column{
		idColumn, partsColumn, scopeColumn, routeColumn, stateColumn, reasonColumn, ofProvider, attemptColumn, statusColumn,
		claimedColumn, endedColumn, leaseColumn, expiresColumn, executionColumn, parentColumn, keyColumn, storeColumn,
	}
	wholeColumns = []column{
		keyColumn, stateColumn, reasonColumn, ofProvider, idColumn, partsColumn, scopeColumn, routeColumn, executionColumn, parentColumn,
		attemptColumn, statusColumn, claimedColumn, endedColumn, leaseColumn, expiresColumn, storeColumn,
	}
)

func stateOf(r admin.Record) string {
	if r.Observed {
		return r.State + " (observed)"
	}
	return r.State
}

func reasonOf(r admin.Record) string { return cmp.Or(r.Unreadable, r.Reason) }

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
	const end = 5 // ": …" and at least the two last digits
	if endsWithStatus.MatchString(string(text)) && width >= state+end && len(text) > width {
		return string(text[:state]) + ": …" + string(text[len(text)-(width-state-3):])
	}
	return cutEnd(text, max(width, state+1))
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
	return cutEnd([]rune(printable(strings.Join(values, ", "))), max(width, piece))
}

func cutEnd(text []rune, width int) string {
	if len(text) <= width {
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
	least := t.measure(columns, records)
	if last := len(columns) - 1; !pages && t.over(least) > 0 && columns[last].title == digitColumn.title && distinct(records) {
		columns, least, t.widths = columns[:last], least[:last], t.widths[:last] // the ID is enough
	}
	t.fit(columns, least)
	if !t.begun {
		t.begun = true
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

func (t *table) changed(done string, before admin.Record, store string) {
	if store != "" {
		store = " in " + printable(store)
	}
	fmt.Fprintf(t.out, "%s %s %s (was %s%s)\n", done, printable(before.Key), orDash(before.DeliveryID), printable(before.State), store)
}

// field is a label and its text.
type field struct{ label, text string }

// printFields prints the fields that have a text, one a line.
func printFields(out io.Writer, fields []field) {
	lines := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range fields {
		if f.text != "" {
			fmt.Fprintf(lines, "%s\t%s\n", f.label, f.text)
		}
	}
	_ = lines.Flush() // the output keeps the error
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func moment(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

func orDash(text string) string { return cmp.Or(printable(text), "-") }

// printable returns a text, quoted if it contains anything that controls a terminal.
func printable(text string) string {
	for _, r := range text {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return strconv.Quote(text)
		}
	}
	return text
}

// printableLines is printable for each line of a text.
func printableLines(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		indented := strings.TrimLeft(line, "\t")
		lines[i] = line[:len(line)-len(indented)] + printable(indented)
	}
	return strings.Join(lines, "\n")
}
