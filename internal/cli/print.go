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

// printer prints records, for people or for programs.
type printer interface {
	// row prints a record as one of many.
	row(admin.Record)
	// whole prints all that is known of a record.
	whole(admin.Record)
	// changed says what was done to a key, and in which store if that is asked for.
	changed(done string, before admin.Record, withStore bool)
	// done prints what is left.
	done()
}

func newPrinter(cmd *cobra.Command) printer {
	if json, _ := cmd.Flags().GetBool("json"); json {
		return jsonLines{cmd.OutOrStdout()}
	}
	return newTable(cmd.OutOrStdout())
}

// jsonLines prints one JSON object a line.
type jsonLines struct{ out io.Writer }

func (j jsonLines) row(r admin.Record)   { j.print(r) }
func (j jsonLines) whole(r admin.Record) { j.print(r) }
func (j jsonLines) done()                {}

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
	encoder.SetEscapeHTML(false) // it is no HTML, and IDs are to be read as they are
	if err := encoder.Encode(value); err != nil {
		panic("cli: a record that JSON cannot hold: " + err.Error()) // it came as JSON
	}
	fmt.Fprintln(j.out, escaped(strings.TrimSuffix(line.String(), "\n")))
}

// escaped writes characters that a terminal could obey, and that JSON lets through, as
// JSON's escapes: they stand in texts only.
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

// table prints records in columns.
type table struct {
	out     io.Writer
	columns *tabwriter.Writer
	rows    int
	stores  bool // each row says its store
	wholes  int
}

func newTable(out io.Writer) *table {
	return &table{out: out, columns: tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
}

func (t *table) row(r admin.Record) {
	if t.rows == 0 {
		t.line("STATE", "PROVIDER", "ATTEMPT", "STATUS", "CLAIMED", "KEY", "STORE", "DELIVERY ID") // the ID last: some are long
	}
	t.rows++
	t.line(printable(r.State), orDash(r.Provider), orDash(number(r.Attempt)), orDash(number(r.Status)),
		orDash(moment(r.Claimed)), printable(r.Key), printable(r.Store), orDash(r.DeliveryID))
}

// line prints the columns of a row.
func (t *table) line(columns ...string) {
	const ofStore = 6
	if !t.stores {
		columns = slices.Delete(columns, ofStore, ofStore+1)
	}
	fmt.Fprintln(t.columns, strings.Join(columns, "\t"))
}

func (t *table) done() {
	_ = t.columns.Flush() // the output keeps the error
}

func (t *table) whole(r admin.Record) {
	if t.wholes++; t.wholes > 1 {
		fmt.Fprintln(t.out)
	}
	state := r.State
	if r.Observed {
		state += " (observed)"
	}
	for _, line := range []struct{ label, text string }{
		{"key", r.Key},
		{"state", state},
		{"unreadable", r.Unreadable},
		{"provider", r.Provider},
		{"delivery ID", r.DeliveryID},
		{"parts", strings.Join(r.Parts, ", ")},
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
			fmt.Fprintf(t.columns, "%s\t%s\n", line.label, printable(line.text))
		}
	}
	t.response(r.Response)
	t.done()
}

func (t *table) response(r *admin.Response) {
	if r == nil {
		return
	}
	fmt.Fprintf(t.columns, "response\t%d\n", r.Status)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, value := range r.Header[name] {
			fmt.Fprintf(t.columns, "\t%s\n", printable(name+": "+value))
		}
	}
	t.done()
	switch {
	case r.Omitted:
		fmt.Fprintln(t.out, "the body was too large, and is not kept")
	case len(r.Base64) > 0:
		fmt.Fprintf(t.out, "the body is %d bytes that are no text; --json has them in base64\n", len(r.Base64))
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

// printable returns a text that came from outside, quoted if there is anything in it
// that a terminal could obey.
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
