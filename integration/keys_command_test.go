package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// keys runs `caddy-dedup keys` with the admin API of the process.
func (p *caddy) keys(t *testing.T, want int, args ...string) string {
	t.Helper()
	given := []string{"keys"}
	if !slices.Contains(args, "--address") { // which stands once
		given = append(given, "--address", "unix/"+adminSocket(p.conf.dir))
	}
	output, code := command(t, p.conf.dir, append(given, args...)...)
	if code != want {
		t.Fatalf("keys %q ended with %d, want %d:\n%s", args, code, want, output)
	}
	return output
}

// objects are those of an output with one JSON object a line.
func objects(t *testing.T, output string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(output) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in the line %q", err, line)
		}
		all = append(all, one)
	}
	return all
}

func mustSay(t *testing.T, output string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(output, word) {
			t.Errorf("it does not say %q:\n%s", word, output)
		}
	}
}

// A delivery that was cut off is found by its ID, freed, redelivered, and forgotten.
func TestKeysCommand(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if n.N == 1 && r.Header.Get("Idempotency-Key") == "cut" {
				noAnswer(w, r, n)
				return
			}
			answers201(w, r, n)
		})
		p := start(t, conf{store: store, site: lines(dedupBlock("on_unknown hold"), proxyTo(up))})
		wantFresh(t, p.post(t, "/", "whole", "body"), 201, "run 1 of whole")
		p.post(t, "/", "cut", "body")
		wantProblem(t, p.post(t, "/", "cut", "body"), 409, "outcome_unknown")

		mustSay(t, p.keys(t, 0, "list"), "STATE", "complete", "held", "whole", "cut")
		held := objects(t, p.keys(t, 0, "list", "--json", "--state", "held", "--newer-than", "1h"))
		if len(held) != 1 || held[0]["delivery_id"] != "cut" {
			t.Fatalf("held are %v", held)
		}
		key := held[0]["key"].(string)
		for _, name := range []string{key, "cut"} {
			if shown := objects(t, p.keys(t, 0, "show", "--json", name)); len(shown) != 1 || shown[0]["key"] != key {
				t.Errorf("%s is shown as %v", name, shown)
			}
			mustSay(t, p.keys(t, 0, "show", name), "state", "held", "delivery ID", "cut", key, "expires")
		}
		mustSay(t, p.keys(t, 0, "show", "--body", "whole"), "response", "201", "run 1 of whole")
		mustSay(t, p.keys(t, 0, "release", "cut"), "released", key, "cut", "was held")
		wantFresh(t, p.post(t, "/", "cut", "body"), 201, "run 2 of cut")

		mustSay(t, p.keys(t, 2, "forget", "cut", "whole"), "2 keys", "nothing was changed", "--yes")
		if left := objects(t, p.keys(t, 0, "list", "--json")); len(left) != 2 {
			t.Errorf("without --yes it left %v", left)
		}
		gone := objects(t, p.keys(t, 0, "forget", "--json", "--yes", "cut", "whole"))
		if len(gone) != 2 || gone[0]["result"] != "forgotten" || gone[0]["key"] != key || gone[0]["state_was"] != "complete" {
			t.Errorf("it says of what it forgot %v", gone)
		}
		mustSay(t, p.keys(t, 1, "show", "cut"), `no delivery ID "cut"`)
		mustSay(t, p.keys(t, 1, "release", "--", "-x1"), `no delivery ID "-x1"`)
		wantFresh(t, p.post(t, "/", "whole", "body"), 201, "run 2 of whole")
	})
}

// A server that is no caddy-dedup is not mistaken for one: not for one without keys, nor for
// one that is ready.
func TestKeysCommandAsksAnotherServer(t *testing.T) {
	t.Parallel()
	for _, says := range []string{`"hello`, `{"id": 17}`} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, says)
		}))
		defer other.Close()
		for _, c := range []struct {
			code int
			args []string
		}{
			{3, []string{"keys", "list"}},
			{3, []string{"keys", "release", "k"}},
			{1, []string{"health"}},
		} {
			output, code := command(t, shortTempDir(t), append(c.args, "--address", strings.TrimPrefix(other.URL, "http://"))...)
			if code != c.code {
				t.Errorf("%q of a server that says %s ended with %d", c.args, says, code)
			}
			mustSay(t, output, "does not answer as the admin API")
		}
	}
}

