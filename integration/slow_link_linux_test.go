package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// slowRedis is a Redis in a network namespace of its own, behind a link with a limited rate.
type slowRedis struct {
	addr      string
	namespace string
	outer     string // the link's end on this side; the other end is "inner"
}

var slowRedises struct {
	sync.Mutex
	n int
}

// startSlowRedis skips the test where it cannot make a network namespace.
func startSlowRedis(t *testing.T, rate string, args ...string) *slowRedis {
	t.Helper()
	slowRedises.Lock()
	slowRedises.n++
	n := slowRedises.n
	slowRedises.Unlock()
	s := &slowRedis{namespace: fmt.Sprintf("dedup-%d-%d", os.Getpid(), n), outer: fmt.Sprintf("dd%d-%d", os.Getpid()%100000, n)}
	subnet := fmt.Sprintf("198.18.%d", (os.Getpid()*8+n)%256) // RFC 2544, for benchmarks
	s.addr = subnet + ".2:6379"
	for _, tool := range []string{"ip", "tc", "redis-server"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s in PATH", tool)
		}
	}
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", s.outer).Run()
		_ = exec.Command("ip", "netns", "del", s.namespace).Run()
	})
	for _, line := range []string{
		"ip netns add " + s.namespace,
		"ip link add " + s.outer + " type veth peer name inner netns " + s.namespace,
		"ip addr add " + subnet + ".1/24 dev " + s.outer,
		"ip link set " + s.outer + " up",
		"ip -n " + s.namespace + " addr add " + subnet + ".2/24 dev inner",
		"ip -n " + s.namespace + " link set inner up",
		"tc qdisc replace dev " + s.outer + " root tbf rate " + rate + " burst 64kb latency 200ms",
		"tc -n " + s.namespace + " qdisc replace dev inner root tbf rate " + rate + " burst 64kb latency 200ms",
	} {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no network namespace with a slow link: %s: %v: %s", line, err, out)
		}
	}
	server := exec.Command("ip", append([]string{
		"netns", "exec", s.namespace, "redis-server", "--port", "6379", "--bind", subnet + ".2",
		"--protected-mode", "no", "--save", "", "--dir", t.TempDir(),
	}, args...)...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	eventually(t, "the slow redis listens", func() bool {
		conn, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return s
}

// answersWhole answers with a body whose length it declares.
func answersWhole(size int) answering {
	return func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.WriteString(w, n.text()+strings.Repeat(".", size-len(n.text())))
	}
}

// Together, the responses need many times the timeout of an operation, and each of them several times.
// All are stored, other keys go on, and duplicates are answered on every replica.
func TestLargeResponsesOverASlowLink(t *testing.T) {
	t.Parallel()
	const large, size = 8, 2 << 20
	redis := startSlowRedis(t, "80mbit")
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if strings.HasPrefix(n.Key, "large") {
			answersWhole(size)(w, r, n)
			return
		}
		answers201(w, r, n)
	})
	site := lines(dedupBlock("wait 30s"), proxyTo(up))
	p := start(t, conf{store: storeAt(redis.addr), site: site})
	other := start(t, conf{store: storeAt(redis.addr), site: site})
	first := make([]*pending, large)
	for n := range first {
		first[n] = p.postLater("/", fmt.Sprint("large ", n), "body")
	}
	up.awaitRuns(t, "large 0", 1)
	for n := range 20 {
		wantFresh(t, p.post(t, "/", fmt.Sprint("small ", n), "body"), 201, fmt.Sprintf("run 1 of small %d", n))
	}
	for n, answer := range replies(t, first) {
		if answer.Status != 200 || len(answer.Body) != size {
			t.Fatalf("the first client of large %d got %d with %d bytes", n, answer.Status, len(answer.Body))
		}
		for name, replica := range map[string]*caddy{"the same": p, "another": other} {
			got := replica.post(t, "/", fmt.Sprint("large ", n), "body")
			if got.Status != 200 || got.Body != answer.Body || got.Header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("a duplicate of large %d on %s replica got %d with %d bytes", n, name, got.Status, len(got.Body))
			}
		}
		up.wantRuns(t, fmt.Sprint("large ", n), 1)
	}
}

// The client has its response, but the process stops before all of it is in Redis: the next process knows
// that the request was executed.
func TestStopBeforeALargeResponseIsStored(t *testing.T) {
	t.Parallel()
	redis := startSlowRedis(t, "8mbit")
	up := startUpstream(t, answersWhole(7<<20))
	c := conf{store: storeAt(redis.addr), global: "grace_period 3s", site: lines(dedupBlock("on_unknown release", "max_response_body 8MiB"), proxyTo(up))}
	p := start(t, c)
	running := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	p.terminate(t)
	if got := running.reply(t); got.Status != 200 || len(got.Body) != 7<<20 {
		t.Errorf("the client got %d with %d bytes", got.Status, len(got.Body))
	}
	p.awaitExit(t)
	wantProblem(t, start(t, c).post(t, "/", "k", "body"), 409, "response_not_kept")
	up.wantRuns(t, "k", 1)
}
