package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// executed is a request as a service has it whose callers choose the window within
// which a key counts.
func executed(key, window string) string {
	return fmt.Sprintf(`{"dedup":{"key":%q,"window_secs":%s},"action":"notify"}`, key, window)
}

// keptFor returns how long the record of a key is kept, from the end of its run.
func (p *caddy) keptFor(t *testing.T, key string) time.Duration {
	t.Helper()
	record := p.operator(t, http.MethodGet, key, 200)
	at := func(field string) time.Time {
		text, _ := record[field].(string)
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatalf("the record's %s: %v in %v", field, err, record)
		}
		return at
	}
	return at("expires").Sub(at("ended")).Round(time.Second)
}

func TestRetentionFromTheRequest(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, mode := range []string{"api", "webhook"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, answers201)
				block := func(from string) string {
					return dedupBlock("mode "+mode, "key json /dedup/key", "fingerprint none", "retention 2d", "retention_from "+from)
				}
				p := start(t, conf{store: store, site: lines("header >X-Key {http.dedup.key}", onPaths(up, map[string]string{
					"/member": block("json /dedup/window_secs 1d"), "/field": block("header X-Window 1d"),
				}))})
				for i, c := range []struct {
					window string
					kept   time.Duration
					says   string
				}{
					{"300", 300 * time.Second, ""},
					{`"300"`, 300 * time.Second, ""},
					{"89.2", 90 * time.Second, ""},
					{"86400", day, ""},
					{"86401", day, "gets the maximum"},
					{"1e99", day, "gets the maximum"},
					{"0", 2 * day, "is ignored"},
					{"-300", 2 * day, "is ignored"},
					{`"soon"`, 2 * day, "is ignored"},
					{`{"hours":1}`, 2 * day, "is ignored"},
					{"null", 2 * day, ""},
					{`""`, 2 * day, ""},
				} {
					body := executed(fmt.Sprint("m", i), c.window)
					first := p.post(t, "/member", "", body)
					wantAnswer(t, first, 201, first.Body)
					key := first.Header.Get("X-Key")
					if kept := p.keptFor(t, key); kept != c.kept {
						t.Errorf("window_secs %s: kept for %s, want %s", c.window, kept, c.kept)
					}
					wantReplay(t, p.post(t, "/member", "", executed(fmt.Sprint("m", i), "1")), first)
					if kept := p.keptFor(t, key); kept != c.kept {
						t.Errorf("window_secs %s: after a duplicate kept for %s, want %s", c.window, kept, c.kept)
					}
					var asks []option
					if c.window != "null" {
						asks = append(asks, header("X-Window", strings.Trim(c.window, `"`)))
					}
					field := p.post(t, "/field", "", executed(fmt.Sprint("f", i), "5"), asks...)
					if kept := p.keptFor(t, field.Header.Get("X-Key")); kept != c.kept {
						t.Errorf("X-Window %s: kept for %s, want %s", c.window, kept, c.kept)
					}
				}
			})
		})
	}
}

// What a request does not get of what it asks for is in the log, with what is right,
// and without a flood.
func TestRetentionThatIsNotGrantedIsLogged(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	key := lines("key header X-Id", "max_request_body 1KiB", "fingerprint none")
	for from, c := range map[string]struct {
		body, says, reason string
	}{
		"json /window 1h":   {`{"window":"next week"}`, "is ignored", `value "next week" is not a number; it must be a number of seconds that is more than 0`},
		"json /window 30m":  {`{"window":0}`, "is ignored", "is zero"},
		"json /window 59m":  {`{"window":1,"x":"` + strings.Repeat("x", 1024) + `"}`, "is ignored", "larger than max_request_body"},
		"header X-Window":   {`{}`, "is ignored", "is negative"},
		"json /longer 300s": {`{"longer":301}`, "gets the maximum", ""},
	} {
		p := start(t, conf{store: "store memory", site: lines(dedupBlock(key, "retention_from "+from), proxyTo(up))})
		for n := range 20 {
			wantAnswer(t, p.post(t, "/", "", c.body, header("X-Id", fmt.Sprint(from, n)), header("X-Window", "-1")), 201, fmt.Sprintf("run %d of ", len(up.all())))
		}
		granted := func(e entry) bool { return strings.Contains(e.text("msg"), c.says) }
		line := p.awaitLog(t, from, granted)
		if line.text("level") != "warn" || !strings.Contains(line.text("reason"), c.reason) || line.text("delivery_id") != from+"0" || !hexKey.MatchString(line.text("key")) {
			t.Errorf("%s: the line is %v", from, line)
		}
		if c.reason == "" && (line.text("asked") != "5m1s" || line.text("max") != "5m0s") {
			t.Errorf("%s: the line is %v", from, line)
		}
		if n := len(p.log.find(granted)); n > 10 {
			t.Errorf("%s: 20 requests have left %d lines", from, n)
		}
	}
}

// After the window the same key runs again, by the attempts' count too; the window of
// who runs counts, also where a claim that has lapsed is taken over.
func TestWindowOfTheRunCounts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(untilGone, answersStatus(500), answers201))
	c := conf{store: storeAt(server.Addr), site: lines("header >X-Key {http.dedup.key}", dedupBlock(
		"key header Idempotency-Key", "scope all", "fingerprint none", "lease 1500ms", "wait 4s", "max_attempts 9", "retention_from header X-Window"), proxyTo(up))}
	a, b := start(t, c), start(t, c)
	dying := a.postLater("/", "k", "body", header("X-Window", "3600"))
	up.awaitRuns(t, "k", 1)
	a.kill(t)
	<-dying.done

	taken := b.post(t, "/", "k", "body", header("X-Window", "600"))
	wantFresh(t, taken, 500, "run 2 of k")
	key := taken.Header.Get("X-Key")
	if kept := b.keptFor(t, key); kept != 10*time.Minute {
		t.Errorf("a run that was taken over, and released, is kept for %s", kept)
	}
	last := b.post(t, "/", "k", "body", header("X-Window", "1"))
	wantFresh(t, last, 201, "run 3 of k")
	wantAttempt(t, up, "k", 3, "3")
	client := redisClient(t, server)
	eventually(t, "the window is over", func() bool { return client.Exists(t.Context(), recordIn(key)).Val() == 0 })
	wantFresh(t, b.post(t, "/", "k", "body"), 201, "run 4 of k")
	wantAttempt(t, up, "k", 4, "1")
}
