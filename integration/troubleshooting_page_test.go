package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestTroubleshootingPage(t *testing.T) {
	t.Parallel()
	testPage(t, "troubleshooting.md", map[string]situation{
		"At night, with only the delivery ID": symptom{
			route: "dedup github {\non_unknown hold\n}", answer: cutFirst, make: first,
			before: map[int]func(*testing.T, *stage){3: deliverAgain(200, true)},
			after:  deliverAgain(200, false),
		}.in(),
		"A webhook vanished": symptom{
			route: "dedup gitlab", answer: answersDone,
			make: func(t *testing.T, s *stage) { first(t, s); s.awaitSaid(t, `"msg":"missing: `) },
			after: mended("A webhook vanished", func(t *testing.T, s *stage) {
				deliverAgain(200, true)(t, s)
				deliverAgain(200, false)(t, s)
			}),
		}.in(),
		"The answer was wrong": symptom{
			route: "dedup github", answer: answersJSON(200, `{"ignored": true}`), make: first, after: deliverAgain(200, true),
		}.in(),
		"Processed twice": symptom{
			route: "dedup github", answer: cutFirst,
			make: func(t *testing.T, s *stage) { first(t, s); deliverAgain(200, true)(t, s) },
			after: mended("Processed twice", func(t *testing.T, s *stage) {
				s.deliver(t, answered)
				wantNext(t, s, func() reply { return s.deliver(t, answered) }, 503, false)
			}),
		}.in(),
		"Duplicates are not recognized": symptom{
			route: "dedup", answer: answersDone,
			make: func(t *testing.T, s *stage) {
				s.sendOrder(t, "{}", header("Authorization", "Bearer 1"))
				s.sendOrder(t, "{}", header("Authorization", "Bearer 2"))
			},
			after: mended("Duplicates are not recognized", func(t *testing.T, s *stage) {
				s.sendOrder(t, "{}", header("Authorization", "Bearer 3"))
				wantNext(t, s, func() reply { return s.sendOrder(t, "{}", header("Authorization", "Bearer 4")) }, 200, false)
			}),
		}.in(),
		"409 or 503 again and again": symptom{
			route: "dedup github {\non_unknown hold\n}", answer: cutFirst, make: lost(first), after: deliverAgain(200, true),
		}.in(),
		"A retry is answered with the old error": symptom{
			route: "dedup", answer: inTurn(answersStatus(400), answersStatus(400), answersStatus(400), answersDone),
			make: func(t *testing.T, s *stage) { firstOrder(t, s); orderAgain(400, false)(t, s) },
			after: func(t *testing.T, s *stage) {
				orderAgain(400, true)(t, s)
				s.keys(t, 0, "release", order)
				s.mend(t, "A retry is answered with the old error")
				orderAgain(400, true)(t, s)
				orderAgain(200, true)(t, s)
			},
		}.in(),
		"A replay has no body": symptom{
			route: "dedup github", answer: answersLarge(9 << 20), make: first,
			after: mended("A replay has no body", func(t *testing.T, s *stage) {
				first := s.deliver(t, answered)
				if again := s.deliver(t, answered); len(first.Body) == 0 || again.Body != first.Body {
					t.Errorf("the replay has %d bytes, want %d", len(again.Body), len(first.Body))
				}
			}),
		}.in(),
		"A request waits 30 seconds": runningOrder(t, "A request waits 30 seconds"),
		"Nothing happens after a crash": {start: func(t *testing.T) *stage {
			g := newGate(t)
			s, server := onRedis(t, "dedup {\nlease 1500ms\n}", g.before(answersDone))
			other := start(t, conf{store: storeAt(server.Addr), site: s.conf.site})
			other.postLater("/orders", order, "{}", host("api.example.com"))
			s.up.awaitRuns(t, order, 1)
			other.kill(t)
			g.open()
			eventually(t, "the lease is over", func() bool { return strings.Contains(s.keys(t, 0, "list"), "lapsed") })
			return s
		}, after: orderAgain(200, true)},
		"Memory grows": symptom{
			route: "dedup github", answer: answersDone, make: first,
			after: mended("Memory grows", deliverAgain(200, false)),
		}.in(),
		"It runs unprotected": {start: func(t *testing.T) *stage {
			s, server := onRedis(t, "dedup {\non_store_error pass\n}", answersDone)
			server.Kill()
			firstOrder(t, s)
			s.awaitSaid(t, `"msg":"unprotected: `)
			return s
		}, after: mended("It runs unprotected", orderAgain(503, false))},
		"The commands find no admin API": symptom{
			route: "dedup github {\non_unknown hold\n}", answer: cutFirst, make: first,
		}.in(),
		"After a change of the configuration": symptom{
			route: "dedup github", answer: answersDone,
			make: func(t *testing.T, s *stage) {
				c := s.conf
				c.site = strings.Replace(c.site, "dedup github", "dedup", 1)
				if err := os.WriteFile(filepath.Join(c.dir, "Caddyfile"), []byte(c.caddyfile(c.dir, c.port)), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			after: func(t *testing.T, s *stage) { firstOrder(t, s); orderAgain(200, false)(t, s) },
		}.in(),
		"idempotency_key_missing": symptom{
			route: "dedup {\non_missing reject\n}", answer: answersDone,
			make: refusedAs("idempotency_key_missing", "{}", withoutKey),
			after: mended("idempotency_key_missing", func(t *testing.T, s *stage) {
				s.sendOrder(t, "{}", withoutKey)
				wantNext(t, s, func() reply { return s.sendOrder(t, "{}", withoutKey) }, 200, false)
			}),
		}.in(),
		"idempotency_key_invalid": symptom{
			route: "dedup {\nmax_key_length 16\n}", answer: answersDone,
			make: refusedAs("idempotency_key_invalid", "{}", longKey),
			after: mended("idempotency_key_invalid", func(t *testing.T, s *stage) {
				wantNext(t, s, func() reply { return s.sendOrder(t, "{}", longKey) }, 200, true)
			}),
		}.in(),
		"idempotency_key_reused": symptom{
			route: "dedup", answer: answersDone,
			make: func(t *testing.T, s *stage) {
				firstOrder(t, s)
				refusedAs("idempotency_key_reused", `{"amount": 2}`)(t, s)
			},
			after: func(t *testing.T, s *stage) {
				wantNext(t, s, func() reply { return s.sendOrder(t, `{"amount": 2}`) }, 200, true)
				s.keys(t, 0, "forget", order)
				s.mend(t, "idempotency_key_reused")
				s.sendOrder(t, `{"sent_at": 1}`)
				wantNext(t, s, func() reply { return s.sendOrder(t, `{"sent_at": 2}`) }, 200, false)
			},
		}.in(),
		"request_in_flight": runningOrder(t, ""),
		"outcome_unknown": symptom{
			route: "dedup {\non_unknown hold\n}", answer: cutFirst, make: lost(firstOrder), after: orderAgain(200, true),
		}.in(),
		"attempts_exhausted": symptom{
			route: "dedup {\nmax_attempts 1\n}", answer: cutFirst, make: lost(firstOrder), after: orderAgain(200, true),
		}.in(),
		"duplicate_request": symptom{
			route: "dedup {\non_duplicate conflict\n}", answer: answersDone, make: lost(firstOrder),
			after: mended("duplicate_request", orderAgain(200, false)),
		}.in(),
		"response_not_kept": symptom{
			route: "dedup", answer: answersLarge(9 << 20), make: lost(firstOrder),
			after: mended("response_not_kept", func(t *testing.T, s *stage) {
				orderAgain(409, false)(t, s)
				s.keys(t, 0, "release", order)
				orderAgain(200, true)(t, s)
				orderAgain(200, false)(t, s)
			}),
		}.in(),
		"request_too_large": symptom{
			route: "dedup", answer: answersDone,
			make: refusedAs("request_too_large", strings.Repeat("x", 9<<20)),
			after: mended("request_too_large", func(t *testing.T, s *stage) {
				wantNext(t, s, func() reply { return s.sendOrder(t, strings.Repeat("x", 9<<20)) }, 200, true)
			}),
		}.in(),
		"store_unavailable": storeAway(),
		"record_unreadable": {start: func(t *testing.T) *stage {
			s, server := onRedis(t, "dedup", answersDone)
			firstOrder(t, s)
			client := redisClient(t, server)
			if err := client.Set(t.Context(), client.Keys(t.Context(), "dedup:{*}").Val()[0], "not ours", 0).Err(); err != nil {
				t.Fatal(err)
			}
			orderAgain(500, false)(t, s)
			return s
		}, after: orderAgain(200, true)},
		"overloaded": overloaded(t),
	})
}

var (
	metricOfAPage = regexp.MustCompile("`(caddy_dedup_[a-z_]+)((?:{[^}]*})?)`")
	labelOfAPage  = regexp.MustCompile(`([a-z]+)="([a-z_]+)"`)
)

// The page names metrics, and values of labels, that a process has.
func TestMetricsOfTheTroubleshootingPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	shown := p.scrape(t)
	has := func(name string, labels [][]string) bool {
		for series := range shown {
			metric, rest, _ := strings.Cut(series, "{")
			all := metric == name
			for _, label := range labels {
				all = all && strings.Contains(rest, label[1]+`="`+label[2]+`"`)
			}
			if all {
				return true
			}
		}
		return false
	}
	found := metricOfAPage.FindAllStringSubmatch(string(text), -1)
	for _, metric := range found {
		if !has(metric[1], labelOfAPage.FindAllStringSubmatch(metric[2], -1)) {
			t.Errorf("the page names %s, and the process has none", metric[0])
		}
	}
	if len(found) < 15 {
		t.Errorf("the page names %d metrics: are they looked for where they are?", len(found))
	}
}

// The page has a section for each code of a refusal.
func TestTroubleshootingPageHasAllCodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	refusals, err := os.ReadFile("../docs/behaviour.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(refusals), "## Refusals\n")
	codes := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [0-9]").FindAllStringSubmatch(table, -1)
	for _, code := range codes {
		if !strings.Contains(string(text), "\n### "+code[1]+"\n") {
			t.Errorf("the page has no section for %s", code[1])
		}
	}
	if len(codes) != 15 {
		t.Errorf("%d codes are documented, want 15", len(codes))
	}
}
