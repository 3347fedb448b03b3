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
)

// The sidecar as the policy makes it, with every annotation, before an application: an
// operation runs once, the probes and Prometheus get their answers, and so does the operator's
// command in its container. What GitHub has not signed gets 401.
func TestInjectedSidecarServes(t *testing.T) {
	const secret, delivery = "It's a Secret to Everybody", `{"zen":"Keep it logically awesome."}`
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
	if err := os.WriteFile(filepath.Join(data, "secret"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	pod, err := start(t, "mutating.yaml", "validating.yaml").create(injected()["all at once"].pod)
	if err != nil {
		t.Fatal(err)
	}
	port, health := freePort(t), freePort(t)
	here := strings.NewReplacer(":8080", "127.0.0.1:"+port, ":8081", "127.0.0.1:"+health, "localhost:3000", "localhost:"+upstream,
		"/data", data, "/secrets/github/w/github", filepath.Join(data, "secret"))
	var arguments []string
	for _, argument := range sidecarOf(t, pod.Spec).Args {
		arguments = append(arguments, here.Replace(argument))
	}
	environment := []string{"XDG_DATA_HOME=" + data, "XDG_CONFIG_HOME=" + filepath.Join(data, "config")}
	serve(t, environment, arguments...)

	// ask says what came: the status, and whether it was replayed.
	ask := func(method, url, signature string) (what, body string) {
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(delivery))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-GitHub-Delivery", "delivery-1")
		request.Header.Set("X-Hub-Signature-256", "sha256="+signature)
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
			if what, body := ask(http.MethodGet, url, ""); what != "200" {
				return fmt.Errorf("it gets %s %s", what, body)
			}
			return nil
		})
	}
	hash := hmac.New(sha256.New, []byte(secret))
	hash.Write([]byte(delivery))
	signature := hex.EncodeToString(hash.Sum(nil))
	for _, c := range [][2]string{{strings.Repeat("0", 64), "401"}, {signature, "200"}, {signature, "200 true"}} {
		if what, body := ask(http.MethodPost, site+"/webhooks/github", c[0]); what != c[1] {
			t.Errorf("with the signature %s it gets %s %s; want %s", c[0], what, body, c[1])
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("the application was asked %d times; want once", n)
	}
	if _, metrics := ask(http.MethodGet, probes+"/metrics", ""); !strings.Contains(metrics, `caddy_dedup_requests_total{observed="false",outcome="replayed"`) {
		t.Errorf("the metrics do not have the duplicate:\n%.500s", metrics)
	}
	if out, err := command(t, environment, "keys", "list").CombinedOutput(); err != nil || !strings.Contains(string(out), "delivery-1") {
		t.Errorf("caddy-dedup keys list: %v\n%s", err, out)
	}
}
