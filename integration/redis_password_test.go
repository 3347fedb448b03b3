package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// A password that was replaced in Redis, and in the file that the configuration names, is
// for the run of the configuration before, too: else its lease would lapse, and it would run
// once more, in the process that knows the new password.
func TestRunInFlightWhileThePasswordOfRedisChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	secret := filepath.Join(shortTempDir(t), "password")
	password := func(text string) {
		t.Helper()
		if err := os.WriteFile(secret, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		server.Do("ACL", "SETUSER", "dedup", "on", "~*", "&*", "+@all", "resetpass", ">"+text)
	}
	password("old")
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{
		store: fmt.Sprintf("store redis {\naddress %s\nusername dedup\npassword {file.%s}\n}", server.Addr, secret),
		site:  lines("dedup", proxyTo(up)),
	})
	first := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)

	password("new")
	server.Do("CLIENT", "KILL", "USER", "dedup")
	p.reloadAs(t, func(c *conf) { c.global = "grace_period 20s" })
	g.open()
	got := first.reply(t)
	wantFresh(t, got, 201, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), got)
	up.wantRuns(t, "k", 1)
	wantFresh(t, p.post(t, "/", "next", "body"), 201, "run 1 of next")
}
