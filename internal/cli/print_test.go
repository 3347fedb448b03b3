package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// What may stand in an ID, a header field or a body of others, and what is printed.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":              "",
		"evt_1":         "evt_1",
		"uid:Kanal é 1": "uid:Kanal é 1",
		"<b>&amp;</b>":  "<b>&amp;</b>",
		"\x1b[2J":       `"\x1b[2J"`,
		"a\nb":          `"a\nb"`,
		"a\tb":          `"a\tb"`,
		"\u009b1m":      `"\u009b1m"`,
		"\u202eabc":     `"\u202eabc"`,
		"\xff":          `"\xff"`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is printed as %s, want %s", text, got, want)
		}
	}
	if got, want := printableLines("a\n\tb \x1b\nc\n"), "a\n\t\"b \\x1b\"\nc"; got != want {
		t.Errorf("lines are printed as %q, want %q", got, want)
	}
	if got, want := escaped("{\"a\":\"é\u009b\U000E0001\"}"), `{"a":"é\u009b\udb40\udc01"}`; got != want {
		t.Errorf("JSON is printed as %s, want %s", got, want)
	}
}

var someShown = []admin.Record{
	{
		Key: strings.Repeat("a", 64), Store: "file store", State: "complete", Provider: "github", DeliveryID: "1", Parts: []string{"mail", "2"},
		ExecutionID: "e1", Attempt: 2, Status: 201, Claimed: time.Unix(0, 0), Response: &admin.Response{
			Status: 201, Header: map[string][]string{"Content-Type": {"text/plain"}, "A": {"1", "2"}}, Body: "line 1\nline 2",
		},
	},
	{Key: strings.Repeat("b", 64), State: "unreadable", Unreadable: "it is damaged"},
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out)
	for _, r := range someShown {
		table.row(r)
	}
	table.done()
	want := "" +
		"STATE       PROVIDER  ATTEMPT  STATUS  CLAIMED               " + "KEY" + strings.Repeat(" ", 63) + "DELIVERY ID\n" +
		"complete    github    2        201     1970-01-01T00:00:00Z  " + strings.Repeat("a", 64) + "  1\n" +
		"unreadable  -         -        -       -                     " + strings.Repeat("b", 64) + "  -\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestWhole(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out)
	for _, r := range someShown {
		table.whole(r)
	}
	want := "" +
		"key           " + strings.Repeat("a", 64) + "\n" +
		"state         complete\n" +
		"provider      github\n" +
		"delivery ID   1\n" +
		"parts         mail, 2\n" +
		"execution ID  e1\n" +
		"attempt       2\n" +
		"status        201\n" +
		"claimed       1970-01-01T00:00:00Z\n" +
		"store         file store\n" +
		"response      201\n" +
		"              A: 1\n" +
		"              A: 2\n" +
		"              Content-Type: text/plain\n" +
		"\nline 1\nline 2\n" +
		"\n" +
		"key         " + strings.Repeat("b", 64) + "\n" +
		"state       unreadable\n" +
		"unreadable  it is damaged\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// More than one key are changed only after a yes.
func TestConfirm(t *testing.T) {
	for said, want := range map[string]bool{
		"y\n": true, "yes": true, "Y\r\n": true, "": false, "\n": false, "n\n": false, "yeah\n": false, " \ny\n": false,
	} {
		var asked bytes.Buffer
		c := &cobra.Command{Use: "forget <key>"}
		c.SetIn(strings.NewReader(said))
		c.SetErr(&asked)
		err := confirm(c, someShown)
		if (err == nil) != want {
			t.Errorf("%q: %v", said, err)
		}
		if err != nil && exitStatus(err) != exitUsage {
			t.Errorf("%q ends with %+v", said, err)
		}
		if !strings.Contains(asked.String(), "forget these 2 keys? [y/N] ") || !strings.Contains(asked.String(), someShown[1].Key) {
			t.Errorf("it asks %q", asked.String())
		}
	}
}

// Of several errors the one that matters most decides how the command ends.
func TestExitStatus(t *testing.T) {
	notFound, noAnswer := errors.New("not found"), exitError{exitNoAnswer, errors.New("no answer")}
	for _, c := range []struct {
		err  error
		want int
	}{
		{notFound, exitFailed},
		{fmt.Errorf("one: %w", noAnswer), exitNoAnswer},
		{errors.Join(notFound, notFound), exitFailed},
		{errors.Join(noAnswer, notFound), exitNoAnswer},
		{errors.Join(errors.Join(notFound, noAnswer), wrongUsage("wrong")), exitNoAnswer},
		{exitError{exitFailed, noAnswer}, exitFailed},
	} {
		if got := exitStatus(c.err); got != c.want {
			t.Errorf("%v ends with %d, want %d", c.err, got, c.want)
		}
	}
}
