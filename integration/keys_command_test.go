package integration

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os/exec"
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

// Without an address the command finds the socket of the proxy in the data directory.
func TestKeysCommandFindsTheProxy(t *testing.T) {
	t.Parallel()
	if conn, err := net.Dial("tcp", "localhost:2019"); err == nil {
		conn.Close()
		t.Skip("something listens at Caddy's default admin address; the command would ask it")
	}
	p := startProxyCommand(t, startUpstream(t, answers201))
	p.post(t, "/", "k", "body")
	output, code := command(t, p.conf.dir, "keys", "show", "k")
	if code != 0 {
		t.Fatalf("it ended with %d:\n%s", code, output)
	}
	mustSay(t, output, "complete", "201")
}

func TestShellCompletion(t *testing.T) {
	t.Parallel()
	p := startProxyCommand(t, startUpstream(t, answers201))
	for words, offers := range map[string][]string{
		"keys ":                   {"complete\t", "forget\t", "list\t", "release\t", "show\t"},
		"keys list --":            {"--state\t", "--older-than\t", "--json\t", "--address\t"},
		"keys list --state ":      {"in_flight", "lapsed", "complete", "released", "held", "unreadable"},
		"keys show ":              nil,
		"health --address ":       {"localhost:2019", "unix/" + p.conf.dir},
		"proxy --provider ":       {"github\tGitHub"},
		"providers ":              {"github\tGitHub"},
		"keys complete --status ": {"200", "201"},
	} {
		output, code := command(t, p.conf.dir, append([]string{"__complete"}, strings.Split(words, " ")...)...)
		offered, directive, _ := strings.Cut("\n"+output, "\n:")
		if code != 0 || !strings.HasPrefix(directive, "4\n") || len(offers) == 0 && offered != "" { // 4: no names of files
			t.Errorf("%q ended with %d and the directive %q:\n%s", words, code, directive, output)
		}
		for _, word := range offers {
			if !strings.Contains(offered, "\n"+word) {
				t.Errorf("%q does not offer %q:\n%s", words, word, output)
			}
		}
	}
	if output, code := command(t, p.conf.dir, "completion", "bash"); code != 0 || !strings.Contains(output, "__complete") {
		t.Errorf("completion bash ended with %d:\n%.200s", code, output)
	}
}
