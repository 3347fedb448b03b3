package test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// asksTheSidecar checks the readiness probe of an application: it has one, which goes
// through the sidecar. By number, because a name is looked for in its own container.
func asksTheSidecar(t *testing.T, application, sidecar corev1.Container) {
	t.Helper()
	probe := application.ReadinessProbe
	if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Host != "" || probe.HTTPGet.Path == "" ||
		probe.HTTPGet.Port != intstr.FromInt32(sidecar.Ports[0].ContainerPort) {
		t.Errorf("the application's readiness probe is %s; want one that asks a path at the sidecar's port %d",
			inJSON(probe), sidecar.Ports[0].ContainerPort)
	}
}

// An application that listens on loopback, and has a probe at its own port, would never be
// ready: the kubelet asks the pod's address.
func TestApplicationsProbesGoThroughTheSidecar(t *testing.T) {
	pod := podOfTheManifest(t)
	asksTheSidecar(t, pod.Containers[0], sidecarOf(t, pod))
}

// The probes of the manifest, asked of a sidecar with its Caddyfile. While the store is away
// no pod starts, and the pods that run stay ready: what needs no store is answered. Only the
// application's own probe knows whether the application answers.
func TestProbesWithoutTheStoreAndWithoutTheApplication(t *testing.T) {
	pod, objects := podOfTheManifest(t), manifest(t, "sidecar.yaml")
	caddyfile := the[*corev1.ConfigMap](t, objects).Data["Caddyfile"]
	sidecar, application := sidecarOf(t, pod), pod.Containers[0]
	data, port, health, upstream := shortDir(t), freePort(t), freePort(t), freePort(t)
	file := filepath.Join(data, "Caddyfile")
	text := strings.NewReplacer(
		":8080 {", "http://127.0.0.1:"+port+" {", ":8081 {", "http://127.0.0.1:"+health+" {",
		"/data", data, "127.0.0.1:3000", "127.0.0.1:"+upstream,
	).Replace(caddyfile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, []string{"REDIS_URL=redis://127.0.0.1:1"}, "run", "--config", file)

	ports := map[intstr.IntOrString]string{intstr.FromString("dedup-health"): health, intstr.FromInt32(8080): port}
	ask := func(probe *corev1.Probe) error {
		_, err := get(http.DefaultClient, "http://127.0.0.1:"+ports[probe.HTTPGet.Port]+probe.HTTPGet.Path)
		return err
	}
	eventually(t, "it serves", func() error { return ask(sidecar.LivenessProbe) })
	if err := ask(sidecar.StartupProbe); err == nil || !strings.Contains(err.Error(), "store_unavailable") {
		t.Errorf("a pod would start without its store, so that a rollout with a wrong URL would go on: %v", err)
	}
	if err := ask(sidecar.ReadinessProbe); err != nil {
		t.Errorf("an outage of the store would take all pods away: %v", err)
	}
	if err := ask(application.ReadinessProbe); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("a pod without its application would be ready: %v", err)
	}

	listening := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Method)
	}))
	listening.Listener.Close()
	var err error
	if listening.Listener, err = net.Listen("tcp", "127.0.0.1:"+upstream); err != nil {
		t.Fatal(err)
	}
	listening.Start()
	t.Cleanup(listening.Close)
	if err := ask(application.ReadinessProbe); err != nil {
		t.Errorf("a pod that answers would not be ready: %v", err)
	}
	for _, c := range []struct {
		key  string
		want int
	}{{"", http.StatusOK}, {"order-1", http.StatusServiceUnavailable}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+port+"/", strings.NewReader("order"))
		if err != nil {
			t.Fatal(err)
		}
		if c.key != "" {
			request.Header.Set("Idempotency-Key", c.key)
		}
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("without the store, a POST with the key %q gets %s; want %d", c.key, resp.Status, c.want)
		}
	}
}
