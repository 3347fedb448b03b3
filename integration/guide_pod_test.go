package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/k8s"
)

// TestGuideOfAPod types in the guide of a pod where there is no cluster: two processes
// with the manifest's own Caddyfile stand for the pods, before the page's own service.
// What docker, kind and kubectl are asked is compared; what is applied is the manifest
// with the images that the page has built.
func TestGuideOfAPod(t *testing.T) {
	t.Parallel()
	stand := newGuideStand(t)
	stand.awaited = regexp.MustCompile(`^kubectl port-forward \S+ (\d+):.*&$`)
	records := redistest.Start(t)
	service := freeport.Of(t)
	for _, step := range readGuide(t, podGuide) {
		if step.file == "payments/service.caddyfile" {
			startGuideProcess(t, strings.Replace(step.text, ":3000 ", fmt.Sprintf(":%d ", service), 1))
		}
	}
	caddyfile, err := k8s.Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	var pods []string
	for range 2 {
		port, dir := freeport.Of(t), shortTempDir(t)
		startGuideProcess(t, strings.NewReplacer(
			"admin unix//data/admin.sock", "admin unix/"+adminSocket(dir), "{env.REDIS_URL}", "redis://"+records.Addr,
			"\n:8080 ", fmt.Sprintf("\n:%d ", port), "\n:8081 ", fmt.Sprintf("\n:%d ", freeport.Of(t)),
			"127.0.0.1:3000", fmt.Sprintf("127.0.0.1:%d", service),
		).Replace(onLoopback(caddyfile)))
		pods = append(pods, fmt.Sprintf("%d %s", port, dir))
	}
	if err := os.WriteFile(filepath.Join(stand.dir, "pods"), []byte(strings.Join(pods, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stand.here = append(stand.here, "redis:6379", records.Addr)
	local := strings.TrimPrefix(stand.inPlaceOf("localhost:8080"), "127.0.0.1:")
	pod := fmt.Sprintf("read -r port dir < %s/pods\n", stand.dir)
	stand.programs["docker"] = `case "$*" in
"build -t caddy-dedup:try .") [ -f Dockerfile ] ;;
"build -t payments:try payments") [ "$(head -1 payments/Dockerfile)" = "FROM caddy-dedup:try" ] && [ -f "payments/$(sed -n 's/^COPY \([^ ]*\) .*/\1/p' payments/Dockerfile)" ] ;;
*) false ;;
esac || echo "docker $*: failed" >&2`
	stand.programs["kind"] = `case "$*" in "create cluster"|"load docker-image caddy-dedup:try payments:try") ;; *) echo "kind $*: not a command of the page" >&2; exit 1 ;; esac`
	stand.programs["kubectl"] = pod + fmt.Sprintf(`case "$*" in
"create deployment redis --image=redis:7"|"expose deployment redis --port=6379"|"rollout status deployment/payments") ;;
"apply -f -") cat > %[1]s/applied.yaml ;;
"delete pod -l app.kubernetes.io/name=payments") tail -n 1 %[1]s/pods > %[1]s/left && mv %[1]s/left %[1]s/pods ;;
"port-forward service/payments %[2]s:80")
  printf '{\nadmin off\npersist_config off\ndefault_bind 127.0.0.1\n}\n:%[2]s {\nreverse_proxy 127.0.0.1:%%s\n}\n' "$port" > %[1]s/forward
  exec %[3]s run --config %[1]s/forward --adapter caddyfile 2>%[1]s/forward.log ;;
"exec deploy/payments -c dedup -- caddy-dedup "*) shift 6; CADDY_ADMIN=unix/$dir/admin.sock exec %[3]s "$@" ;;
*) echo "kubectl $*: not a command of the page" >&2; exit 1 ;;
esac`, stand.dir, local, binary)
	testGuide(t, podGuide, stand)

	applied, err := os.ReadFile(filepath.Join(stand.dir, "applied.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image: caddy-dedup:try\n", "image: payments:try\n", "redis-url: redis://redis:6379\n"} {
		if !strings.Contains(string(applied), want) {
			t.Errorf("what the page applies does not have %q", want)
		}
	}
	if strings.Contains(string(applied), "registry.example.com") {
		t.Error("what the page applies has an image that nobody has")
	}
}

// startGuideProcess runs a Caddyfile.
func startGuideProcess(t *testing.T, caddyfile string) {
	t.Helper()
	dir := shortTempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	startProcess(t, dir, "run", "--config", file).awaitLog(t, "serving initial configuration", func(e entry) bool {
		return e.text("msg") == "serving initial configuration"
	})
}
