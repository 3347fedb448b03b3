package integration

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// series are the series of a process and their values. Each has its name as Prometheus's
// text has it: the metric, and its labels in the order of their names.
type series map[string]float64

var sample = regexp.MustCompile(`(?m)^(caddy_dedup_\w+(?:\{[^}]*\})?) (\S+)$`)

// scrape asks the admin API for the metrics.
func (p *caddy) scrape(t *testing.T) series {
	t.Helper()
	status, text := p.askAdmin(t, "GET", "/metrics", "", "")
	if status != http.StatusOK {
		t.Fatalf("the metrics are answered %d %s", status, text)
	}
	found := make(series)
	for _, match := range sample.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			t.Fatalf("%s: %v", match[0], err)
		}
		found[match[1]] = value
	}
	return found
}

// since returns what counters have grown by, without those that have not.
func (s series) since(before series) series {
	grown := make(series)
	for name, value := range s {
		if d := value - before[name]; d != 0 && strings.Contains(name, "_total") {
			grown[name] = d
		}
	}
	return grown
}

func requests(provider, outcome string) string {
	return fmt.Sprintf(`caddy_dedup_requests_total{observed="false",outcome=%q,provider=%q}`, outcome, provider)
}

func runs(provider, result string) string {
	return fmt.Sprintf(`caddy_dedup_runs_total{provider=%q,result=%q}`, provider, result)
}

// scene is a process with a route for every outcome.
type scene struct {
	*caddy
	up      *upstream
	records *redistest.Server
	g       *gate
}

func startScene(t *testing.T, copies string) *scene {
	t.Helper()
	s := &scene{records: redistest.Start(t), g: newGate(t)}
	s.up = startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch {
		case strings.HasPrefix(n.Key, "slow"):
			<-s.g.opened
			answers201(w, r, n)
		case strings.HasPrefix(n.Key, "cut"):
			noAnswer(w, r, n)
		case strings.HasPrefix(n.Key, "broken"):
			answersStatus(500)(w, r, n)
		default:
			answers201(w, r, n)
		}
	})
	down := storeAt(fmt.Sprint("127.0.0.1:", freeport.Of(t)))
	s.caddy = start(t, conf{store: "store memory", dedup: "local_copies " + copies + "\nlimits {\nwaiters_per_key 1\n}", site: lines(
		keyHeader,
		s.route("/api", dedupBlock("force X-Force", "max_request_body 1KiB", "max_response_body 1KiB", "on_missing reject")),
		s.route("/open", "dedup"),
		s.route("/small", dedupBlock("max_response_body 1")),
		s.route("/reject", dedupBlock("wait off")),
		s.route("/hold", dedupBlock("on_unknown hold")),
		s.route("/once", dedupBlock("max_attempts 1")),
		s.route("/conflict", dedupBlock("on_duplicate conflict")),
		s.route("/acknowledge", dedupBlock("on_duplicate acknowledge")),
		s.route("/pass", dedupBlock("on_store_error pass", down)),
		s.route("/down", dedupBlock(down)),
		s.route("/redis", dedupBlock(storeAt(s.records.Addr))),
		s.route("/github", "dedup github"),
		s.route("/custom", dedupBlock("mode webhook", "key header Idempotency-Key")),
		"handle /unreached {", "dedup", fmt.Sprint("reverse_proxy 127.0.0.1:", freeport.Of(t)), "}",
	)})
	// Each store is looked at once at the start. One is down, which counts.
	s.awaitLog(t, "the look at the store that is down", func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "the store does not answer")
	})
	return s
}

func (s *scene) route(path, dedup string) string {
	return lines("handle "+path+"* {", dedup, proxyTo(s.up), "}")
}

// told is what a scene's step changes: the counters, and what the log says of the request.
type told struct {
	counts series
	// level and message are those of the line, "" for none.
	level, message string
	// provider is that of the line; execution says that it names one, and attempt which.
	provider  string
	execution bool
	attempt   string
	id        string
	code      string
}

// step is one request after what prepares it, and what it changes.
type step struct {
	prepare, do func(id string)
	want        told
}

