package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// pages is an admin API whose list has these pages, or problems.
type pages struct {
	answers []any
	asked   []string
	url     string
}

func servePages(t *testing.T, answers ...any) *pages {
	t.Helper()
	p := &pages{answers: answers}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		_, _ = fmt.Sscanf(r.URL.Query().Get(admin.ParamCursor), "page %d", &n)
		if r.URL.Path == admin.ReadyPath {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(admin.ReadyAnswer{Stores: []admin.Readiness{{Store: "a", Ready: true}}})
			return
		}
		if r.URL.Path == admin.LookupPath {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(admin.LookupAnswer{Keys: []admin.Record{}, Missing: []string{"it"}})
			return
		}
		p.asked = append(p.asked, r.URL.RawQuery)
		answer := p.answers[n]
		w.Header().Set("Content-Type", "application/json")
		switch answer := answer.(type) {
		case admin.Problem:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(answer.Status)
		case admin.Page:
			if n < len(p.answers)-1 {
				answer.Next = fmt.Sprint("page ", n+1)
			}
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	p.url = strings.TrimPrefix(server.URL, "http://")
	return p
}

// list runs keys list.
func (p *pages) list(args ...string) (printed, said string, status int) {
	var out, errs bytes.Buffer
	status = execute(keysCommand, strings.NewReader(""), &out, &errs, append([]string{"list", "--address", p.url}, args...)...)
	return out.String(), errs.String(), status
}

// claimed returns records that were claimed at these seconds, each with an ID that says so.
func claimed(seconds ...int) []admin.Record {
	all := []admin.Record{}
	for _, s := range seconds {
		id := fmt.Sprint("at-", s)
		all = append(all, admin.Record{Key: fmt.Sprintf("%064x", s), Store: "a", State: "complete", DeliveryID: id, Claimed: time.Unix(int64(s), 0)})
	}
	return all
}

// ids are the delivery IDs in what was printed, in their order.
func ids(printed string) (all []string) {
	at := strings.Index(printed, "DELIVERY ID") // in its first line
	for line := range strings.Lines(printed) {
		if id := strings.Fields(line[at:])[0]; id != "DELIVERY" {
			all = append(all, id)
		}
	}
	return all
}

// The newest keys come first, wherever the stores have them. --all has every key as it is read.
func TestListOfTheNewest(t *testing.T) {
	damaged := admin.Record{Key: strings.Repeat("d", 64), Store: "a", State: "unreadable", Unreadable: "it is damaged"}
	answers := []any{
		admin.Page{Keys: claimed(3, 1, 7), Seen: 500}, admin.Page{Keys: claimed(), Seen: 500}, admin.Page{Keys: append(claimed(9, 2), damaged), Seen: 3},
	}
	for _, c := range []struct {
		args []string
		want string
		more bool
	}{
		{nil, "- at-9 at-7 at-3 at-2 at-1", false},
		{[]string{"--limit", "6"}, "- at-9 at-7 at-3 at-2 at-1", false},
		{[]string{"--limit", "3"}, "- at-9 at-7", true},
		{[]string{"--limit", "1", "--wide"}, "-", true},
		{[]string{"--all"}, "at-3 at-1 at-7 at-9 at-2 -", false},
	} {
		p := servePages(t, answers...)
		printed, said, status := p.list(append(c.args, "--state", "complete")...)
		if got := strings.Join(ids(printed), " "); status != 0 || got != c.want || strings.Count(printed, "DELIVERY ID") != 1 {
			t.Errorf("%q ends with %d and lists %s; want %s", c.args, status, got, c.want)
		}
		if strings.Contains(said, "There are more keys") != c.more || !c.more && said != "" {
			t.Errorf("%q says %q; more: want %v", c.args, said, c.more)
		}
		if len(p.asked) != 3 || slices.ContainsFunc(p.asked, func(q string) bool {
			return !strings.Contains(q, "order=store") || !strings.Contains(q, "state=complete")
		}) {
			t.Errorf("%q asks %q", c.args, p.asked)
		}
	}
	printed, _, _ := servePages(t, answers...).list("--json", "--limit", "2")
	var first admin.Record
	if err := json.Unmarshal([]byte(printed[:strings.Index(printed, "\n")]), &first); err != nil || first.Key != damaged.Key || strings.Count(printed, "\n") != 2 {
		t.Errorf("in JSON it prints %s, %v", printed, err)
	}
}

// Where nothing is found, the command says what it looked for: several providers are not one.
func TestListOfNothing(t *testing.T) {
	for want, args := range map[string][]string{
		"":               {"--json"},
		"0 keys match\n": nil,
		"0 keys match --state held --state lapsed --path \"orders\" --provider \"github,stripe\"\n": {
			"--provider", "github,stripe", "--state", "held,lapsed", "--path", "orders", "--all",
		},
	} {
		printed, said, status := servePages(t, admin.Page{Keys: claimed()}, admin.Page{Keys: claimed()}).list(args...)
		if printed != "" || said != want || status != 0 {
			t.Errorf("%q prints %q, says %q and ends with %d; want %q", args, printed, said, status, want)
		}
	}
}

// A store may list a key twice, also one that has run again since: its later record counts.
func TestNewest(t *testing.T) {
	again := claimed(1)[0]
	again.Claimed, again.State = time.Unix(9, 0), "in_flight"
	for _, limit := range []int{1, 2, 3, 4, 100} {
		n := newest{limit: limit}
		for _, r := range append(claimed(1, 5, 4, 5, 3), again, claimed(4)[0]) {
			n.add([]admin.Record{r})
		}
		want := []string{"at-1", "at-5", "at-4", "at-3"}[:min(limit, 4)]
		var got []string
		for _, r := range n.sorted() {
			got = append(got, r.DeliveryID)
		}
		if !slices.Equal(got, want) || n.more != (limit < 4) || n.records[0].State != "in_flight" {
			t.Errorf("the newest %d are %q, more: %v; want %q", limit, got, n.more, want)
		}
	}
}

// A list that could not be read to its end says so, with an exit status of its own.
func TestIncompleteList(t *testing.T) {
	away := []admin.Readiness{{Store: "store b", Error: "it is away"}}
	for name, c := range map[string]struct {
		answers []any
		says    string
	}{
		"a store that fails":        {[]any{admin.Page{Keys: claimed(1)}, admin.Problem{Title: "A store cannot be asked", Status: 503, Detail: "store a: it is away"}}, "it is away"},
		"a store that has closed":   {[]any{admin.Page{Keys: claimed(1)}, admin.Problem{Title: "The request is wrong", Status: 400, Detail: "start again"}}, "start again"},
		"a store that is passed by": {[]any{admin.Page{Keys: claimed(1), Unavailable: away}, admin.Page{Keys: claimed(2), Unavailable: away}}, "store b could not be asked: it is away"},
		"not all was read":          {[]any{admin.Page{Keys: claimed(1), Incomplete: true, Seen: 17}}, "more records than the 17"},
	} {
		for _, flag := range []string{"--all", "--wide", "--json"} {
			printed, said, status := servePages(t, c.answers...).list(flag)
			if status != 3 || !strings.Contains(said, "the list is incomplete: ") || strings.Count(said, c.says) != 1 || !strings.Contains(printed, "at-1") {
				t.Errorf("%s, %s: it ends with %d and says %s%s", name, flag, status, printed, said)
			}
		}
	}
	for _, args := range [][]string{{"--limit", "x"}, {"--limit", "0"}, {"--limit", "99999999999999999999"}, {"--all", "--limit", "5"}, {"--cursor", "x"}} {
		if printed, said, status := servePages(t).list(args...); status != 2 || printed != "" {
			t.Errorf("%q ends with %d: %s%s", args, status, printed, said)
		}
	}
}

// A terminal shows how far the list is, and at its end the list alone.
func TestProgressOfAList(t *testing.T) {
	before := isTerminal
	defer func() { isTerminal = before }()
	for _, terminal := range []bool{true, false} {
		isTerminal = func(io.Writer) bool { return terminal }
		_, said, _ := servePages(t, admin.Page{Keys: claimed(1), Seen: 500}, admin.Page{Keys: claimed(2, 3), Seen: 500}, admin.Page{Keys: claimed()}).list()
		want := ""
		if terminal {
			want = "|500 keys are read, 1 match|1000 keys are read, 3 match||"
		}
		if strings.ReplaceAll(said, "\r\x1b[K", "|") != want {
			t.Errorf("a terminal: %v: it says %q, want %q", terminal, said, want)
		}
	}
}
