package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// limitFiles forbids a process to make any file larger than so many bytes; "unlimited" allows it
// again.
func limitFiles(t *testing.T, p *caddy, bytes string) {
	t.Helper()
	out, err := exec.Command("prlimit", "--pid", strconv.Itoa(p.cmd.Process.Pid), "--fsize="+bytes+":unlimited").CombinedOutput()
	if err != nil {
		t.Fatalf("prlimit: %v\n%s", err, out)
	}
}

// Where files may not become large, a response that fits into none is not kept, and refuses no other
// key. The database fails, and is opened again.
func TestFileStoreUnderALimitForFiles(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("no prlimit in PATH, which is Linux's: the store's own tests of such a limit have to do")
	}
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		answers201(w, r, n)
		if n.Key == "large" {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	p := start(t, conf{store: "store file", site: lines("dedup", proxyTo(up))})
	kept := p.post(t, "/", "kept", "body")
	limitFiles(t, p, fmt.Sprint(64<<10))
	if got := p.post(t, "/", "large", "body"); got.Status != 201 || len(got.Body) < 1<<20 {
		t.Errorf("a large response: %d, %d bytes", got.Status, len(got.Body))
	}
	wantProblem(t, p.post(t, "/", "large", "body"), 409, "response_not_kept")
	refused, got := "", reply{Status: 201}
	for n := 0; got.Status == 201; n++ {
		refused = fmt.Sprintf("key-%d-%s", n, strings.Repeat("x", 200))
		got = p.post(t, "/", refused, "body")
	}
	wantProblem(t, got, 503, "store_unavailable")
	wantRetryAfter(t, got)
	up.wantRuns(t, refused, 0)
	wantReplay(t, p.post(t, "/", "kept", "body"), kept)

	limitFiles(t, p, "unlimited")
	eventually(t, "the refused key runs", func() bool {
		got = p.post(t, "/", refused, "body")
		return got.Status == 201
	})
	wantFresh(t, got, 201, "run 1 of "+refused)
	wantReplay(t, p.post(t, "/", "kept", "body"), kept)
}

// onFullDisk makes a process run in a mount namespace of its own, in which the parent of its store is a
// small disk that has the store's files and is full, until release is called.
func onFullDisk(t *testing.T, store string) (under []string, release func()) {
	t.Helper()
	if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces here (%v: %s): the store's own tests have to do", err, out)
	}
	const script = `set -e
cp -r "$1" "$2.copy"
mount -t tmpfs -o size=64m tmpfs "$(dirname "$1")"
cp -r "$2.copy" "$1"
head -c 64m /dev/zero > "$(dirname "$1")/others" 2> /dev/null || true
(n=0; while [ ! -e "$2" ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done; rm "$(dirname "$1")/others") &
shift 2
exec "$@"`
	released := filepath.Join(shortTempDir(t), "released")
	return []string{"unshare", "-rm", "sh", "-c", script, "sh", store, released}, func() {
		if err := os.WriteFile(released, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that is full already when the process starts is no other: it serves, and goes on by
// itself.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortTempDir(t), "dedup")
	under, release := onFullDisk(t, dir)
	up := startUpstream(t, answers201)
	c := conf{store: "store file " + dir, site: lines(
		"handle /pass {", dedupBlock("on_store_error pass"), proxyTo(up), "}",
		"handle {", "dedup", proxyTo(up), "}")}
	p := start(t, c)
	kept := make([]reply, 50)
	for n := range kept {
		kept[n] = p.post(t, "/", fmt.Sprint("kept ", n), "body")
	}
	p.kill(t) // what the log has of them goes into a table when the store is opened

	c.dir, c.under = p.conf.dir, under
	q := start(t, c)
	got := q.post(t, "/", "kept 0", "body")
	wantProblem(t, got, 503, "store_unavailable")
	wantRetryAfter(t, got)
	if got := q.post(t, "/", "", "body"); got.Status != 201 {
		t.Errorf("a request without a key got %d", got.Status)
	}
	if got := q.post(t, "/pass", "unprotected", "body"); got.Status != 201 {
		t.Errorf("with on_store_error pass: %d %s", got.Status, got.Body)
	}
	release()
	eventually(t, "the store is open", func() bool {
		return q.post(t, "/", "kept 0", "body").Status == 201
	})
	for n, earlier := range kept {
		key := fmt.Sprint("kept ", n)
		wantReplay(t, q.post(t, "/", key, "body"), earlier)
		up.wantRuns(t, key, 1)
	}
	q.terminate(t)
	if code := q.awaitExit(t); code != 0 {
		t.Errorf("the process ended with %d", code)
	}
}
