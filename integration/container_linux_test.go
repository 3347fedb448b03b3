package integration

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// The image cannot be built here, but what is in it can be run as in a container: in a
// root directory that has only the image's files, read-only but for the volume, as the
// image's user, without capabilities, and without a way to get any.

// container is a root directory with the image's files.
type container struct {
	image *image
	root  string
	env   []string
	user  int
}

// newContainer makes a root directory as the last stage of the Dockerfile does, with
// further files, such as those that a user would mount.
func newContainer(t *testing.T, files map[string]string) *container {
	t.Helper()
	c := &container{image: readImage(t), root: filepath.Join(shortTempDir(t), "root")}
	if _, err := fmt.Sscanf(c.image.user, "%d:", &c.user); err != nil {
		t.Fatalf("USER %s is no number, and there is no file of users: %v", c.image.user, err)
	}
	c.env = c.image.env
	owner := c.user
	if os.Getuid() != 0 {
		owner = os.Getuid()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(target string, content []byte, mode os.FileMode) {
		target = filepath.Join(c.root, target)
		must(os.MkdirAll(filepath.Dir(target), 0o755))
		must(os.WriteFile(target, content, mode))
	}
	for _, words := range c.image.copies {
		source, target := words[len(words)-2], words[len(words)-1]
		switch {
		case source == "/out/caddy-dedup":
			put(target, c.image.binaryOfImage(t), 0o755)
		case source == target && strings.HasPrefix(source, "/etc/ssl/"): // what the builder's image has there
			put(target, nil, 0o644)
		case source == "/out/data" && slices.Contains(words, "--chown="+c.image.user) && target == c.image.volume:
			must(os.MkdirAll(filepath.Join(c.root, target), 0o755))
			must(os.Chown(filepath.Join(c.root, target), owner, owner))
		default:
			t.Fatalf("Dockerfile: this test does not know what COPY %q brings", words)
		}
	}
	for name, content := range files {
		put(name, []byte(content), 0o644)
	}
	before := c.files(t)
	t.Cleanup(func() {
		after := c.files(t)
		for name := range before {
			if after[name] != before[name] {
				t.Errorf("%s was %s, and is %s", name, before[name], after[name])
			}
		}
		if len(after) != len(before) {
			t.Errorf("outside of %s there were %d files, and are %d", c.image.volume, len(before), len(after))
		}
	})
	return c
}

// files describes each file outside of the volume.
func (c *container) files(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(c.root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name == filepath.Join(c.root, c.image.volume) {
			return filepath.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		found[name] = fmt.Sprintf("%s of %d bytes, changed at %s", info.Mode(), info.Size(), info.ModTime())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// program returns a command that is run in the container.
func (c *container) program(t *testing.T, words ...string) *exec.Cmd {
	t.Helper()
	cmd := confinedProcess(t, confinement{Root: c.root, Volume: c.image.volume, User: c.user, Program: words})
	cmd.Env = append(cmd.Env, c.env...)
	return cmd
}

// needContainers skips a test where the kernel lets this user confine nothing.
func needContainers(t *testing.T) {
	t.Helper()
	// Some systems make the namespace, and allow nothing in it.
	if output, err := confinedProcess(t, confinement{User: 65532}).CombinedOutput(); err != nil {
		t.Skipf("this user is not root and can do nothing in a user namespace: %v\n%s", err, output)
	}
}

// start runs the container's own program with these arguments, or with the image's.
func (c *container) start(t *testing.T, args ...string) *caddy {
	t.Helper()
	if len(args) == 0 {
		args = c.image.command
	}
	p := &caddy{cmd: c.program(t, append(c.image.entry, args...)...), log: new(logBook), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // it does not outlive a test that is killed
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the process is killed when the thread that started it ends
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill(t)
		p.log.judge(t)
	})
	return p
}

// run runs a program in the container to its end.
func (c *container) run(t *testing.T, words ...string) (output string, code int) {
	t.Helper()
	cmd := c.program(t, words...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	out, _ := cmd.CombinedOutput() // its status says how it ended
	return string(out), cmd.ProcessState.ExitCode()
}

// awaitReady waits until the image's own HEALTHCHECK is content.
func (c *container) awaitReady(t *testing.T, p *caddy) {
	t.Helper()
	eventually(t, "the container is healthy", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("the container ended: %v\n%s", p.err, p.log)
		default:
		}
		_, code := c.run(t, c.image.probe...)
		return code == 0
	})
}

// The image's own command serves a replay, and an operator in the container sees the key.
func TestContainerRuns(t *testing.T) {
	t.Parallel()
	needContainers(t)
	up := startUpstream(t, answers201)
	port := freeport.Of(t)
	c := newContainer(t, map[string]string{
		"/etc/caddy/Caddyfile": fmt.Sprintf("{\n\tauto_https off\n}\nhttp://:%d {\n\tbind 127.0.0.1\n\tdedup\n\treverse_proxy %s\n}\n", port, up.addr),
	})
	// In a container of its own the default, localhost:2019, is free.
	c.env = append(c.env, fmt.Sprintf("CADDY_ADMIN=127.0.0.1:%d", freeport.Of(t)))
	p := c.start(t)
	p.addr = fmt.Sprintf("127.0.0.1:%d", port)
	c.awaitReady(t, p)
	mustBeConfined(t, p)
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	output, code := c.run(t, append(c.image.entry, "keys", "list")...)
	if code != 0 || !strings.Contains(output, "complete") || !strings.Contains(output, "\nk ") {
		t.Errorf("keys list ended with %d:\n%s", code, output)
	}
	if output, code := c.run(t, append(c.image.entry, "version")...); code != 0 || !strings.HasPrefix(output, "caddy-dedup v0.1.0-image with Caddy v2.") {
		t.Errorf("version ended with %d:\n%s", code, output)
	}

	p.terminate(t)
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if output, code := c.run(t, c.image.probe...); code != 1 {
		t.Errorf("without a process the probe ended with %d:\n%s", code, output)
	}
	// The next container with this volume goes on from there.
	again := c.start(t)
	again.addr = p.addr
	c.awaitReady(t, again)
	wantReplay(t, again.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
}

// Without a file, and without a word to the probe about where the process is.
func TestContainerIsAProxy(t *testing.T) {
	t.Parallel()
	needContainers(t)
	up := startUpstream(t, answers201)
	c := newContainer(t, nil)
	addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	p := c.start(t, "proxy", "--from", addr, "--to", up.addr, "--provider", "github")
	p.addr = addr
	c.awaitReady(t, p)
	mustBeConfined(t, p)
	options := []option{header("X-GitHub-Delivery", "1"), header("X-GitHub-Hook-ID", "7"), host("hooks.test")}
	first := p.post(t, "/", "", "{}", options...)
	wantFresh(t, first, 201, "run 1 of 1")
	wantReplay(t, p.post(t, "/", "", "{}", options...), first)
	if output, code := c.run(t, append(c.image.entry, "keys", "list", "--wide")...); code != 0 || !strings.Contains(output, "github") {
		t.Errorf("keys list ended with %d:\n%s", code, output)
	}
}

// The certificate of an https upstream is checked by the authorities in the image's file.
func TestContainerTrustsItsCertificates(t *testing.T) {
	t.Parallel()
	needContainers(t)
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }))
	t.Cleanup(up.Close)
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw}))
	other := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: anotherAuthority(t)}))
	const file = "/etc/ssl/certs/ca-certificates.crt"
	for content, want := range map[string]int{authority: http.StatusCreated, other: http.StatusBadGateway} {
		c := newContainer(t, map[string]string{file: content})
		addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
		p := c.start(t, "proxy", "--from", addr, "--to", up.URL)
		p.addr = addr
		c.awaitReady(t, p)
		if got := p.post(t, "/", "k", "body"); got.Status != want {
			t.Errorf("with the authority %.40q, the answer is %d, want %d:\n%s", content, got.Status, want, p.log)
		}
	}
	if m := readImage(t); !slices.ContainsFunc(m.copies, func(words []string) bool { return words[len(words)-1] == file }) {
		t.Errorf("the image has no %s", file)
	}
}

// anotherAuthority returns the certificate of an authority that has signed nothing.
func anotherAuthority(t *testing.T) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		Subject: pkix.Name{CommonName: "another authority"}, KeyUsage: x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
