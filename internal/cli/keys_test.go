package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// operated is a store that the admin API asks.
type operated struct{ *admintest.Store }

// put writes a record of a run that has ended so: "" for one that goes on.
func (o operated) put(t *testing.T, provider, id, execution string, state idempotency.State) idempotency.Key {
	t.Helper()
	return o.Put(t, admintest.Run{Provider: provider, ID: id, Execution: execution, State: state, Body: "kept in " + o.Name()})
}

// rig is an admin API with two stores, and what commands that ask it have said.
type rig struct {
	a, b   operated
	url    string
	asked  []string // the targets of the requests
	input  io.Reader
	output io.Writer // nil: what was printed is returned
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{a: operated{admintest.Open(t, "a", "default")}, b: operated{admintest.Open(t, "b", "default")}, input: strings.NewReader("")}
	api := &admin.API{Open: func() []admin.Store { return []admin.Store{r.a.Enter(), r.b.Enter()} }, ParseDuration: time.ParseDuration, MaxRun: func() time.Duration { return time.Minute }, CheckProvider: func(name string) error {
		if name != "github" && name != "orders" {
			return fmt.Errorf("%q is not a provider", name)
		}
		return nil
	}}
	mux := http.NewServeMux()
	for _, route := range api.Routes() {
		mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, q *http.Request) {
			r.asked = append(r.asked, q.Method+" "+q.URL.String())
			if err := route.Serve(w, q); err != nil {
				t.Error(err)
			}
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	r.url = strings.TrimPrefix(server.URL, "http://")
	return r
}

// execute runs a command with these arguments, and returns its exit status.
func execute(c caddycmd.Command, in io.Reader, out, errs io.Writer, args ...string) int {
	cmd := &cobra.Command{Use: c.Name, SilenceUsage: true}
	c.CobraFunc(cmd)
	cmd.SetArgs(args)
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	status := 0
	if err := cmd.Execute(); err != nil {
		if _, is := fmt.Sscanf(err.Error(), "exiting with status %d", &status); is != nil { // else it is Caddy's own
			status = 1
		}
	}
	return status
}

// run runs keys with these arguments.
func (r *rig) run(args ...string) (printed, said string, status int) {
	var out, errs bytes.Buffer
	to := cmp.Or[io.Writer](r.output, &out)
	status = execute(keysCommand, r.input, to, &errs, append(args, "--address", r.url)...)
	return out.String(), errs.String(), status
}

// want runs keys, and fails the test if it ends otherwise, or does not say all that.
func (r *rig) want(t *testing.T, status int, args []string, says ...string) (printed, said string) {
	t.Helper()
	printed, said, got := r.run(args...)
	if got != status {
		t.Errorf("keys %q ended with %d, want %d:\n%s%s", args, got, status, printed, said)
	}
	for _, word := range says {
		if !strings.Contains(printed+said, word) {
			t.Errorf("keys %q does not say %q:\n%s%s", args, word, printed, said)
		}
	}
	return printed, said
}

// meanwhile is an operator who does something else before answering yes.
type meanwhile struct {
	do   func()
	done bool
}

func (m *meanwhile) Read(text []byte) (int, error) {
	if m.done {
		return 0, io.EOF
	}
	m.do()
	m.done = true
	return copy(text, "y\n"), nil
}

// What has changed while the command waited for its answer is left alone.
func TestChangesOnlyWhatItShowed(t *testing.T) {
	for _, command := range []string{"release", "forget"} {
		r := newRig(t)
		one := r.a.put(t, "", "one", "run 1", idempotency.Held)
		two := r.a.put(t, "", "two", "run 2", idempotency.Held)
		r.input = &meanwhile{do: func() {
			if err := r.a.Release(t.Context(), one, idempotency.Precondition{}); err != nil {
				t.Error(err)
			}
			r.a.put(t, "", "one", "run 3", idempotency.Complete)
		}}
		printed, _ := r.want(t, 1, []string{command, "one", "two"}, "has changed since you looked", "complete now", "run 3", "(was held)")
		if strings.Contains(printed, one.String()) {
			t.Errorf("%s says of the changed key that it was done:\n%s", command, printed)
		}
		if state := r.a.State(t, one); state != idempotency.Complete {
			t.Errorf("after %s the changed key is %s", command, state)
		}
		if state := r.a.State(t, two); state == idempotency.Held {
			t.Errorf("%s has not taken the other", command)
		}
	}
}

func TestCommandsWithUnavailableStore(t *testing.T) {
	r := newRig(t)
	key := r.a.put(t, "", "here", "run 1", idempotency.Held)
	r.a.put(t, "", "also here", "run 2", idempotency.Complete)
	r.b.Away.Store(true)
	printed, _ := r.want(t, 3, []string{"show", "here", "also here", "nowhere"}, "store b: "+admintest.ErrAway.Error())
	for _, word := range []string{"run 1", "run 2", "held", "complete"} {
		if !strings.Contains(printed, word) {
			t.Errorf("show does not print %q:\n%s", word, printed)
		}
	}
	for _, command := range []string{"release", "forget"} {
		r.want(t, 3, []string{command, "--yes", "here", "nowhere"}, "store b: "+admintest.ErrAway.Error(), key.String(), "held", "nothing was changed", "hex")
		r.want(t, 3, []string{command, "nowhere"}, "store b: "+admintest.ErrAway.Error(), "nothing was changed")
		if state := r.a.State(t, key); state != idempotency.Held {
			t.Fatalf("%s has made it %s", command, state)
		}
	}
	r.want(t, 0, []string{"show", key.String()}, "held")
	r.want(t, 0, []string{"release", key.String()}, "released", "was held")
	if state := r.a.State(t, key); state != idempotency.Released {
		t.Errorf("by its key it is %s", state)
	}
}

func TestProviderCountsForAKeyToo(t *testing.T) {
	r := newRig(t)
	key := r.a.put(t, "github", "one", "run 1", idempotency.Held)
	for _, command := range []string{"show", "release", "forget"} {
		r.want(t, 1, []string{command, "--provider", "stripe", key.String()}, "no key and no delivery ID", "of stripe")
		r.want(t, 2, []string{command, "--provider", "", key.String()}, "--provider")
	}
	if state := r.a.State(t, key); state != idempotency.Held {
		t.Errorf("it is %s", state)
	}
	r.want(t, 0, []string{"show", "--provider", "github", key.String()}, "held")
}

// The digits of a list name a key.
func TestDigitsOfAList(t *testing.T) {
	r := newRig(t)
	one := r.a.Put(t, admintest.Run{ID: "one", Route: "/a", State: idempotency.Held})
	other := r.a.Put(t, admintest.Run{ID: "one", Route: "/b", State: idempotency.Held})
	printed, _ := r.want(t, 0, []string{"list"}, one.String()[16:32], other.String()[16:32])
	if strings.Contains(printed, one.String()[:16]) {
		t.Errorf("the list has the digits that all keys of the ID begin with:\n%s", printed)
	}
	r.want(t, 0, []string{"release", other.String()[16:32], other.String()}, "released "+other.String())
	if got := r.a.State(t, one); got != idempotency.Held {
		t.Errorf("the other key is %s", got)
	}
	for _, digits := range []string{one.String()[:16], one.String()[16:31], strings.Repeat("0", 16)} {
		r.want(t, 1, []string{"show", digits}, "no key and no delivery ID", digits)
	}
	r.want(t, 1, []string{"show", "--provider", "github", one.String()[16:32]}, "no key and no delivery ID")
	r.b.Away.Store(true)
	r.want(t, 3, []string{"release", one.String()[16:32]}, "nothing was changed")
}

// Digits that several keys have name none of them.
func TestDigitsOfSeveralKeys(t *testing.T) {
	digits := strings.Repeat("5", 16)
	two := []admin.Record{{Key: strings.Repeat("a", 16) + strings.Repeat("5", 48), Store: "a"}, {Key: strings.Repeat("b", 16) + strings.Repeat("5", 48), Store: "a"}}
	p := servePages(t, admin.Page{Keys: two})
	var out bytes.Buffer
	if status := execute(keysCommand, strings.NewReader(""), &out, &out, "release", "--address", p.url, digits); status != 2 || !strings.Contains(out.String(), "in several keys") {
		t.Errorf("it ends with %d and says %s", status, out.String())
	}
}

// What was only observed is shown, and is not what a release of the same ID means.
func TestReleaseBesideAnObservedKey(t *testing.T) {
	r := newRig(t)
	held := r.a.put(t, "github", "one", "run 1", idempotency.Held)
	observed := r.a.Put(t, admintest.Run{Namespace: idempotency.ObservedNamespace("default"), Provider: "github", ID: "one", State: idempotency.Held})
	r.want(t, 0, []string{"show", "one"}, held.String(), observed.String(), "held (observed)")
	r.want(t, 0, []string{"release", "one"}, held.String())
	if got := r.a.State(t, observed); got != idempotency.Held {
		t.Errorf("the observed key is %s", got)
	}
	r.want(t, 0, []string{"forget", observed.String()}, observed.String())
}

// The same key in two stores of one process is two records, by its key and by its ID.
func TestKeyInTwoStores(t *testing.T) {
	r := newRig(t)
	key := r.a.put(t, "", "one", "run 1", idempotency.Held)
	r.b.put(t, "", "one", "run 2", idempotency.Complete)
	for _, name := range []string{"one", key.String()} {
		r.want(t, 0, []string{"show", "--body", name}, "store a", "store b", "run 1", "run 2", "kept in store b")
		r.want(t, 2, []string{"release", name}, "STORE", "store a", "store b", "2 keys")
	}
	r.want(t, 0, []string{"release", "--yes", key.String()}, "(was held in store a)", "(was complete in store b)")
	if r.a.State(t, key) != idempotency.Released || r.b.State(t, key) != idempotency.Released {
		t.Errorf("they are %s and %s", r.a.State(t, key), r.b.State(t, key))
	}
	r.want(t, 0, []string{"forget", "--yes", "--json", "one"}, `"state_was":"released","store":"store a"`, `"store":"store b"`)
	if r.a.State(t, key) != "none" || r.b.State(t, key) != "none" {
		t.Errorf("they are %s and %s", r.a.State(t, key), r.b.State(t, key))
	}
}

// One request is for all stores that have what was seen. It is done in all of them, and said.
func TestChangesEqualRecordsOnce(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, r *rig) idempotency.Key{
		"one store with two names": func(t *testing.T, r *rig) idempotency.Key {
			r.b = operated{r.a.As("b")}
			return r.a.put(t, "", "one", "run 1", idempotency.Complete)
		},
		"records that cannot be read": func(t *testing.T, r *rig) idempotency.Key {
			key := r.a.put(t, "", "one", "run 1", idempotency.Complete)
			r.b.put(t, "", "one", "run 2", idempotency.Complete)
			r.a.Damaged[key], r.b.Damaged[key] = true, true
			return key
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			key := before(t, r)
			r.want(t, 0, []string{"forget", "--yes", "one"}, "in store a)", "in store b)")
			if r.a.State(t, key) != "none" || r.b.State(t, key) != "none" {
				t.Errorf("they are %s and %s", r.a.State(t, key), r.b.State(t, key))
			}
		})
	}
}

