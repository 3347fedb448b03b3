package cli

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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

// A table has the ID first, and fits a terminal if the ID, the parts and the state do. What is cut
// says so.
func TestTable(t *testing.T) {
	uuid := "72d3162e-cc78-11e3-81ab-4c9367dc0958"
	held := admin.Record{
		Key: strings.Repeat("a", 64), State: "held", DeliveryID: uuid, Method: "POST", Host: "hooks.example.com", Path: "/github", Reason: "EOF",
	}
	short, observed, unreadable, forced := held, held, admin.Record{Key: strings.Repeat("b", 64), State: "unreadable", Unreadable: "it is damaged, \x1b"}, held
	short.DeliveryID, short.Parts = "uid-1", []string{"mail", "2"}
	observed.Observed, observed.Path, observed.Reason = true, "/", ""
	forced.Provider, forced.Attempt, forced.Status, forced.ExecutionID, forced.Store, forced.Claimed = "github", 2, 201, "e1", "file store", time.Unix(0, 0)
	scoped := held
	scoped.DeliveryID, scoped.Scope = "delivery-1", []string{"/namespace=shop", "/orchestrationRef/name=deploy"}
	long := held
	long.Path, long.Reason = "/"+strings.Repeat("p", 90), strings.Repeat("r", 90)
	a, b := strings.Repeat("a", 16), strings.Repeat("b", 16)
	aged, failed := held, held
	aged.Claimed, aged.Status, aged.State, aged.Reason = time.Now().Add(-90*time.Minute), 201, "complete", ""
	failed.DeliveryID, failed.State, failed.Status, failed.Reason = "order-1", "released", 500, "the upstream answered with 500"
	numbered := held
	numbered.DeliveryID, numbered.State, numbered.Reason = strings.Repeat("i", 25), "released", "the upstream answered with 401"
	numbered.Key = strings.Repeat("b", 64)
	addressed := numbered
	addressed.Reason = "dial tcp 127.0.0.1:3000: connect to 10.0.0.15"
	for name, c := range map[string]struct {
		records []admin.Record
		wide    bool
		want    string
	}{
		"cut": {[]admin.Record{held}, false, "" +
			"DELIVERY ID                           ROUTE          STATE      KEY\n" +
			uuid + "  POST …/github  held: EOF  " + a + "\n"},
		"fits": {[]admin.Record{short, unreadable}, false, "" +
			"DELIVERY ID  PARTS    ROUTE          STATE                      KEY\n" +
			"uid-1        mail, 2  POST …/github  held: EOF                  " + a + "\n" +
			"-            -        -              unreadable: \"it is damag…  " + b + "\n"},
		"a scope": {[]admin.Record{scoped}, false, "" +
			"DELIVERY ID  SCOPE         ROUTE                     STATE      KEY\n" +
			"delivery-1   shop, deploy  POST …example.com/github  held: EOF  " + a + "\n"},
		"observed": {[]admin.Record{observed}, false, "" +
			"DELIVERY ID                           ROUTE                    STATE\n" +
			uuid + "  POST hooks.example.com/  held (observed)\n"},
		"no room for the key": {[]admin.Record{aged}, false, "" +
			"AGE  DELIVERY ID                           ROUTE                    STATE\n" +
			"1h   " + uuid + "  POST …xample.com/github  complete 201\n"},
		"one ID twice": {[]admin.Record{aged, aged}, false, "" +
			"AGE  DELIVERY ID                           ROUTE          STATE         KEY\n" +
			strings.Repeat("1h   "+uuid+"  POST …/github  complete 201  "+a+"\n", 2)},
		"a status": {[]admin.Record{failed}, false, "" +
			"DELIVERY ID  ROUTE                          STATE         KEY\n" +
			"order-1      POST hooks.example.com/github  released 500  " + a + "\n"},
		"a number at the end": {[]admin.Record{numbered}, false, "" +
			"DELIVERY ID                ROUTE          STATE                 KEY\n" +
			numbered.DeliveryID + "  POST …/github  released: … with 401  " + b + "\n"},
		"an address at the end": {[]admin.Record{addressed}, false, "" +
			"DELIVERY ID                ROUTE          STATE                 KEY\n" +
			numbered.DeliveryID + "  POST …/github  released: dial tcp …  " + b + "\n"},
		"wide": {[]admin.Record{forced}, true, "" +
			"DELIVERY ID                           ROUTE                          STATE  REASON  PROVIDER  ATTEMPT  STATUS  CLAIMED               EXECUTION ID  KEY" +
			strings.Repeat(" ", 63) + "STORE\n" +
			uuid + "  POST hooks.example.com/github  held   EOF     github    2        201     1970-01-01T00:00:00Z  e1            " + held.Key + "  file store\n"},
	} {
		var out bytes.Buffer
		table := newTable(&out)
		if c.wide {
			table.columns, table.width = wideColumns, 0
		}
		table.rows(c.records, false)
		if out.String() != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, out.String(), c.want)
		}
	}
	var out bytes.Buffer
	newTable(&out).rows([]admin.Record{long}, false)
	if got := out.String(); !strings.Contains(got, "POST …ppppppp  held: rr…  ") {
		t.Errorf("a long route and reason are shown as\n%s", got)
	}
}