// steps are the outcomes, one after the other. Each is one request, after those that
// prepare it.
func (s *scene) steps(t *testing.T) map[string]step {
	t.Helper()
	post := func(path, body string, options ...option) func(string) {
		return func(id string) { _, _ = try(oneShot, s.newPost(path, id, body, options...)) }
	}
	keyless := func(path string) func(string) {
		return func(string) { s.post(t, path, "", "body") }
	}
	refused := func(provider, outcome, level, code string, execution bool, attempt string) told {
		return told{
			counts: series{requests(provider, outcome): 1}, level: level, message: "refused a request", code: code,
			execution: execution, attempt: attempt,
		}
	}
	executed := func(provider, result string) series {
		return series{requests(provider, "executed"): 1, runs(provider, result): 1}
	}
	client := func(id string) { s.post(t, "/github", "", "{}", header("X-GitHub-Delivery", id)) }
	withFailure := func(t told, operation string) told {
		t.counts[fmt.Sprintf(`caddy_dedup_store_errors_total{operation=%q}`, operation)] = 1
		return t
	}
	return map[string]step{
		"executed":          {nil, post("/api", "body"), told{counts: executed("api", "kept")}},
		"released":          {nil, post("/api", "body"), told{counts: executed("api", "released"), level: "info", message: "released: ", execution: true, attempt: "1", id: "broken"}},
		"not sent":          {nil, post("/unreached", "body"), told{counts: executed("api", "not_sent"), level: "info", message: "released: ", execution: true, attempt: "1"}},
		"becomes held":      {nil, post("/hold", "body"), told{counts: executed("api", "held"), level: "warn", message: "held: ", execution: true, attempt: "1", id: "cut"}},
		"of a provider":     {nil, client, told{counts: executed("github", "kept")}},
		"of a provider two": {client, client, told{counts: series{requests("github", "replayed"): 1}}},
		"custom":            {nil, post("/custom", "body"), told{counts: executed("custom", "kept")}},
		"replayed":          {post("/api", "body"), post("/api", "body"), told{counts: series{requests("api", "replayed"): 1}}},
		"reused":            {post("/api", "body"), post("/api", "another"), refused("api", "reused", "info", "idempotency_key_reused", true, "1")},
		"held":              {post("/hold", "body"), post("/hold", "body"), func() told { w := refused("api", "held", "warn", "outcome_unknown", true, "1"); w.id = "cut"; return w }()},
		"exhausted": {post("/once", "body"), post("/once", "body"), func() told {
			w := refused("api", "exhausted", "warn", "attempts_exhausted", true, "1")
			w.id = "cut"
			return w
		}()},
		"missing":            {nil, keyless("/api"), refused("api", "missing", "info", "idempotency_key_missing", false, "0")},
		"missing and passes": {nil, keyless("/open"), told{counts: series{requests("api", "missing"): 1}}},
		"missing of a provider": {nil, func(string) { s.post(t, "/github", "", "{}") },
			told{counts: series{requests("github", "missing"): 1}, level: "info", message: "missing: ", provider: "github"}},
		"invalid":      {nil, func(string) { s.post(t, "/api", `"`, "body") }, refused("api", "invalid", "info", "idempotency_key_invalid", false, "0")},
		"too large":    {nil, post("/api", strings.Repeat("x", 2000)), refused("api", "too_large", "info", "request_too_large", false, "0")},
		"forced":       {post("/api", "body"), post("/api", "body", header("X-Force", "true")), told{counts: series{requests("api", "forced"): 1, runs("api", "kept"): 1}, level: "info", message: "forced: ", execution: true, attempt: "2"}},
		"conflict":     {post("/conflict", "body"), post("/conflict", "body"), refused("api", "conflict", "info", "duplicate_request", true, "1")},
		"acknowledged": {post("/acknowledge", "body"), post("/acknowledge", "body"), told{counts: series{requests("api", "acknowledged"): 1}}},
		"not kept":     {post("/small", "body"), post("/small", "body"), refused("api", "not_kept", "info", "response_not_kept", true, "1")},
		"unprotected":  {nil, post("/pass", "body"), withFailure(told{counts: series{requests("api", "unprotected"): 1}, level: "error", message: "unprotected: "}, "claim")},
		"store down":   {nil, post("/down", "body"), withFailure(refused("api", "store_unavailable", "error", "store_unavailable", false, "0"), "claim")},
		"unreadable": {func(id string) {
			key := recordIn(s.post(t, "/redis", id, "body").Header.Get("X-Key"))
			client := redisClient(t, s.records)
			client.Del(t.Context(), key)
			if err := client.Set(t.Context(), key, "not ours", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}, post("/redis", "body"), refused("api", "record_unreadable", "error", "record_unreadable", false, "0")},
	}
}

// Every request counts once, under its outcome, and what an operator has to know of it is
// one line in the log with all that is known.
func TestEveryOutcomeIsCountedAndLogged(t *testing.T) {
	t.Parallel()
	for _, copies := range []string{"off", "1MiB"} {
		t.Run("local copies "+copies, func(t *testing.T) {
			t.Parallel()
			s := startScene(t, copies)
			steps := s.steps(t)
			if copies != "off" {
				delete(steps, "unreadable") // its copy is read
			}
			s.playAll(t, steps)
		})
	}
}

func (s *scene) playAll(t *testing.T, steps map[string]step) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		step := steps[name]
		id := strings.ReplaceAll(step.want.id+" "+name, " ", "-")
		if step.prepare != nil {
			step.prepare(id)
		}
		before, lines := s.scrape(t), len(s.lines(id, step.want))
		step.do(id)
		var got series
		eventuallyEqual(t, name, step.want.counts, func() series { got = s.scrape(t).since(before); return got })
		if step.want.message == "" {
			continue
		}
		s.awaitLog(t, "the line about "+name, func(entry) bool { return len(s.lines(id, step.want)) > lines })
		found := s.lines(id, step.want)[lines:]
		if len(found) != 1 {
			t.Errorf("%s: %d lines are about it: %v", name, len(found), found)
		}
		line := found[0]
		if line.text("level") != step.want.level || line.text("code") != step.want.code || line.text("provider") != step.want.provider {
			t.Errorf("%s: the line is %v; want the level %s, the code %q and the provider %q", name, line, step.want.level, step.want.code, step.want.provider)
		}
		if keyed := uuidV7.MatchString(line.text("execution_id")); keyed != step.want.execution || line.text("attempt") != step.want.attempt {
			t.Errorf("%s: the line names the execution %q and the attempt %q: %v", name, line.text("execution_id"), line.text("attempt"), line)
		}
		if line.text("path") == "" || line.text("method") != "POST" || line.text("host") == "" {
			t.Errorf("%s: the line does not say which request it is: %v", name, line)
		}
	}
}

