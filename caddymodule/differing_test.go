package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

// A webhook's duplicate with another body gets what any duplicate gets, and is marked, counted and
// logged: its key may be that of several events.
func TestDuplicatesThatDiffer(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "first"))
	dying, _ := startUpstream(t, func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) })
	const order = "mode webhook\nkey json /order_id orders"
	t.Setenv("TEST_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	for name, c := range map[string]struct {
		site          string
		global        string
		first, second string
		header        []string
		differs       bool
		outcome       string // "" for replayed
	}{
		"two events":                {site: order, first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1,"state":"shipped"}`, differs: true},
		"a retry":                   {site: order, first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1,"state":"paid"}`},
		"a retry, written anew":     {site: order, first: `{"order_id":1,"state":"paid"}`, second: ` {"state":"paid", "order_id":1}`},
		"no canonical form":         {site: order, first: `{"order_id":1,"t":"hi \ud83d","state":"paid"}`, second: `{"order_id":1,"t":"hi \ud83d","state":"shipped"}`, differs: true},
		"a retry with a new time":   {site: order + "\nexclude /sent_at", first: `{"order_id":1,"sent_at":1}`, second: `{"order_id":1,"sent_at":2}`},
		"encrypted":                 {site: order, global: "encrypt {env.TEST_KEY}", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1,"state":"shipped"}`, differs: true},
		"encrypted, a retry":        {site: order, global: "encrypt {env.TEST_KEY}", first: `{"order_id":1}`, second: `{"order_id":1}`},
		"a key in a field":          {site: "mode webhook\nkey header X-Id", first: `{"a":1}`, second: `{"a": 1}`, header: []string{"X-Id", "1"}, differs: true},
		"a scope in the body":       {site: "mode webhook\nkey header X-Id\nscope {http.dedup.json./t}", first: `{"a":1,"t":1}`, second: `{"t":1, "a": 1}`, header: []string{"X-Id", "1"}},
		"acknowledged":              {site: order + "\non_duplicate acknowledge", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`, differs: true, outcome: "acknowledged"},
		"a conflict":                {site: order + "\non_duplicate conflict", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`, differs: true, outcome: "conflict"},
		"held":                      {site: order + "\non_unknown hold", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`, header: []string{"X-Cut", "1"}, differs: true, outcome: "held"},
		"GitHub":                    {site: "github", first: `{"a":1}`, second: `{"a":2}`, header: []string{"X-GitHub-Delivery", "d"}, differs: true},
		"a sender that changes it":  {site: "chargebee", first: `{"id":"e","event_type":"x","n":1}`, second: `{"id":"e","event_type":"x","n":2}`},
		"larger than is read":       {site: "mode webhook\nkey header X-Id\nmax_request_body 4", first: `{"a":1}`, second: `{"a":2}`, header: []string{"X-Id", "1"}},
		"a fingerprint refuses":     {site: order + "\nfingerprint body", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`, outcome: "reused"},
		"an API":                    {site: "key json /order_id", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`, outcome: "reused"},
		"an API without comparison": {site: "key json /order_id\nfingerprint none", first: `{"order_id":1,"state":"paid"}`, second: `{"order_id":1}`},
		"content":                   {site: "mode webhook\nkey content", first: `{"a":1}`, second: `{"a": 1}`},
	} {
		for _, observed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, observed %v", name, observed), func(t *testing.T) {
				head, block := "dedup", c.site
				if provider := strings.Fields(c.site); len(provider) == 1 {
					head, block = "dedup "+c.site, ""
				}
				if observed {
					block += "\nobserve"
				}
				up := address
				if slices.Contains(c.header, "X-Cut") {
					up = dying
				}
				s := serveWith(t, c.global, "header >X-Differs {http.dedup.differs}", head+" {", block, "}", "reverse_proxy "+up)
				logged := s.logged(zap.WarnLevel)
				counts, before := s.counted(), total(t, "differing_total")
				_, _ = s.post("", c.first, c.header...)
				<-counts.told
				second, _ := s.post("", c.second, c.header...)
				outcome := cmp.Or(c.outcome, "replayed")
				if got := strings.Fields(<-counts.told); got[1] != outcome {
					t.Errorf("the outcome is %s, want %s", got[1], outcome)
				}
				marked := second.header.Get("X-Differs") == "true"
				if observed { // it is known when the handlers behind have answered
					marked = c.differs
				}
				lines, n := logged.FilterMessageSnippet("differs: ").Len(), total(t, "differing_total")-before
				if marked != c.differs || n != float64(lines) || (lines == 1) != c.differs {
					t.Errorf("marked %v, counted %v, logged %d; want %v", marked, n, lines, c.differs)
				}
			})
		}
	}
}

// A duplicate that waits for the run, or follows its stream, differs as one that comes later.
func TestWaitingDuplicatesThatDiffer(t *testing.T) {
	for name, flushes := range map[string]bool{"waiting": false, "following": true} {
		t.Run(name, func(t *testing.T) {
			begun, goOn := make(chan struct{}), make(chan struct{})
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				if flushes {
					_ = http.NewResponseController(w).Flush()
				}
				close(begun)
				<-goOn
			})
			s := serve(t, "dedup {", "mode webhook", "key header X-Id", "}", "reverse_proxy "+address)
			logged := s.logged(zap.WarnLevel)
			counts, before := s.counted(), total(t, "differing_total")
			answers := make(chan answer)
			for n, body := range []string{"paid", "shipped"} {
				go func() { answers <- s.serveHTTP("", body, "X-Id", "1") }()
				if n == 0 {
					<-begun
				}
			}
			if flushes {
				for logged.FilterMessageSnippet("differs: ").Len() == 0 && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
			} else {
				s.waits()
			}
			close(goOn)
			for range 2 {
				<-answers
				<-counts.told
			}
			if lines, n := logged.FilterMessageSnippet("differs: ").Len(), total(t, "differing_total")-before; n != 1 || lines != 1 {
				t.Errorf("counted %v, logged %d, want 1", n, lines)
			}
		})
	}
}
