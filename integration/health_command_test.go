package integration

import (
	"context"
	"fmt"
	"net"
	"os/exec"
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

// No store is open where no dedup stands on a route, and so nothing is ready.
func TestHealthCommandWithoutDedup(t *testing.T) {
	t.Parallel()
	p := start(t, conf{store: "store file", site: "respond done 201"})
	mustSay(t, p.health(t, 1), "no store is open")
	p.health(t, 0, "--live")
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

// It finds the admin API as `keys` does, and needs no shell, no other program and no file.
func TestHealthCommandFindsTheAdminAPI(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	a := startProxyCommand(t, up)
	nowhere := "CADDY_ADMIN=unix/" + shortTempDir(t) + "/nobody.sock"
	healthIn := func(env ...string) (string, int) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, "health")
		cmd.Env = append([]string{"PATH=", "HOME=" + a.conf.dir, "XDG_CONFIG_HOME=" + a.conf.dir + "/config"}, env...)
		output, _ := cmd.CombinedOutput() // a status of 1 is an answer
		return string(output), cmd.ProcessState.ExitCode()
	}
	data := "XDG_DATA_HOME=" + a.conf.dir + "/data"
	if output, code := healthIn(data); code != 0 || !strings.Contains(output, "ready: file store") {
		t.Errorf("beside a proxy it ended with %d:\n%s", code, output)
	}
	if output, code := healthIn(data, nowhere); code != 1 {
		t.Errorf("with a CADDY_ADMIN where nobody is it ended with %d:\n%s", code, output)
	}
	startProxyIn(t, a.conf.dir, up, "--redis", strings.TrimPrefix(redisStore(t), "store redis "))
	if output, code := healthIn(data); code != 2 || !strings.Contains(output, "--address") {
		t.Errorf("beside two proxies it ended with %d:\n%s", code, output)
	}
	home := shortTempDir(t)
	if output, code := healthIn("XDG_DATA_HOME=" + home); code != 1 || !strings.Contains(output, "no admin API of caddy-dedup answers") {
		t.Errorf("beside no process it ended with %d:\n%s", code, output)
	}
	if files := filesIn(t, home); len(files) > 0 {
		t.Errorf("it has written %v", files)
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