// lines are those that are about a step.
func (s *scene) lines(id string, want told) []entry {
	return s.log.find(func(e entry) bool {
		return want.message != "" && strings.HasPrefix(e.text("msg"), want.message) && e.text("code") == want.code &&
			(e.text("delivery_id") == id || e.text("delivery_id") == "")
	})
}

func eventuallyEqual(t *testing.T, name string, want series, get func() series) {
	t.Helper()
	var got series
	eventually(t, fmt.Sprintf("%s changes the counters by %v", name, want), func() bool {
		got = get()
		for series, value := range got { // one that is too high does not get better
			if value > want[series] {
				t.Fatalf("%s: the counters grew by %v, want %v", name, got, want)
			}
		}
		return maps.Equal(got, want)
	})
}

func TestRequestsInFlightAreMeasured(t *testing.T) {
	t.Parallel()
	s := startScene(t, "off")
	before := s.scrape(t)
	first := s.postLater("/api", "slow", "body")
	s.up.awaitRuns(t, "slow", 1)
	waiter := s.postLater("/api", "slow", "body")
	rejected := s.postLater("/reject", "slow rejected", "body")
	s.up.awaitRuns(t, "slow rejected", 1)
	eventually(t, "the gauges show what is in flight", func() bool {
		now := s.scrape(t)
		return now["caddy_dedup_in_flight"] == 2 && now["caddy_dedup_waiting"] == 1
	})
	wantProblem(t, s.post(t, "/reject", "slow rejected", "body"), 409, "request_in_flight")
	wantProblem(t, s.post(t, "/api", "slow", "body"), 503, "overloaded")
	s.awaitLog(t, "the overload", func(e entry) bool {
		return e.text("code") == "overloaded" && e.text("level") == "warn" && e.text("delivery_id") == "slow" && hexKey.MatchString(e.text("key"))
	})
	s.g.open()
	for _, r := range []*pending{first, waiter, rejected} {
		r.reply(t)
	}
	eventuallyEqual(t, "the scene", series{
		requests("api", "executed"): 2, requests("api", "waited"): 1, requests("api", "in_flight"): 1, requests("api", "overloaded"): 1,
		runs("api", "kept"): 2, `caddy_dedup_overloads_total{limit="waiters_per_key"}`: 1,
	}, func() series { return s.scrape(t).since(before) })
	now := s.scrape(t)
	for _, gauge := range []string{"caddy_dedup_in_flight", "caddy_dedup_waiting", "caddy_dedup_buffered_bytes"} {
		eventually(t, gauge+" is 0 again", func() bool { return s.scrape(t)[gauge] == 0 })
	}
	if now[`caddy_dedup_store_duration_seconds_count{operation="claim"}`] < 2 || now[`caddy_dedup_store_duration_seconds_sum{operation="settle"}`] <= 0 {
		t.Errorf("the store's operations are not measured: %v", now)
	}
}