// Caddy logs each request to the admin API with its target.
func TestDeliveryIDsAreInNoTarget(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "", "secret-id", "run 1", idempotency.Held)
	for _, args := range [][]string{{"show", "--body", "secret-id"}, {"release", "secret-id"}, {"forget", "secret-id"}} {
		r.want(t, 0, args, "secret-id")
	}
	for _, target := range r.asked {
		if strings.Contains(target, "secret-id") {
			t.Errorf("it asks %s", target)
		}
	}
	if len(r.asked) < 6 {
		t.Errorf("it asks %q", r.asked)
	}
}

// What a sender or a service writes is text in the terminal, whatever it is.
func TestHostileTextsAreEscaped(t *testing.T) {
	r := newRig(t)
	const hostile = "<b>\x1b[31m\u009b2J\u202e"
	const id = hostile + "\nSTATE"
	r.a.Put(t, admintest.Run{
		ID: id, Parts: []string{id}, Path: "/" + id, State: idempotency.Complete, Reason: id, Status: 200, Header: map[string][]string{"X-Hostile": {id}}, Body: hostile,
	})
	for _, args := range [][]string{{"list"}, {"list", "--wide"}, {"list", "--json"}, {"show", "--body", id}, {"show", "--json", "--body", id}, {"release", id}, {"forget", id}} {
		printed, said := r.want(t, 0, args, "<b>")
		if got := printed + said; strings.ContainsAny(got, "\x1b\u009b\u202e") || strings.Contains(got, "\nSTATE") {
			t.Errorf("keys %q prints %q", args, got)
		}
	}
	if _, said := r.want(t, 1, []string{"show", id}); strings.ContainsAny(said, "\x1b\u009b\u202e") {
		t.Errorf("of none it says %q", said)
	}
}

