package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// These are the known attacks on a proxy that replays responses, one test each.

// verifying is an upstream that knows genuine deliveries by their signature.
func verifying(status int) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Header.Get("X-Hub-Signature-256") != "sha256=genuine" {
			answersStatus(status)(w, r, n)
			return
		}
		answers201(w, r, n)
	}
}

// Attack: a forged delivery ID is burned before the signature is verified.
func TestAttackForgedDeliveryIDIsNotBurned(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403} {
		up := startUpstream(t, verifying(status))
		p := start(t, conf{store: "store memory", site: lines(
			"handle /hook {", "dedup github", proxyTo(up), "}",
			"handle /api {", "dedup", proxyTo(up), "}")})
		for path, id := range map[string]string{"/hook": "X-GitHub-Delivery", "/api": "Idempotency-Key"} {
			forged := []option{header(id, path), header("X-Hub-Signature-256", "sha256=forged")}
			genuine := []option{header(id, path), header("X-Hub-Signature-256", "sha256=genuine")}
			for range 3 {
				wantAnswer(t, p.post(t, path, "", "body", forged...), status, fmt.Sprintf("run %d of %s", len(up.runs(path)), path))
			}
			first := p.post(t, path, "", "body", genuine...)
			wantFresh(t, first, 201, "run 4 of "+path)
			wantReplay(t, p.post(t, path, "", "body", genuine...), first)
			up.wantRuns(t, path, 4)
		}
	}
}

// The forged one is still in flight when the genuine one comes: that one waits, and
// then it runs.
func TestAttackForgedDeliveryInFlightDelaysAtMost(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	answer := verifying(401)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.N == 1 {
			<-g.opened
		}
		answer(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup github", proxyTo(up))})
	forged, beside := besideForged(t, p, up)
	g.open()
	wantAnswer(t, forged.reply(t), 401, "run 1 of d")
	first := beside.reply(t)
	wantFresh(t, first, 201, "run 2 of d")
	wantReplay(t, p.post(t, "/", "", "body", genuineD...), first)
}

// genuineD makes a delivery the genuine one of d: it is signed.
var genuineD = []option{header("X-GitHub-Delivery", "d"), header("X-Hub-Signature-256", "sha256=genuine")}

// besideForged begins a forged delivery of d, and the genuine one while that is in flight.
func besideForged(t *testing.T, p *caddy, up *upstream) (forged, genuine *pending) {
	t.Helper()
	forged = p.postLater("/", "", "body", header("X-GitHub-Delivery", "d"))
	up.awaitRuns(t, "d", 1)
	genuine = p.postLater("/", "", "body", genuineD...)
	p.awaitWaiting(t, 1, genuine)
	return forged, genuine
}

// The answer to the forged one is a stream, and a response handler shows it as a success: it
// is about the forged one all the same, and the genuine one does not follow it.
func TestAttackForgedDeliveryIsAnsweredByAMaskedStream(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	answer := verifying(401)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.N > 1 {
			answer(w, r, n)
			return
		}
		w.WriteHeader(401)
		fmt.Fprint(w, "forged")
		w.(http.Flusher).Flush()
		<-g.opened
	})
	p := start(t, conf{store: "store memory", site: lines("dedup github",
		"reverse_proxy "+up.addr+" {", "flush_interval -1", "@forged status 401", "handle_response @forged {", "copy_response 200", "}", "}")})
	forged, beside := besideForged(t, p, up)
	g.open()
	wantAnswer(t, forged.reply(t), 200, "forged")
	wantFresh(t, beside.reply(t), 201, "run 2 of d")
}

// Where the proxy itself verifies, nothing is claimed before.
func TestAttackUnauthenticatedRequestClaimsNothing(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"basic_auth {", "ali "+passwordHash, "}", keyHeader, "dedup", proxyTo(up))})
	if got := p.post(t, "/", "k", "body"); got.Status != 401 || got.Header.Get("X-Key") != "" || got.executionID() != "" {
		t.Errorf("without credentials: got %d %v", got.Status, got.Header)
	}
	up.wantRuns(t, "k", 0)
	as := func(r *http.Request) { r.SetBasicAuth("ali", "open sesame") }
	first := p.post(t, "/", "k", "body", as)
	wantFresh(t, first, 201, "run 1 of k")
	if got := p.post(t, "/", "k", "body"); got.Status != 401 || strings.Contains(got.Body, "run 1") {
		t.Errorf("without credentials a duplicate got %d %q", got.Status, got.Body)
	}
	wantReplay(t, p.post(t, "/", "k", "body", as), first)
}

