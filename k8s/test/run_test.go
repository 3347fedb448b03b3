package test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// What the policy passes to the binary, the binary takes; and it is a valid Caddyfile.
func TestInjectedArgumentsAreTheBinarys(t *testing.T) {
	for name, r := range injected() {
		t.Run(name, func(t *testing.T) {
			environment := []string{"REDIS_URL=redis://redis:6379"}
			arguments := withSecrets(t, r.args)
			out, err := command(t, environment, append(slices.Clone(arguments), "--print")...).Output()
			if err != nil {
				t.Fatalf("%q: %v\n%s", arguments, err, stderr(err))
			}
			wanted := []string{"dedup_health /live live", "dedup_health /ready", "metrics /metrics", "reverse_proxy " + r.args[4]}
			for i, argument := range arguments {
				if argument == "--dedup" {
					wanted = append(wanted, "\t\t"+arguments[i+1]+"\n")
				}
			}
			for _, want := range wanted {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q stands for a Caddyfile without %q:\n%s", r.args, want, out)
				}
			}
			wantValid(t, string(out), environment)
		})
	}
}

// secretOfASender is one for each kind of provider: a text, and a public key in hex.
const secretOfASender = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"

var secretFile = regexp.MustCompile(`\{file\.(/secrets/[^}]+)\}`)

// withSecrets returns the arguments with the files of secrets in a directory of the test.
func withSecrets(t *testing.T, arguments []string) []string {
	t.Helper()
	directory := t.TempDir()
	var all []string
	for _, argument := range arguments {
		all = append(all, secretFile.ReplaceAllStringFunc(argument, func(placeholder string) string {
			file := filepath.Join(directory, secretFile.FindStringSubmatch(placeholder)[1])
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(secretOfASender), 0o600)); err != nil {
				t.Fatal(err)
			}
			return "{file." + file + "}"
		}))
	}
	return all
}

func stderr(err error) []byte {
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // what Output returns
		return exit.Stderr
	}
	return nil
}

// What the policy refuses of providers, the binary refuses, too: the container would start
// again and again.
func TestRefusedProvidersAreTheBinarys(t *testing.T) {
	tried := 0
	for name, r := range refused() {
		providers := r.pod.Annotations["caddy-dedup/providers"]
		if _, other := r.pod.Annotations["caddy-dedup/verify"]; providers == "" || other {
			continue
		}
		tried++
		arguments := args(":8080", "localhost:3000", ":8081", "--print")
		for provider := range strings.SplitSeq(providers, ",") {
			arguments = append(arguments, "--provider="+provider)
		}
		if out, err := command(t, nil, arguments...).CombinedOutput(); err == nil {
			t.Errorf("%s: the binary takes %q:\n%s", name, providers, out)
		}
	}
	if tried < 5 {
		t.Errorf("%d requests with providers; want all that are refused", tried)
	}
}

// output collects what a process prints, for another goroutine to read.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// serve runs the binary until the test ends, and returns what it prints.
func serve(t *testing.T, environment []string, arguments ...string) *output {
	t.Helper()
	cmd, out := command(t, environment, arguments...), new(output)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, patience
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed below
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself, which the test has noticed
		<-exited
		if t.Failed() {
			t.Logf("the process printed:\n%s", out)
		}
	})
	return out
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// shortDir is a directory with a name that a unix socket's has room after.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func get(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, body)
	}
	return string(body), err
}

// The sidecar with files, as kustomize and as the policy make it, before an application:
// a request runs once, the probes and Prometheus get their answers, and so does the
// operator's command in its container.
func TestSidecarsServe(t *testing.T) {
	kustomized := manifestsInMemory(t)
	objects := kustomize(t, kustomized, "/k8s/examples/file")
	caddyfile := the[*corev1.ConfigMap](t, objects).Data["Caddyfile"]
	inFiles := injected()["a file"].args

	for _, way := range []string{"kustomize", "inject"} {
		t.Run(way, func(t *testing.T) {
			var runs atomic.Int32
			application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, "run %d", runs.Add(1))
			}))
			t.Cleanup(application.Close)
			_, upstream, _ := net.SplitHostPort(application.Listener.Addr().String())
			data, port, health := shortDir(t), freePort(t), freePort(t)
			environment := []string{"UPSTREAM_PORT=" + upstream, "XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + filepath.Join(data, "config")}
			here := strings.NewReplacer(":8080", "127.0.0.1:"+port, ":8081", "127.0.0.1:"+health, "/data", data, "localhost:3000", "localhost:"+upstream)

			arguments := []string{"run", "--config", filepath.Join(data, "Caddyfile")}
			if way == "inject" {
				arguments = nil
				for _, argument := range inFiles {
					arguments = append(arguments, here.Replace(argument))
				}
			} else {
				text := strings.NewReplacer(":8080 {", "http://127.0.0.1:"+port+" {", ":8081 {", "http://127.0.0.1:"+health+" {", "/data", data).Replace(caddyfile)
				if err := os.WriteFile(arguments[2], []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				environment = append(environment, "CADDY_ADMIN=unix/"+filepath.Join(data, "admin.sock"))
			}
			serve(t, environment, arguments...)

			probes := "http://127.0.0.1:" + health
			for _, path := range []string{"/live", "/ready"} {
				eventually(t, path, func() error { _, err := get(http.DefaultClient, probes+path); return err })
			}
			var first string
			for i := range 2 {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/", strings.NewReader("order"))
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("Idempotency-Key", "order-1")
				resp, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK || i == 1 && (string(body) != first || resp.Header.Get("Idempotent-Replayed") != "true") {
					t.Errorf("request %d: %s %q (%v)", i+1, resp.Status, body, err)
				}
				first = string(body)
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("the application was asked %d times; want once", n)
			}
			metrics, err := get(http.DefaultClient, probes+"/metrics")
			if err != nil || !strings.Contains(metrics, `caddy_dedup_requests_total{observed="false",outcome="replayed",provider="api"} 1`) {
				t.Errorf("the metrics do not have the duplicate: %v\n%.500s", err, metrics)
			}
			out, err := command(t, environment, "keys", "list").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "order-1") {
				t.Errorf("caddy-dedup keys list: %v\n%s", err, out)
			}
		})
	}
}

