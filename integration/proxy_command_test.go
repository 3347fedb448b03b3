package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// startProxyCommand runs `caddy-dedup proxy` before an upstream.
func startProxyCommand(t *testing.T, up *upstream, args ...string) *caddy {
	t.Helper()
	return startProxyIn(t, shortTempDir(t), up, args...)
}

// startProxyIn is startProxyCommand with a directory for its data.
func startProxyIn(t *testing.T, dir string, up *upstream, args ...string) *caddy {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	p := startProcess(t, dir, append([]string{"proxy", "--from", addr, "--to", up.addr}, args...)...)
	p.addr, p.conf.dir = addr, dir
	// That something listens there says nothing: before it starts, the command itself does so
	// for a moment, to see whether the port is free.
	eventually(t, "the proxy has started", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("the proxy ended: %v\n%s", p.err, p.log)
		default:
		}
		return strings.Contains(p.log.String(), "caddy-dedup protects ") || strings.Contains(p.log.String(), "caddy-dedup observes ")
	})
	return p
}

func TestProxyCommandNeedsNoFile(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startProxyCommand(t, up)
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
	if got := up.nth(t, "k", 1).Host; got != "dedup.test" { // a signature may cover it
		t.Errorf("the service saw the host %q", got)
	}
	said := p.log.String()
	for _, word := range []string{"Idempotency-Key", p.addr, up.addr, filepath.Join(p.conf.dir, "data")} {
		if !strings.Contains(said, word) {
			t.Errorf("on start it does not say %q", word)
		}
	}
	// It stops as Caddy does, and keeps its state.
	p.terminate(t)
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	q := startProcess(t, p.conf.dir, "proxy", "--from", p.addr, "--to", up.addr)
	q.addr = p.addr
	eventually(t, "the proxy answers again", func() bool {
		got, err := try(oneShot, q.newPost("/", "k", "body"))
		if err != nil || got.Status == http.StatusServiceUnavailable { // until its store is open
			return false
		}
		wantReplay(t, got, first)
		return true
	})
}

func TestProxyCommandForAProviderOnRedis(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	url := strings.TrimPrefix(redisStore(t), "store redis ")
	a := startProxyCommand(t, up, "--provider", "github", "--redis", url)
	b := startProxyCommand(t, up, "--provider", "github", "--redis", url)
	options := []option{header("X-GitHub-Delivery", "1"), header("X-GitHub-Hook-ID", "7"), host("hooks.test")}
	first := a.post(t, "/", "", "{}", options...)
	wantFresh(t, first, 201, "run 1 of 1")
	wantReplay(t, b.post(t, "/", "", "{}", options...), first)
	for _, word := range []string{"github", strings.TrimPrefix(url, "redis://")} {
		if !strings.Contains(a.log.String(), word) {
			t.Errorf("on start it does not say %q", word)
		}
	}
	p := startProxyCommand(t, up, "--redis", strings.Replace(url, "redis://", "redis://ali:open-sesame@", 1))
	if strings.Contains(p.log.String(), "open-sesame") {
		t.Error("on start it shows the password of its Redis")
	}
}