// Attack: one tenant replays another's stored response.
func TestAttackOneTenantReplaysAnothersResponse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.URI == "/plain" {
			answers201(w, r, n)
			return
		}
		fmt.Fprintf(w, "balance of %q %q", n.Header.Get("Authorization"), n.Header.Get("X-Api-Key"))
	})
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	tenants := map[string][]option{
		"nobody":        nil,
		"a token":       {header("Authorization", "Bearer token-of-a")},
		"another token": {header("Authorization", "Bearer token-of-b")},
		"an API key":    {header("X-Api-Key", "token-of-a")},
		"a field":       {header("X-Auth-Token", "token-of-a")},
		"another field": {header("X-Auth-Token", "token-of-b")},
		"an account":    {header("Stripe-Account", "acct-of-a")},
		"both":          {header("Authorization", "Bearer token-of-a"), header("X-Api-Key", "token-of-b")},
		"two tokens":    {header("Authorization", "Bearer token-of-a", "Bearer token-of-b")},
		"one of two":    {header("Authorization", "Bearer token-of-a, Bearer token-of-b")},
	}
	own := make(map[string]reply)
	for name, options := range tenants {
		own[name] = p.post(t, "/", "k", "body", options...)
		if own[name].replayed() {
			t.Errorf("%s is replayed another tenant's response: %q", name, own[name].Body)
		}
	}
	for name, options := range tenants {
		wantReplay(t, p.post(t, "/", "k", "body", options...), own[name])
	}
	up.wantRuns(t, "k", len(tenants))

	// Who they are is hashed. (These answers show it, which is the upstream's
	// doing: other responses are looked at here.)
	redisClient(t, server).FlushAll(context.Background())
	p.post(t, "/plain", "k", "body", tenants["both"]...)
	if contents := redisContents(t, redisClient(t, server)); strings.Contains(contents, "token-of-") || !strings.Contains(contents, fmt.Sprintf("run %d of k", len(tenants)+1)) {
		t.Errorf("the store shows a credential, or not what is kept: %q", contents)
	}
	if strings.Contains(p.log.String(), "token-of-") {
		t.Error("the log shows a credential")
	}
}

// Attack: an over-broad key swallows fan-out.
func TestAttackBroadKeySwallowsFanOut(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup github", proxyTo(up))})
	// GitHub sends an event to every hook under one and the same delivery ID.
	hooks := []struct {
		path, hook, host string
	}{
		{"/ci", "1", "a.test"}, {"/ci", "2", "a.test"}, {"/chat", "1", "a.test"}, {"/ci", "1", "b.test"}, {"/ci", "", "a.test"},
	}
	firsts := make([]reply, len(hooks))
	send := func(i int) reply {
		options := []option{header("X-GitHub-Delivery", "d"), host(hooks[i].host)}
		if hooks[i].hook != "" {
			options = append(options, header("X-GitHub-Hook-ID", hooks[i].hook))
		}
		return p.post(t, hooks[i].path, "", "body", options...)
	}
	for i := range hooks {
		firsts[i] = send(i)
		wantFresh(t, firsts[i], 201, fmt.Sprintf("run %d of d", i+1))
	}
	for i := range hooks {
		wantReplay(t, send(i), firsts[i])
	}
	up.wantRuns(t, "d", len(hooks))
}

// Attack: a session leaks by a replayed Set-Cookie.
func TestAttackSessionLeaksByReplayedSetCookie(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Add("Set-Cookie", "session=s3cret; HttpOnly")
		w.Header().Add("Set-Cookie", "csrf=s3cret")
		w.Header().Set("Proxy-Authenticate", "s3cret")
		if n.Key == "slow" {
			<-g.opened
		}
		answers201(w, r, n)
	})
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	first := p.post(t, "/", "k", "body")
	if len(first.Header["Set-Cookie"]) != 2 {
		t.Errorf("the first client got the cookies %q", first.Header["Set-Cookie"])
	}
	running := p.postLater("/", "slow", "body")
	up.awaitRuns(t, "slow", 1)
	waiting := p.postLater("/", "slow", "body")
	p.awaitWaiting(t, 1, waiting)
	g.open()
	replays := []reply{p.post(t, "/", "k", "body"), waiting.reply(t)}
	wantReplay(t, replays[0], first)
	wantReplay(t, replays[1], running.reply(t))
	for _, got := range replays {
		if strings.Contains(fmt.Sprint(got.Header), "s3cret") {
			t.Errorf("a replay carries the first client's session: %v", got.Header)
		}
	}
	if strings.Contains(redisContents(t, redisClient(t, server)), "s3cret") {
		t.Error("the store keeps a session")
	}
}