// Without an address the command finds the socket of a proxy in the data directory.
func TestKeysCommandFindsTheProxy(t *testing.T) {
	t.Parallel()
	if conn, err := net.Dial("tcp", "localhost:2019"); err == nil {
		conn.Close()
		t.Skip("something listens at Caddy's default admin address; the command would ask it")
	}
	dir := shortTempDir(t)
	output, code := command(t, dir, "keys", "list")
	if code != 3 {
		t.Errorf("without a proxy it ended with %d", code)
	}
	mustSay(t, output, "localhost:2019", filepath.Join(dir, "data"), "--address")

	up := startUpstream(t, answers201)
	p := startProxyCommand(t, up)
	p.post(t, "/", "k", "body")
	output, code = command(t, p.conf.dir, "keys", "show", "k")
	if code != 0 {
		t.Fatalf("it ended with %d:\n%s", code, output)
	}
	mustSay(t, output, "complete", "201")

	second := startProxyIn(t, p.conf.dir, up, "--redis", strings.TrimPrefix(redisStore(t), "store redis "))
	output, code = command(t, p.conf.dir, "keys", "list")
	if code != 2 {
		t.Errorf("with two proxies it ended with %d", code)
	}
	mustSay(t, output, "--address", "unix/"+p.conf.dir)
	second.terminate(t)
}

// In a pod there is no shell, no other program, and nothing to write to.
func TestKeysCommandNeedsNothing(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, noAnswer)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_unknown hold"), proxyTo(up))})
	p.post(t, "/", "k", "body")
	home := shortTempDir(t)
	for _, args := range [][]string{{"list"}, {"show", "k"}, {"release", "k"}, {"forget", "k"}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, binary, append([]string{"keys"}, args...)...)
		cmd.Dir = home
		cmd.Env = []string{"PATH=", "HOME=" + home, "XDG_DATA_HOME=" + home + "/data", "XDG_CONFIG_HOME=" + home + "/config", "CADDY_ADMIN=unix/" + adminSocket(p.conf.dir)}
		output, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if !slices.Contains(strings.Fields(string(output)), "k") {
			t.Errorf("%v says %s", args, output)
		}
	}
	if files := filesIn(t, home); len(files) > 0 {
		t.Errorf("the commands have written %v", files)
	}
}

func TestShellCompletion(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startProxyCommand(t, up)
	for _, c := range []struct {
		args []string
		has  []string
	}{
		{[]string{"keys", ""}, []string{"complete\t", "forget\t", "list\t", "release\t", "show\t"}},
		{[]string{"keys", "list", "--"}, []string{"--state\t", "--older-than\t", "--json\t", "--address\t"}},
		{[]string{"keys", "list", "--state", ""}, []string{"in_flight", "lapsed", "complete", "released", "held", "unreadable"}},
		{[]string{"keys", "list", "--provider", ""}, []string{"github", "stripe"}},
		{[]string{"keys", "show", ""}, nil},
		{[]string{"keys", "complete", "--status", ""}, []string{"200", "201"}},
		{[]string{"keys", "show", "--address", ""}, []string{"localhost:2019", "unix/" + p.conf.dir}},
		{[]string{"health", "--"}, []string{"--address\t", "--live\t", "--timeout\t"}},
		{[]string{"health", "--address", ""}, []string{"localhost:2019", "unix/" + p.conf.dir}},
		{[]string{"health", "--timeout", ""}, []string{"3s"}},
		{[]string{"health", ""}, nil},
		{[]string{"providers", ""}, []string{"github\tGitHub"}},
		{[]string{"proxy", "--provider", ""}, []string{"github\tGitHub"}},
	} {
		output, code := command(t, p.conf.dir, append([]string{"__complete"}, c.args...)...)
		offered, directive, _ := strings.Cut("\n"+output, "\n:")
		if code != 0 || !strings.HasPrefix(directive, "4\n") { // no names of files
			t.Errorf("%q ended with %d and the directive %q", c.args, code, directive)
		}
		for _, word := range c.has {
			if !strings.Contains(offered, "\n"+word) {
				t.Errorf("%q does not offer %q:\n%s", c.args, word, output)
			}
		}
		if len(c.has) == 0 && offered != "" {
			t.Errorf("%q offers %q", c.args, offered)
		}
	}
	for _, shell := range []string{"bash", "powershell"} {
		if output, code := command(t, p.conf.dir, "completion", shell); code != 0 || !strings.Contains(output, "__complete") {
			t.Errorf("completion %s ended with %d:\n%.200s", shell, code, output)
		}
	}
}
