package test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The sidecar as kustomize and as the policy make it, before an application: an operation
// runs once, the probes and Prometheus get their answers, and so does the operator's command
// in its container.
func TestSidecarsServe(t *testing.T) {
	const secret, delivery = "It's a Secret to Everybody", `{"zen":"Keep it logically awesome."}`
	hash := hmac.New(sha256.New, []byte(secret))
	hash.Write([]byte(delivery))
	for way, fields := range map[string]map[string]string{
		"kustomize": {"Idempotency-Key": "order-1"},
		"inject":    {"X-GitHub-Delivery": "order-1", "X-Hub-Signature-256": "sha256=" + hex.EncodeToString(hash.Sum(nil))},
	} {
		t.Run(way, func(t *testing.T) {
			var runs atomic.Int32
			application := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					runs.Add(1)
				}
			}))
			t.Cleanup(application.Close)
			_, upstream, err := net.SplitHostPort(application.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.MkdirTemp("", "d") // that of a test is too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(data) })
			port, health := freePort(t), freePort(t)
			environment := []string{"UPSTREAM_PORT=" + upstream, "XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + filepath.Join(data, "config")}
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			var arguments []string
			if way == "kustomize" {
				caddyfile := the[*corev1.ConfigMap](t, kustomize(t, "../examples/file")).Data["Caddyfile"]
				write("Caddyfile", strings.NewReplacer(":8080 {", "http://127.0.0.1:"+port+" {", ":8081 {", "http://127.0.0.1:"+health+" {", "/data", data).Replace(caddyfile))
				arguments = []string{"run", "--config", filepath.Join(data, "Caddyfile")}
				environment = append(environment, "CADDY_ADMIN=unix/"+filepath.Join(data, "admin.sock"))
			} else {
				pod, err := start(t, "mutating.yaml", "validating.yaml").create(injected()["all at once"].pod)
				if err != nil {
					t.Fatal(err)
				}
				write("secret", secret)
				here := strings.NewReplacer(":8080", "127.0.0.1:"+port, ":8081", "127.0.0.1:"+health, "localhost:3000", "localhost:"+upstream,
					"/data", data, "/secrets/github/w/github", filepath.Join(data, "secret"))
				for _, argument := range sidecarOf(t, pod.Spec).Args {
					arguments = append(arguments, here.Replace(argument))
				}
			}
			serve(t, environment, arguments...)

			// ask says what came: the status, and whether it was replayed.
			ask := func(method, url string, fields map[string]string) (what, body string) {
				request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(delivery))
				if err != nil {
					t.Fatal(err)
				}
				for name, value := range fields {
					request.Header.Set(name, value)
				}
				resp, err := http.DefaultClient.Do(request)
				if err != nil {
					return err.Error(), ""
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					return err.Error(), ""
				}
				return strings.TrimSpace(resp.Status[:3] + " " + resp.Header.Get("Idempotent-Replayed")), string(text)
			}
			probes, site := "http://127.0.0.1:"+health, "http://127.0.0.1:"+port
			for _, url := range []string{probes + "/live", probes + "/ready", site + "/healthz"} {
				eventually(t, url, func() error {
					if what, body := ask(http.MethodGet, url, nil); what != "200" {
						return fmt.Errorf("it gets %s %s", what, body)
					}
					return nil
				})
			}
			for _, want := range []string{"200", "200 true"} {
				if what, body := ask(http.MethodPost, site+"/webhooks/github", fields); what != want {
					t.Errorf("it gets %s %s; want %s", what, body, want)
				}
			}
			if n := runs.Load(); n != 1 {
				t.Errorf("the application was asked %d times; want once", n)
			}
			if what, _ := ask(http.MethodPost, site+"/webhooks/github", map[string]string{"X-GitHub-Delivery": "forged"}); way == "inject" && what != "401" {
				t.Errorf("what GitHub has not signed gets %s", what)
			}
			if _, metrics := ask(http.MethodGet, probes+"/metrics", nil); !strings.Contains(metrics, `caddy_dedup_requests_total{observed="false",outcome="replayed"`) {
				t.Errorf("the metrics do not have the duplicate:\n%.500s", metrics)
			}
			if out, err := command(t, environment, "keys", "list").CombinedOutput(); err != nil || !strings.Contains(string(out), "order-1") {
				t.Errorf("caddy-dedup keys list: %v\n%s", err, out)
			}
		})
	}
}
