package integration

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// startProxyCommand runs `caddy-dedup proxy` before an upstream.
func startProxyCommand(t *testing.T, up *upstream, args ...string) *caddy {
	t.Helper()
	return startProxyIn(t, shortTempDir(t), up, args...)
}

// startProxyIn is startProxyCommand with a directory for its data.
func startProxyIn(t *testing.T, dir string, up *upstream, args ...string) *caddy {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	p := startProcess(t, dir, append([]string{"proxy", "--from", addr, "--to", up.addr}, args...)...)
	p.addr, p.conf.dir = addr, dir
	eventually(t, "the proxy listens", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("the proxy ended: %v\n%s", p.err, p.log)
		default:
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		conn.Close()
		return true
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
		if err == nil {
			wantReplay(t, got, first)
		}
		return err == nil
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

func TestProxyCommandMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no target":        {[]string{"--from", ":8080"}, []string{"--to"}},
		"unknown provider": {[]string{"--from", "127.0.0.1:1", "--to", "localhost:3000", "--provider", "gitbuh"}, []string{"gitbuh", "github"}},
		"wrong URL":        {[]string{"--from", "127.0.0.1:1", "--to", "localhost:3000", "--redis", "http://u:open-sesame@localhost"}, []string{"redis://"}},
	} {
		output, code := command(t, shortTempDir(t), append([]string{"proxy"}, c.args...)...)
		if code == 0 {
			t.Errorf("%s: it ended well", name)
		}
		for _, word := range c.says {
			if !strings.Contains(output, word) {
				t.Errorf("%s: it does not say %q:\n%s", name, word, output)
			}
		}
		if strings.Contains(output, "open-sesame") {
			t.Errorf("%s: it shows the password:\n%s", name, output)
		}
	}
}
