package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// printer prints records, for people or programs.
type printer interface {
	// rows prints records in columns. pages reports whether more of the same list follow.
	rows(records []admin.Record, pages bool)
	// whole prints all that is known of a record.
	whole(admin.Record)
	// changed prints what was done to a key, and in which store if withStore is set.
	changed(done string, before admin.Record, withStore bool)
	// done flushes the output.
	done()
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
func (j jsonLines) done()                {}

func (j jsonLines) rows(records []admin.Record, _ bool) {
	for _, r := range records {
		j.print(r)
	}
}

func (j jsonLines) changed(done string, before admin.Record, withStore bool) {
	store := ""
	if withStore {
		store = before.Store
	}
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
	fields  *tabwriter.Writer // of one record
	columns []column
	width   int   // the maximum of a row, 0 for none
	widths  []int // of the columns so far
	titled  bool  // the titles are printed
	wholes  int
}

func newTable(out io.Writer) *table {
	return &table{out: out, fields: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), columns: narrowColumns, width: 80}
}

func (t *table) done() {
	_ = t.fields.Flush() // the output keeps the error
}

func (t *table) whole(r admin.Record) {
	if t.wholes++; t.wholes > 1 {
		fmt.Fprintln(t.out)
	}
	for _, line := range []struct{ label, text string }{
		{"key", r.Key},
		{"state", stateOf(r)},
		{"reason", reasonOf(r)},
		{"provider", r.Provider},
		{"delivery ID", r.DeliveryID},
		{"parts", partsOf(r)},
		{"scope", scopeOf(r)},
		{"route", routeOf(r)},
		{"execution ID", r.ExecutionID},
		{"parent ID", r.ParentID},
		{"attempt", number(r.Attempt)},
		{"status", number(r.Status)},
		{"claimed", moment(r.Claimed)},
		{"ended", moment(r.Ended)},
		{"lease until", moment(r.LeaseUntil)},
		{"expires", moment(r.Expires)},
		{"store", r.Store},
	} {
		if line.text != "" {
			fmt.Fprintf(t.fields, "%s\t%s\n", line.label, printable(line.text))
		}
	}
	t.response(r.Response)
	t.done()
}

func (t *table) response(r *admin.Response) {
	if r == nil {
		return
	}
	fmt.Fprintf(t.fields, "response\t%d\n", r.Status)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, value := range r.Header[name] {
			fmt.Fprintf(t.fields, "\t%s\n", printable(name+": "+value))
		}
	}
	t.done()
	switch {
	case r.Omitted:
		fmt.Fprintln(t.out, "the body was too large, and is not kept")
	case len(r.Base64) > 0:
		fmt.Fprintf(t.out, "the body is %d bytes that are not text; --json has them in base64\n", len(r.Base64))
	case r.Body != "":
		fmt.Fprintf(t.out, "\n%s\n", printableLines(r.Body))
	}
}

func (t *table) changed(done string, before admin.Record, withStore bool) {
	where := ""
	if withStore {
		where = " in " + printable(before.Store)
	}
	fmt.Fprintf(t.out, "%s %s %s (was %s%s)\n", done, printable(before.Key), orDash(before.DeliveryID), printable(before.State), where)
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