// Counters go on over a reload, and a client that panics out of its run counts once.
func TestCountersGoOnOverAReload(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answers201, cutStream))
	site := lines(dedupBlock("force X-Force"), proxyTo(up))
	p := start(t, conf{store: "store file", site: site})
	before := p.scrape(t)["caddy_dedup_local_copies_bytes"]
	p.post(t, "/", "k", "body")
	p.post(t, "/", "k", "body")
	if now := p.scrape(t)["caddy_dedup_local_copies_bytes"]; before != 0 || now < 64 {
		t.Errorf("local copies have %v bytes, and %v before there was one", now, before)
	}
	eventually(t, "both are counted", func() bool {
		now := p.scrape(t)
		return now[requests("api", "executed")] == 1 && now[requests("api", "replayed")] == 1 && now[runs("api", "kept")] == 1
	})
	p.reload(t, lines("header X-New 1", site))
	reloaded := p.scrape(t)
	if reloaded[requests("api", "executed")] != 1 || reloaded[requests("api", "replayed")] != 1 {
		t.Errorf("after a reload the counters are %v", reloaded)
	}
	p.post(t, "/", "k", "body")
	_, _ = try(oneShot, p.newPost("/", "k", "body", header("X-Force", "true"))) // its response is cut off
	eventuallyEqual(t, "two more requests", series{requests("api", "replayed"): 1, requests("api", "forced"): 1, runs("api", "released"): 1},
		func() series { return p.scrape(t).since(reloaded) })
}

// Two handlers on one path count a request each: documented.
// The second one meets the key of the first, which releases it: 508 of a handler is an answer that was not sent.
func TestTwoHandlersOnAPathCountTwice(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("route {", "dedup", "dedup", proxyTo(up), "}")})
	p.post(t, "/", "k", "body")
	p.post(t, "/", "", "body", method("GET"))
	eventuallyEqual(t, "one request", series{requests("api", "executed"): 1, requests("api", "loop"): 1, runs("api", "not_sent"): 1}, func() series { return p.scrape(t).since(nil) })
}

func TestPromtoolReadsTheMetrics(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("DEDUP_PROMTOOL") != "" {
			t.Fatal(err)
		}
		t.Skip("no promtool in PATH (Debian's package prometheus)")
	}
	p := start(t, conf{store: "store memory", site: lines("dedup", "respond done 201")})
	p.post(t, "/", "k", "body")
	_, text := p.askAdmin(t, "GET", "/metrics", "", "")
	var ours []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "caddy_dedup_") {
			ours = append(ours, line)
		}
	}
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(strings.Join(ours, ""))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