// full is a disk that is.
type full struct{}

var errFull = errors.New("no space is left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestOutputError(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "", "one", "run 1", idempotency.Held)
	r.output = full{}
	for _, args := range [][]string{{"list"}, {"list", "--json"}, {"show", "one"}, {"show", "--json", "one"}, {"release", "one"}} {
		r.want(t, 3, args, errFull.Error())
	}
}

// An empty filter is what a variable leaves that is not set: who would list held keys must
// not get all keys.
func TestEmptyFilters(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "", "one", "run 1", idempotency.Complete)
	for _, flag := range []string{"--state", "--provider", "--delivery-id", "--execution-id", "--status", "--older-than", "--newer-than"} {
		r.want(t, 2, []string{"list", flag, ""}, flag+" is empty")
	}
}

// Two providers or two delivery IDs mean both; the last one alone would be other keys.
func TestRepeatedFilters(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "github", "one", "run 1", idempotency.Complete)
	for _, args := range [][]string{
		{"list", "--provider", "github", "--provider", "stripe"},
		{"list", "--delivery-id", "one", "--delivery-id", "two"},
		{"release", "--provider", "stripe", "--provider", "github", "one"},
		{"list", "--newer-than", "2d", "--newer-than", "1d"},
	} {
		r.want(t, 2, args, args[1], args[2], "takes one value")
	}
	r.want(t, 0, []string{"list", "--state", "complete", "--state", "held", "--provider", "github"}, "one")
}

