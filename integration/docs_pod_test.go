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

// standForACluster lets a guide run where there is none: two processes with the manifest's own
// Caddyfile stand for the pods, before the page's own service. Docker, kind and kubectl take the
// page's commands alone; what is applied has to be the manifest with the images that the page has
// built.
func (s *shell) standForACluster(t *testing.T, blocks []block) {
	t.Helper()
	s.awaited = regexp.MustCompile(`^kubectl port-forward \S+ (\d+):.*&$`)
	records, service := redistest.Start(t), freeport.Of(t)
	for _, b := range blocks {
		if b.language == "caddyfile" && b.file != "" {
			s.start(t, "service", strings.Replace(b.text, ":3000 ", fmt.Sprintf(":%d ", service), 1))
		}
	}
	caddyfile, err := k8s.Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	pods := ""
	for _, name := range []string{"pod1", "pod2"} {
		port, dir := freeport.Of(t), filepath.Join(s.dir, name)
		s.start(t, name, strings.NewReplacer(
			"admin unix//data/admin.sock", "admin unix/"+adminSocket(dir), "{env.REDIS_URL}", "redis://"+records.Addr,
			"\n:8080 ", fmt.Sprintf("\n:%d ", port), "\n:8081 ", fmt.Sprintf("\n:%d ", freeport.Of(t)),
			"127.0.0.1:3000", fmt.Sprintf("127.0.0.1:%d", service),
		).Replace(onLoopback(caddyfile)))
		pods += fmt.Sprintf("%d %s\n", port, dir)
	}
	s.write(t, "pods", pods)
	s.here = append(s.here, "redis:6379", records.Addr)
	local := strings.TrimPrefix(s.inPlaceOf("localhost:8080"), "127.0.0.1:")
	s.program(t, "docker", `case "$*" in
"build -t caddy-dedup:try .") [ -f Dockerfile ] ;;
"build -t payments:try payments") [ "$(head -1 payments/Dockerfile)" = "FROM caddy-dedup:try" ] && [ -f "payments/$(sed -n 's/^COPY \([^ ]*\) .*/\1/p' payments/Dockerfile)" ] ;;
*) false ;;
esac || echo "docker $*: failed" >&2`)
	s.program(t, "kind", `case "$*" in "create cluster"|"load docker-image caddy-dedup:try payments:try") ;; *) echo "kind $*: not a command of the page" >&2; exit 1 ;; esac`)
	s.program(t, "kubectl", fmt.Sprintf(`read -r port dir < %[1]s/pods
case "$*" in
"create deployment redis --image=redis:7"|"expose deployment redis --port=6379"|"rollout status deployment/payments") ;;
"apply -f -") cat > %[1]s/applied.yaml ;;
"delete pod -l app.kubernetes.io/name=payments") tail -n 1 %[1]s/pods > %[1]s/left && mv %[1]s/left %[1]s/pods ;;
"port-forward service/payments %[2]s:80")
  printf '{\nadmin off\npersist_config off\ndefault_bind 127.0.0.1\n}\n:%[2]s {\nreverse_proxy 127.0.0.1:%%s\n}\n' "$port" > %[1]s/forward
  exec %[3]s run --config %[1]s/forward --adapter caddyfile 2>%[1]s/forward.log ;;
"exec deploy/payments -c dedup -- caddy-dedup "*) shift 6; CADDY_ADMIN=unix/$dir/admin.sock exec %[3]s "$@" ;;
*) echo "kubectl $*: not a command of the page" >&2; exit 1 ;;
esac`, s.dir, local, binary))
	t.Cleanup(func() {
		applied := s.toPage(s.read(t, "applied.yaml"))
		for _, want := range []string{"image: caddy-dedup:try\n", "image: payments:try\n", "redis-url: redis://redis:6379\n"} {
			if !strings.Contains(applied, want) {
				t.Errorf("what the page applies does not have %q", want)
			}
		}
		if strings.Contains(applied, "registry.example.com") {
			t.Error("what the page applies has an image of a registry that does not exist")
		}
	})
}

// start runs a Caddyfile in a directory of its own.
func (s *shell) start(t *testing.T, name, caddyfile string) {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	startCaddyfile(t, dir, 0, strings.NewReplacer(s.here...).Replace(caddyfile))
}