func TestAge(t *testing.T) {
	for ago, want := range map[time.Duration]string{0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 59 * time.Minute: "59m", 47 * time.Hour: "47h", 48 * time.Hour: "2d"} {
		if got := age(time.Now().Add(-ago)); got != want {
			t.Errorf("%s is %q, want %q", ago, got, want)
		}
	}
}

func TestWhole(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out)
	shown := slices.Clone(someShown)
	shown[0].Observed, shown[0].Reason, shown[0].Method, shown[0].Host, shown[0].Path = true, "EOF", "POST", "shop.test", "/hooks"
	for _, r := range shown {
		table.whole(r)
	}
	want := "" +
		"key           " + strings.Repeat("a", 64) + "\n" +
		"state         complete (observed)\n" +
		"reason        EOF\n" +
		"provider      github\n" +
		"delivery ID   1\n" +
		"parts         mail, 2\n" +
		"route         POST shop.test/hooks\n" +
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
		"key     " + strings.Repeat("b", 64) + "\n" +
		"state   unreadable\n" +
		"reason  it is damaged\n"
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

// Records of one ID with the same route differ in what only their keys have: the caller, or a scope.
func TestDifferences(t *testing.T) {
	a := admin.Record{Key: "a", DeliveryID: "1", Provider: "github", Method: "POST", Host: "h", Path: "/a"}
	other, route, provider, observed, store, scoped := a, a, a, a, a, a
	scoped.Key, scoped.Scope = "f", []string{"/namespace=shop"}
	other.Key, route.Key, provider.Key, observed.Key, store.Store = "b", "c", "d", "e", "another"
	route.Path, provider.Provider, observed.Observed = "/b", "stripe", true
	for _, c := range []struct {
		records []admin.Record
		want    string
	}{
		{[]admin.Record{a}, ""},
		{[]admin.Record{a, store}, ""},
		{[]admin.Record{a, {Key: "f", DeliveryID: "2"}, {Key: "g"}, {Key: "h"}}, ""},
		{[]admin.Record{a, other}, "The keys of 1 differ in: caller, or"},
		{[]admin.Record{a, route, other}, "The keys of 1 differ in: route, caller, or"},
		{[]admin.Record{a, provider, route}, "The keys of 1 differ in: provider, route"},
		{[]admin.Record{a, observed}, "The keys of 1 differ in: observe"},
		{[]admin.Record{a, scoped}, "The keys of 1 differ in: scope"},
	} {
		got := strings.Join(differences(c.records), "\n")
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", c.records, got, c.want)
		}
	}
}