// No key of a provider that does not exist is no result. A prefix of an earlier configuration has its
// keys, and one of this configuration may have none.
func TestProviderFilter(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "earlier", "one", "run 1", idempotency.Complete)
	for provider, status := range map[string]int{"githb": 2, "github": 0, "orders": 0, "earlier": 0} {
		said := map[int]string{0: "", 2: `"githb" is not a provider`}[status]
		for _, more := range []string{"--wide", "--all", "--json"} {
			r.want(t, status, []string{"list", "--provider", provider, more}, said)
		}
	}
	for i := range admin.MaxKeys + 1 { // more than a page
		r.a.put(t, "earlier", fmt.Sprint(i), "run", idempotency.Complete)
	}
	r.want(t, 2, []string{"list", "--provider", "githb"}, `"githb" is not a provider`)
	r.want(t, 1, []string{"show", "--provider", "githb", "one"}, `"one" of githb`, "did you mean github?")
}

// Each mistake has a status, and says what is accepted.
func TestMistakesOfTheKeysCommand(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "", "running", "run 1", "")
	unknown := strings.Repeat("0", 62) + "ff"
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"free", "k"}, 2, []string{`"free"`, "list, show, release, complete and forget"}},
		{[]string{"list", "k"}, 2, []string{`"k"`, "keys show"}},
		{[]string{"list", "--stat", "held"}, 2, []string{"--stat"}},
		{[]string{"list", "--state", "helt"}, 2, []string{`"helt"`, "in_flight, lapsed, complete, released, held, unreadable"}},
		{[]string{"list", "--older-than", "yesterday"}, 2, []string{`"yesterday"`, "7d"}},
		{[]string{"list", "--status", "4x"}, 2, []string{`"4x"`, "4xx"}},
		{[]string{"list", "--limit", "0"}, 2, []string{"--limit 0"}},
		{[]string{"list", "--limit", "ten"}, 2, []string{`"ten"`}},
		{[]string{"list", "--all", "--limit", "5"}, 2, []string{"--all", "--limit"}},
		{[]string{"show"}, 2, []string{"keys or delivery IDs"}},
		{[]string{"show", ""}, 2, []string{"argument 1 is empty"}},
		{[]string{"show", "-x1"}, 2, []string{"-x1", "keys show -- <ID>"}},
		{[]string{"show", unknown}, 1, []string{unknown}},
		{[]string{"show", "running", "missing"}, 1, []string{"in_flight", `"missing"`}},
		{[]string{"release", "missing"}, 1, []string{`"missing"`}},
		{[]string{"release", "running"}, 1, []string{"in flight"}},
		{[]string{"forget", "--yes", "running", "missing"}, 1, []string{"in flight", `"missing"`}},
		{nil, 0, []string{"list", "show", "release", "complete", "forget"}},
	} {
		r.want(t, c.code, c.args, c.says...)
	}
}