// Attack: memory is exhausted by unique keys and oversized bodies.
func TestAttackMemoryIsExhausted(t *testing.T) {
	t.Parallel()
	t.Run("by unique keys", func(t *testing.T) {
		t.Parallel()
		up := startUpstream(t, answers201)
		p := start(t, conf{store: "store memory", dedup: limits("memory_store 64KiB"), site: lines("dedup", proxyTo(up))})
		first := p.post(t, "/", "first", "body")
		taken := 0
		for ; ; taken++ {
			got := p.post(t, "/", fmt.Sprint("unique ", taken), "body")
			if got.Status == 503 {
				wantProblem(t, got, 503, "overloaded")
				wantRetryAfter(t, got)
				break
			}
			if taken > 1000 {
				t.Fatal("there is no limit")
			}
		}
		up.wantRuns(t, fmt.Sprint("unique ", taken), 0)
		wantReplay(t, p.post(t, "/", "first", "body"), first) // nothing was evicted for them
	})
	t.Run("by oversized keys", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t)
		up := startUpstream(t, answers201)
		p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
		wantProblem(t, p.post(t, "/", strings.Repeat("k", 256), "body"), 400, "idempotency_key_invalid")
		for _, key := range []string{"k", strings.Repeat("k", 255)} {
			wantFresh(t, p.post(t, "/", key, "body", header("Authorization", strings.Repeat("t", 4000))), 201, "run 1 of "+key)
		}
		for _, name := range redisClient(t, server).Keys(context.Background(), "*").Val() {
			if len(name) != len(recordIn(strings.Repeat("0", 64))) {
				t.Errorf("the store's name %q grows with what clients send", name)
			}
		}
	})
	t.Run("by oversized bodies", func(t *testing.T) {
		t.Parallel()
		large := strings.Repeat("x", 100_000)
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) { fmt.Fprint(w, large) })
		p := start(t, conf{store: "store memory", dedup: limits("buffered 300KiB"), site: lines(
			dedupBlock("max_request_body 10KiB", "max_response_body 10KiB"), proxyTo(up))})
		for n := range 20 { // of requests and responses, each of which would fit into the limit
			key := fmt.Sprint(n)
			wantProblem(t, p.post(t, "/", key, large), 413, "request_too_large")
			up.wantRuns(t, key, 0)
			wantFresh(t, p.post(t, "/", key, "small"), 200, large)
			wantProblem(t, p.post(t, "/", key, "small"), 409, "response_not_kept")
			up.wantRuns(t, key, 1)
		}
	})
}

// Attack: slow senders hold claims.
func TestAttackSlowSendersHoldClaims(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	var slow []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		whole := string(rawPost("/", []byte("body"), "Idempotency-Key: k"))
		whole = strings.Replace(whole, "Host: raw.test", "Host: dedup.test", 1)
		if _, err := io.WriteString(conn, whole[:len(whole)-2]); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	eventually(t, "the slow requests are being read", func() bool {
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		return strings.Count(dump, "exchange.(*exchange).identify") >= len(slow)
	})
	if n := redisClient(t, server).DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("the store has %d records of requests whose bodies are not there", n)
	}
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)

	// One sends the rest after all, the others go away.
	for _, conn := range slow[1:] {
		conn.Close()
	}
	if _, err := io.WriteString(slow[0], "dy"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(slow[0])
	if err != nil || !strings.Contains(string(answer), "Idempotent-Replayed: true") || !strings.HasSuffix(string(answer), "run 1 of k") {
		t.Errorf("the slow sender got %q, %v", answer, err)
	}
	up.wantRuns(t, "k", 1)
}

// Attack: slow senders keep the turns in which bodies are parsed. Here the body is larger
// than may be held, and nothing needs it: it is read at its sender's pace, and parsed by
// nobody.
func TestAttackSlowSendersKeepNobodyFromParsing(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		dedupBlock("key header Idempotency-Key", "key json /id", "fingerprint none", "max_request_body 1KiB"), proxyTo(up))})
	slow := 4 * runtime.NumCPU() // more than there are turns
	for n := range slow {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		whole := rawPost("/", make([]byte, 2048), fmt.Sprint("Idempotency-Key: slow ", n))
		if _, err := conn.Write(whole[:len(whole)-2000]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the slow requests are being read", func() bool {
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		return strings.Count(dump, "exchange.(*exchange).identify") >= slow
	})
	wantFresh(t, p.post(t, "/", "", `{"id": "k"}`), 201, "run 1 of ")
}

// Attack: the ID header is stripped on the way.
func TestAttackIDHeaderIsStripped(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("log",
		"handle /pass {", "dedup", proxyTo(up), "}",
		"handle /hook {", "dedup github", proxyTo(up), "}",
		"handle /reject {", dedupBlock("on_missing reject"), proxyTo(up), "}",
		"handle /hook/reject {", "dedup github {\non_missing reject\n}", proxyTo(up), "}",
		"handle /content {", dedupBlock("key header Idempotency-Key", "key content"), proxyTo(up), "}")})

	wantFresh(t, p.post(t, "/pass", "", "body"), 201, "run 1 of ")
	wantFresh(t, p.post(t, "/hook", "", "body"), 201, "run 2 of ")
	p.awaitLog(t, "that two requests had no key", func(e entry) bool {
		return e.text("dedup_outcome") == "missing"
	})
	for _, path := range []string{"/reject", "/hook/reject"} {
		wantProblem(t, p.post(t, path, "", "body"), 400, "idempotency_key_missing")
	}
	up.wantRuns(t, "", 2)

	first := p.post(t, "/content", "", `{"event":1}`)
	wantFresh(t, first, 201, "run 3 of ")
	wantReplay(t, p.post(t, "/content", "", `{ "event": 1 }`), first)
	wantFresh(t, p.post(t, "/content", "", `{"event":2}`), 201, "run 4 of ")
}