// The service gets a secret of the flags, and nothing else shows it.
func TestProxyCommandShowsNoSecret(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	admin := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	args := []string{"--header-up", "Authorization: Bearer open-sesame", "--header-down", "X-Session: open-sesame", "--admin", admin}
	p := startProxyCommand(t, up, append(args, "--debug")...)
	first := p.post(t, "/", "k", "body")
	if got := up.nth(t, "k", 1).Header.Get("Authorization"); got != "Bearer open-sesame" {
		t.Errorf("the service got the Authorization %q", got)
	}
	if got := first.Header.Get("X-Session"); got != "open-sesame" {
		t.Errorf("the client got the X-Session %q", got)
	}
	if said := p.log.String(); strings.Contains(said, "Bearer open-sesame") || !strings.Contains(said, "{env.AUTHORIZATION}") {
		t.Errorf("the log with the configuration shows the secret, or is not there:\n%s", said)
	}
	got, err := http.Get("http://" + admin + "/config/")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	config, err := io.ReadAll(got.Body)
	if err != nil || strings.Contains(string(config), "sesame") || !strings.Contains(string(config), "{env.AUTHORIZATION}") {
		t.Errorf("the admin API shows the secret, or not its placeholder: %v, %s", err, config)
	}
	text, code := command(t, p.conf.dir, append([]string{"proxy", "--from", ":8080", "--to", up.addr, "--print"}, args...)...)
	if code != 0 || strings.Contains(text, "sesame") || !strings.Contains(text, "header_up Authorization `Bearer {env.AUTHORIZATION}`") {
		t.Errorf("--print ended with %d, and shows\n%s", code, text)
	}
}

func TestTwoProxyCommandsOnOneMachine(t *testing.T) {
	t.Parallel()
	dir, a, b := shortTempDir(t), startUpstream(t, answers201), startUpstream(t, answersStatus(202))
	p, q := startProxyIn(t, dir, a), startProxyIn(t, dir, b)
	first, second := p.post(t, "/", "k", "body"), q.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")
	wantFresh(t, second, 202, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	wantReplay(t, q.post(t, "/", "k", "body"), second)
}

// A request that does not end well has one line of ours; the others have one only in the
// access log.
func TestProxyCommandShowsWhatIsNotHealthy(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if r.URL.Path == "/fails" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		answers201(w, r, n)
	})
	for name, c := range map[string]struct {
		args                    []string
		healthy, reused, failed int
	}{
		"without an access log": {nil, 0, 1, 1},
		"with an access log":    {[]string{"--access-log"}, 1, 2, 2},
	} {
		p := startProxyCommand(t, up, c.args...)
		p.post(t, "/"+t.Name(), name, "body")
		p.post(t, "/"+t.Name(), name, "another body")
		p.post(t, "/fails", name, "body")
		of := func(path, status string) int {
			return len(p.log.find(func(e entry) bool {
				request, _ := e["request"].(map[string]any)
				return (e["path"] == path || request["uri"] == path) && e.text("status") == status
			}))
		}
		eventually(t, name+": the lines are there", func() bool {
			return of("/"+t.Name(), "201") == c.healthy && of("/"+t.Name(), "422") == c.reused && of("/fails", "500") == c.failed
		})
	}
}

func TestProxyCommandOverHTTPS(t *testing.T) {
	t.Parallel()
	hosts := make(chan string, 10)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host + " " + r.Header.Get("X-Shop")
		w.WriteHeader(http.StatusCreated)
	}))
	defer secure.Close()
	port, release := freeport.Claim(t)
	release() // HTTP/3 is served over UDP
	addr := fmt.Sprintf("localhost:%d", port)
	p := startProcess(t, shortTempDir(t), "proxy", "--from", fmt.Sprintf("https://:%d", port), "--to", secure.URL, "--insecure", "--disable-redirects",
		"--header-up", "X-Shop: a b", "--change-host-header", "--access-log")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // its CA is not known here
	post := func() (reply, error) {
		r, err := http.NewRequest("POST", "https://"+addr+"/", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "k")
		return try(client, r)
	}
	var first reply
	eventually(t, "the proxy answers", func() (ok bool) {
		got, err := post()
		first = got
		return err == nil && got.Status != 503 // until its store is open
	})
	if first.Status != 201 {
		t.Fatalf("the answer is %d: %s", first.Status, first.Body)
	}
	if got, want := <-hosts, strings.TrimPrefix(secure.URL, "https://")+" a b"; got != want {
		t.Errorf("the service saw %q; want %q", got, want)
	}
	again, err := post()
	if err != nil {
		t.Fatal(err)
	}
	wantReplay(t, again, first)
	elsewhere, err := http.NewRequest("POST", "https://"+addr+"/", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere.Host = "other.test"
	if got, err := try(client, elsewhere); err != nil || got.Status != 421 {
		t.Errorf("another host gets %d, %v", got.Status, err)
	}
	p.awaitLog(t, "the access log entry of the request for another host", func(e entry) bool { return e.text("status") == "421" })
	said := p.log.String()
	if !strings.Contains(said, "curl -k") || !strings.Contains(said, "https://"+addr+"/") {
		t.Error("on start it does not say how to try it")
	}
	if strings.Contains(said, "installing root certificate") {
		t.Error("it makes the machine trust its own CA")
	}
}

