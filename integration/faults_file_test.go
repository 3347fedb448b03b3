package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// limitFiles forbids a process to make any file larger than so many bytes, as a
// full disk would; "unlimited" allows it again.
func limitFiles(t *testing.T, p *caddy, bytes string) {
	t.Helper()
	out, err := exec.Command("prlimit", "--pid", strconv.Itoa(p.cmd.Process.Pid), "--fsize="+bytes+":unlimited").CombinedOutput()
	if err != nil {
		t.Fatalf("prlimit: %v\n%s", err, out)
	}
}

func TestFileStoreOnAFullDisk(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip("no prlimit in PATH, which is Linux's: the store's own test of a full disk has to do")
	}
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "running" {
			<-g.opened
		}
		answers201(w, r, n)
	})
	file := filepath.Join(shortTempDir(t), "dedup.db")
	c := conf{store: "store file " + file, site: lines(dedupBlock(), proxyTo(up))}
	p := start(t, c)
	kept := p.post(t, "/", "kept", "body", host("shop.test"))
	running := p.postLater("/", "running", "body", host("shop.test"))
	up.awaitRuns(t, "running", 1)

	stat, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	limitFiles(t, p, fmt.Sprint(stat.Size()))
	var taken []reply
	refused := ""
	for n := 0; refused == ""; n++ {
		key := fmt.Sprintf("key-%d-%s", n, strings.Repeat("x", 200))
		got := p.post(t, "/", key, "body", host("shop.test"))
		switch {
		case got.Status == 201:
			taken = append(taken, got)
		default:
			wantProblem(t, got, 503, "store_unavailable")
			wantRetryAfter(t, got)
			refused = key
			up.wantRuns(t, key, 0)
		}
	}
	wantReplay(t, p.post(t, "/", "kept", "body", host("shop.test")), kept)
	g.open()
	first := running.reply(t)
	wantFresh(t, first, 201, "run 1 of running")
	wantReplay(t, p.post(t, "/", "running", "body", host("shop.test")), first)

	limitFiles(t, p, "unlimited")
	var got reply
	eventually(t, "the refused key runs", func() bool {
		got = p.post(t, "/", refused, "body", host("shop.test"))
		return got.Status == 201
	})
	wantFresh(t, got, 201, "run 1 of "+refused)
	// What was said before, on the full disk too, is on the disk.
	p.terminate(t)
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("the process ended with %d", code)
	}
	c.dir = p.conf.dir
	q := start(t, c)
	wantReplay(t, q.post(t, "/", "kept", "body", host("shop.test")), kept)
	wantReplay(t, q.post(t, "/", "running", "body", host("shop.test")), first)
	wantReplay(t, q.post(t, "/", refused, "body", host("shop.test")), got)
	for n, earlier := range taken {
		key := fmt.Sprintf("key-%d-%s", n, strings.Repeat("x", 200))
		wantReplay(t, q.post(t, "/", key, "body", host("shop.test")), earlier)
		up.wantRuns(t, key, 1)
	}
}

// A file that lost its end, as a disk may leave it after a power cut: either only
// room that was not used is lost, and all keys are known, or the process says so
// at start, by the file's name, and leaves it as it is.
func TestFileStoreWithATornTail(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	file := filepath.Join(shortTempDir(t), "dedup.db")
	c := conf{store: "store file " + file, site: lines("dedup", proxyTo(up))}
	p := start(t, c)
	const keys = 50
	var kept []reply
	for n := range keys {
		kept = append(kept, p.post(t, "/", strconv.Itoa(n), "body", host("shop.test")))
	}
	p.kill(t)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for cut := len(whole) - 4096; cut > 0; cut -= len(whole) / 8 {
		c.dir, c.port = shortTempDir(t), freePort(t)
		if err := os.WriteFile(file, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		caddyfile := filepath.Join(c.dir, "Caddyfile")
		if err := os.WriteFile(caddyfile, []byte(c.caddyfile(c.dir, c.port)), 0o600); err != nil {
			t.Fatal(err)
		}
		q := startProcess(t, c.dir, "run", "--config", caddyfile, "--adapter", "caddyfile")
		q.addr = fmt.Sprintf("127.0.0.1:%d", c.port)
		serves := false
		eventually(t, "the process serves, or has ended", func() bool {
			select {
			case <-q.exited:
				return true
			default:
			}
			serves = strings.Contains(q.log.String(), "serving initial configuration")
			return serves
		})
		if serves {
			for n, first := range kept {
				wantReplay(t, q.post(t, "/", strconv.Itoa(n), "body", host("shop.test")), first)
				up.wantRuns(t, strconv.Itoa(n), 1)
			}
			q.kill(t)
			continue
		}
		refused++
		if !strings.Contains(q.log.String(), file) || q.cmd.ProcessState.ExitCode() <= 0 {
			t.Errorf("cut at %d of %d bytes: the process ended with %d; want a failure that names %s", cut, len(whole), q.cmd.ProcessState.ExitCode(), file)
		}
		if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, whole[:cut]) {
			t.Errorf("cut at %d of %d bytes: the file was changed: %v", cut, len(whole), err)
		}
	}
	if refused == 0 {
		t.Error("no cut was refused: none was in what is used")
	}
}