// The sidecar of the annotation for secrets: what GitHub has not signed gets 401, and the probe of
// the application, which nobody signs, gets through.
func TestInjectedSidecarVerifies(t *testing.T) {
	application := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(application.Close)
	_, upstream, _ := net.SplitHostPort(application.Listener.Addr().String())
	data, port := shortDir(t), freePort(t)
	here := strings.NewReplacer(":8080", "127.0.0.1:"+port, ":8081", "127.0.0.1:"+freePort(t), "localhost:3000", "localhost:"+upstream,
		"--redis", "--file", "{env.REDIS_URL}", filepath.Join(data, "keys"))
	var arguments []string
	for _, argument := range withSecrets(t, injected()["verified webhooks"].args) {
		arguments = append(arguments, here.Replace(argument))
	}
	serve(t, []string{"XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + filepath.Join(data, "config")}, arguments...)
	site := "http://127.0.0.1:" + port
	eventually(t, "the application's probe", func() error { _, err := get(http.DefaultClient, site+"/healthz"); return err })

	const body = `{"zen":"Keep it logically awesome."}`
	hash := hmac.New(sha256.New, []byte(secretOfASender))
	hash.Write([]byte(body))
	for signature, want := range map[string]int{"": 401, strings.Repeat("0", 64): 401, hex.EncodeToString(hash.Sum(nil)): 200} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, site+"/webhooks/github", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		request.Header.Set("X-Hub-Signature-256", "sha256="+signature)
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with the signature %q: %s, want %d", signature, resp.Status, want)
		}
	}
}

// configMap is a directory as the kubelet makes it of a ConfigMap: files are links through
// one link, which is replaced in one step.
type configMap struct {
	directory string
	version   int
}

func (c *configMap) write(t *testing.T, caddyfile string) {
	t.Helper()
	c.version++
	version := fmt.Sprintf("..2026_%d", c.version)
	next := filepath.Join(c.directory, "..data_tmp")
	for _, err := range []error{
		os.Mkdir(filepath.Join(c.directory, version), 0o700),
		os.WriteFile(filepath.Join(c.directory, version, "Caddyfile"), []byte(caddyfile), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(c.directory, "..data")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if c.version == 1 {
		if err := os.Symlink(filepath.Join("..data", "Caddyfile"), filepath.Join(c.directory, "Caddyfile")); err != nil {
			t.Fatal(err)
		}
	}
}

// Why sidecar.yaml has an immutable ConfigMap, and not --watch: Caddy notices a replaced
// ConfigMap, but after the first mistake it watches no more.
func TestWatchEndsWithTheFirstMistake(t *testing.T) {
	files, port, socket := &configMap{directory: t.TempDir()}, freePort(t), filepath.Join(shortDir(t), "admin.sock")
	answering := func(text string) string {
		return "{\n\tadmin unix/" + socket + "\n}\nhttp://127.0.0.1:" + port + " {\n\trespond " + text + "\n}\n"
	}
	files.write(t, answering("one"))
	out := serve(t, nil, "run", "--watch", "--config", filepath.Join(files.directory, "Caddyfile"))
	answers := func(want string) func() error {
		return func() error {
			got, err := get(http.DefaultClient, "http://127.0.0.1:"+port)
			if err == nil && got != want {
				err = fmt.Errorf("it answers %q; want %q", got, want)
			}
			return err
		}
	}
	admin := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer admin.CloseIdleConnections()
	watches := func() (bool, error) {
		stacks, err := get(admin, "http://127.0.0.1/debug/pprof/goroutine?debug=2")
		return strings.Contains(stacks, "watchConfigFile"), err
	}

	eventually(t, "the first configuration is served", answers("one"))
	eventually(t, "it watches", func() error {
		if ok, err := watches(); err != nil || !ok {
			return fmt.Errorf("watches: %t, %w", ok, err)
		}
		return nil
	})
	files.write(t, answering("two"))
	eventually(t, "the second configuration is served", answers("two"))

	files.write(t, answering("three\n\tno_such_directive"))
	eventually(t, "the mistake is logged", func() error {
		if !strings.Contains(out.String(), "unable to load latest config") {
			return fmt.Errorf("no line says so")
		}
		return nil
	})
	if err := answers("two")(); err != nil {
		t.Errorf("after a mistake: %v", err)
	}
	eventually(t, "it watches no more", func() error {
		ok, err := watches()
		if err == nil && ok {
			err = fmt.Errorf("it still watches: the comment in sidecar.yaml, and its choice, can be looked at again")
		}
		return err
	})
}