// What the container may have, the process keeps to, whichever way it is run.
func TestProxyCommandKeepsToTheMemoryThatThereIs(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("Caddy finds a limit in cgroups, and how much there is, on Linux")
	}
	up := startUpstream(t, answers201)
	health := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	startProxyCommand(t, up, "--health", health)
	var body []byte
	for _, path := range []string{"/live", "/ready", "/metrics"} {
		got, err := http.Get("http://" + health + path)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if body, err = io.ReadAll(got.Body); err != nil || got.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, got.StatusCode, err)
		}
	}
	m := regexp.MustCompile(`(?m)^go_gc_gomemlimit_bytes (\S+)$`).FindSubmatch(body)
	if m == nil {
		t.Fatal("the metrics do not say what the limit is")
	}
	if limit, err := strconv.ParseFloat(string(m[1]), 64); err != nil || limit > 1<<50 {
		t.Errorf("the limit is %s bytes, %v", m[1], err)
	}
}

// A container without a shell follows the variables of its platform. The socket of the admin API is
// made where a placeholder says.
func TestProxyCommandFollowsVariables(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir, port := shortTempDir(t), freeport.Of(t)
	at := filepath.Join(dir, "run", "dedup")
	p := startProcessWith(t, dir, append(homeEnv(dir), fmt.Sprint("TEST_PORT=", port), "RUNTIME_DIRECTORY="+at), binary, "proxy",
		"--from", "127.0.0.1:{env.TEST_PORT}", "--to", up.addr, "--path", "/a,/b", "--admin", "unix/{env.RUNTIME_DIRECTORY}/admin.sock|0600")
	p.addr = fmt.Sprintf("127.0.0.1:%d", port)
	eventually(t, "the proxy has started", func() bool { return strings.Contains(p.log.String(), "caddy-dedup protects ") })
	for _, path := range []string{"/a", "/b"} {
		first := p.post(t, path, "k"+path[1:], "body")
		wantFresh(t, first, 201, "run 1 of k"+path[1:])
		wantReplay(t, p.post(t, path, "k"+path[1:], "body"), first)
	}
	if output, code := command(t, dir, "keys", "list", "--address", "unix/"+adminSocket(at)); code != 0 {
		t.Errorf("the commands end with %d: %s", code, output)
	}
	mustSay(t, p.log.String(), "admin:  unix/"+adminSocket(at))
}

// A mistake is said before anything runs, with the flag that has it and without the password.
func TestProxyCommandMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		says string
	}{
		{"--from :8080", `"to"`},
		{"--from :8080 --to localhost:3000 --health :8080", "--health: :8080"},
		{"--from 127.0.0.1:1 --to localhost:3000 --redis redis://u:open-sesame@localhost:bad", "--redis: "},
		{"--from 127.0.0.1:1 --to localhost:3000 --redis redis://u:{env.TEST_NOT_SET}@localhost", "{env.TEST_NOT_SET} is empty"},
	} {
		output, code := command(t, shortTempDir(t), append([]string{"proxy"}, strings.Fields(c.args)...)...)
		if code == 0 || !strings.HasPrefix(output, "Error: ") || !strings.Contains(output, c.says) || strings.Contains(output, "sesame") {
			t.Errorf("proxy %s ended with %d, want %q:\n%s", c.args, code, c.says, output)
		}
	}
}
