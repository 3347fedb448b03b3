package integration

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// health runs `caddy-dedup health` beside the process, with its admin API named.
func (p *caddy) health(t *testing.T, want int, args ...string) string {
	t.Helper()
	output, code := command(t, p.conf.dir, append([]string{"health", "--address", "unix/" + adminSocket(p.conf.dir)}, args...)...)
	if code != want {
		t.Fatalf("health %q ended with %d, want %d:\n%s", args, code, want, output)
	}
	return output
}

// What a probe sees of a store that goes away, hangs and comes back, and of the process.
func TestHealthCommand(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	mustSay(t, p.health(t, 0), "ready: redis at "+server.Addr)
	mustSay(t, p.health(t, 0, "--live"), "live")

	server.Pause()
	// The store's own timeout is over before that of the command.
	mustSay(t, p.health(t, 1, "--timeout", "20s"), "Error: A store cannot be asked: redis at "+server.Addr)
	mustSay(t, p.health(t, 1, "--timeout", "1ms"), "not answered within 1ms")
	mustSay(t, p.health(t, 0, "--live"), "live")
	server.Resume()
	eventually(t, "it is ready again", func() bool {
		_, code := command(t, p.conf.dir, "health", "--address", "unix/"+adminSocket(p.conf.dir))
		return code == 0
	})

	p.terminate(t)
	p.awaitExit(t)
	mustSay(t, p.health(t, 1), "does not answer")
	mustSay(t, p.health(t, 1, "--live"), "does not answer")
}

// A port that takes connections and says nothing does not hold a probe up, and one that is
// no caddy-dedup is not taken for one.
func TestHealthCommandAsksTheRightProcess(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	other := startUpstream(t, answers201)
	for _, live := range [][]string{nil, {"--live"}} {
		output, code := command(t, shortTempDir(t), append([]string{"health", "--timeout", "200ms", "--address", silent.Addr().String()}, live...)...)
		if code != 1 || !strings.Contains(output, "not answered within 200ms") || strings.Contains(output, "Client.Timeout") { // which is longer
			t.Errorf("before silence, health %v ended with %d:\n%s", live, code, output)
		}
		output, code = command(t, shortTempDir(t), append([]string{"health", "--address", other.addr}, live...)...)
		if code != 1 || !strings.Contains(output, "does not answer as the admin API of a caddy-dedup") {
			t.Errorf("before another server, health %v ended with %d:\n%s", live, code, output)
		}
	}
}

func TestHealthCommandMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"now"}, `no argument such as "now"`},
		{[]string{"--dead"}, "unknown flag: --dead"},
		{[]string{"--timeout", "0"}, "--timeout 0s is not accepted"},
		{[]string{"--timeout", "soon"}, `invalid argument "soon"`},
		{[]string{"--address", "localhost:2019-2020"}, `"localhost:2019-2020" is not an address`},
		{[]string{"--address", "a:b:c"}, `a:b:c is not an address that can be asked`},
	} {
		output, code := command(t, shortTempDir(t), append([]string{"health"}, c.args...)...)
		if code != 2 || !strings.Contains(output, c.says) {
			t.Errorf("%q ended with %d, want 2 and %q:\n%s", c.args, code, c.says, fmt.Sprintf("%.300s", output))
		}
	}
}
