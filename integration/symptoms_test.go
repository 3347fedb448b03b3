package integration

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// symptom is a situation of the page docs/troubleshooting.md: a handler, and what makes
// the symptom.
type symptom struct {
	// site are lines in place of the route with `dedup`; dedup are lines of the global
	// option.
	dedup  string
	route  string
	answer answering
	// make has the symptom show itself.
	make func(t *testing.T, s *stage)
	// before and after are those of the situation.
	before map[int]func(t *testing.T, s *stage)
	after  func(t *testing.T, s *stage)
}

// in makes a situation of it. The record is kept in the file store.
func (m symptom) in() situation {
	return situation{before: m.before, after: m.after, start: func(t *testing.T) *stage {
		up := startUpstream(t, m.answer)
		s := startSocket(t, conf{store: "store file", dedup: m.dedup, site: lines(m.route, proxyTo(up))}, up)
		if m.make != nil {
			m.make(t, s)
		}
		return s
	}}
}

// pageBlock is the Caddyfile of a section of the page.
func pageBlock(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "# "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n#")
	for _, b := range fencedBlocks("troubleshooting.md", rest) {
		if b.language == "caddyfile" {
			return b.text
		}
	}
	t.Fatalf("the section %q has no Caddyfile", section)
	return ""
}

// mend loads the Caddyfile of a section.
func (s *stage) mend(t *testing.T, section string) {
	t.Helper()
	text := pageBlock(t, section)
	dedup := s.conf.store
	if global, site, found := strings.Cut(text, "\n}\n\n"); found {
		_, inner, _ := strings.Cut(global, "dedup {\n")
		dedup, text = dedup+"\n"+strings.TrimSuffix(inner, "\n\t}"), site
	}
	name, block, _ := strings.Cut(text, " {\n")
	if name != "hooks.example.com" && name != "api.example.com" {
		t.Fatalf("the site of %q is %q", section, name)
	}
	c := s.conf
	c.store, c.dedup, c.site = "", dedup, strings.Replace(strings.TrimSuffix(block, "}\n"), "localhost:3000", s.up.addr, 1)
	status, answer := s.askAdmin(t, "POST", "/load", "text/caddyfile", c.caddyfile(c.dir, c.port))
	if status != http.StatusOK {
		t.Fatalf("the Caddyfile of %q is answered %d: %s", section, status, answer)
	}
	eventually(t, "the port has one listener again", func() bool { return listeners(t, c.port) <= 1 })
}

// sendOrder sends the request of the page's API.
func (s *stage) sendOrder(t *testing.T, body string, options ...option) reply {
	t.Helper()
	return s.post(t, "/orders", order, body, append([]option{host("api.example.com")}, options...)...)
}

// awaitSaid waits for a line of the log that has this text.
func (s *stage) awaitSaid(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the log says "+text, func() bool { return strings.Contains(s.log.String(), text) })
}

// wantNext fails unless the next request is answered so, by a run or without one.
func wantNext(t *testing.T, s *stage, got func() reply, status int, runs bool) {
	t.Helper()
	before := len(s.up.all())
	answer := got()
	if ran := len(s.up.all()) > before; answer.Status != status || ran != runs {
		t.Errorf("the next request got %d, and ran: %v; want %d and %v: %s", answer.Status, ran, status, runs, answer.Body)
	}
}

// orderAgain and deliverAgain check the next request.
func orderAgain(status int, runs bool) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		wantNext(t, s, func() reply { return s.sendOrder(t, "{}") }, status, runs)
	}
}

func deliverAgain(status int, runs bool) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		wantNext(t, s, func() reply { return s.deliver(t, cutOff) }, status, runs)
	}
}

// first is one delivery, and firstOrder one order.
func first(t *testing.T, s *stage) { t.Helper(); s.deliver(t, cutOff) }

func firstOrder(t *testing.T, s *stage) { t.Helper(); s.sendOrder(t, "{}") }

// lost is a request whose run was cut off, and its duplicate.
func lost(send func(*testing.T, *stage)) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		send(t, s)
		send(t, s)
		s.awaitSaid(t, `"msg":"refused a request"`)
	}
}

// refusedAs sends an order that is refused.
func refusedAs(code, body string, options ...option) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		if got := s.sendOrder(t, body, options...); !strings.Contains(got.Body, code) {
			t.Fatalf("got %d %s, want %s", got.Status, got.Body, code)
		}
		s.awaitSaid(t, `"code":"`+code+`"`)
	}
}

// mended loads the section's Caddyfile and checks the next request.
func mended(section string, check func(*testing.T, *stage)) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		s.mend(t, section)
		check(t, s)
	}
}

var (
	cutFirst    = inTurn(noAnswer, answersStatus(200))
	answersDone = answersJSON(200, `{"done": true}`)
)

// onRedis is a stage whose records are in a Redis.
func onRedis(t *testing.T, route string, answer answering) (*stage, *redistest.Server) {
	t.Helper()
	server := redistest.Start(t)
	up := startUpstream(t, answer)
	s := startSocket(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(route, proxyTo(up))}, up)
	s.here = append(s.here, "127.0.0.1:6379", server.Addr)
	return s, server
}

// whileItRuns has an order in flight, until the test has ended.
func whileItRuns(t *testing.T, g *gate) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		w := s.postLater("/orders", order, "{}", host("api.example.com"))
		s.up.awaitRuns(t, order, 1)
		t.Cleanup(func() { g.open(); <-w.done })
	}
}

// longKey is a request's key that is too long.
func longKey(r *http.Request) { r.Header.Set("Idempotency-Key", order+"-of-customer-7") }

func withoutKey(r *http.Request) { r.Header.Del("Idempotency-Key") }

// runningOrder is an order in flight. The section's Caddyfile, if it is named, refuses its
// duplicates at once.
func runningOrder(t *testing.T, section string) situation {
	g := newGate(t)
	m := symptom{route: "dedup", answer: g.before(answersDone), make: whileItRuns(t, g)}
	m.after = func(t *testing.T, s *stage) {
		if section != "" {
			s.mend(t, section)
			orderAgain(409, false)(t, s)
		}
		g.open()
		eventually(t, "the run ends", func() bool { return strings.Contains(s.keys(t, 0, "show", order), "complete") })
	}
	return m.in()
}

// storeAway is a Redis that is down, and comes back after the first command.
func storeAway() situation {
	var server *redistest.Server
	return situation{
		start: func(t *testing.T) *stage {
			var s *stage
			s, server = onRedis(t, "dedup", answersDone)
			server.Kill()
			refusedAs("store_unavailable", "{}")(t, s)
			return s
		},
		before: map[int]func(*testing.T, *stage){2: func(t *testing.T, s *stage) {
			server.Restart()
			eventually(t, "the store answers", func() bool {
				status, _ := s.askAdmin(t, "GET", "/dedup/ready", "", "")
				return status == http.StatusOK
			})
		}},
		after: orderAgain(200, true),
	}
}

// overloaded has more runs than are allowed.
func overloaded(t *testing.T) situation {
	g := newGate(t)
	m := symptom{route: "dedup", dedup: limits("in_flight 1"), answer: g.before(answersDone)}
	m.make = func(t *testing.T, s *stage) {
		whileItRuns(t, g)(t, s)
		refusedAs("overloaded", "{}", header("Idempotency-Key", "order-1002"))(t, s)
	}
	m.after = func(t *testing.T, s *stage) {
		s.mend(t, "overloaded")
		w := s.postLater("/orders", "order-1002", "{}", host("api.example.com"))
		s.up.awaitRuns(t, "order-1002", 1)
		g.open()
		w.reply(t)
	}
	return m.in()
}
