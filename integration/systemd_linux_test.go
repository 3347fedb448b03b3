package integration

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// installed is where the units expect the binary.
const installed = "/usr/local/bin/caddy-dedup"

// unit is what a unit of systemd says, by the names of its settings.
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(unitsDirectory, name))
	if err != nil {
		t.Fatal(err)
	}
	u := make(unit)
	for line := range strings.Lines(string(text)) {
		setting, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(setting, "#") {
			u[setting] = append(u[setting], value)
		}
	}
	return u
}

// systemd itself finds nothing wrong with the units, and little that they leave open.
func TestSystemdUnitsAreSound(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("DEDUP_SYSTEMD") != "" {
			t.Fatal(err)
		}
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	for _, name := range []string{"caddy-dedup.service", "caddy-dedup@.service"} {
		text, err := os.ReadFile(filepath.Join(unitsDirectory, name))
		if err != nil {
			t.Fatal(err)
		}
		name = strings.Replace(name, "@.", "@orders.", 1)
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte(installed), []byte(binary)), 0o600); err != nil {
			t.Fatal(err)
		}
		output, err := exec.Command(analyze, "verify", file).CombinedOutput()
		for line := range strings.Lines(string(output)) {
			if strings.Contains(line, name) || strings.Contains(line, file) { // others are of the machine's own units
				t.Errorf("%s: %s", name, line)
			}
		}
		if err != nil && !strings.Contains(string(output), name) {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
		// 0 is a unit that may do nothing, and 100 one that may do everything.
		output, err = exec.Command(analyze, "security", "--offline=true", "--threshold=20", file).CombinedOutput()
		switch {
		case strings.Contains(string(output), "unrecognized option"):
			t.Skipf("this systemd-analyze is too old: %s", output)
		case err != nil:
			t.Errorf("%s leaves more open than it should: %v\n%s", name, err, output)
		}
	}
}

// Both units confine what they run in the same way.
func TestSystemdUnitsAreAlike(t *testing.T) {
	t.Parallel()
	ofFile, ofFlags := readUnit(t, "caddy-dedup.service"), readUnit(t, "caddy-dedup@.service")
	own := []string{"Description", "Environment", "EnvironmentFile", "ExecReload", "ExecStart", "RuntimeDirectory", "RuntimeDirectoryMode", "StateDirectory"}
	for _, all := range []unit{ofFile, ofFlags} {
		for setting := range all {
			if !slices.Contains(own, setting) && !slices.Equal(ofFile[setting], ofFlags[setting]) {
				t.Errorf("%s is %q in one unit, and %q in the other", setting, ofFile[setting], ofFlags[setting])
			}
		}
	}
	if len(ofFile) < 40 {
		t.Errorf("the unit has %d settings: are they looked for where they are?", len(ofFile))
	}
}

// notified is what a service has told systemd.
type notified struct {
	address string
	mu      sync.Mutex
	said    []string
}

func listenNotify(t *testing.T, dir string) *notified {
	t.Helper()
	n := &notified{address: filepath.Join(dir, "notify")}
	socket, err := net.ListenPacket("unixgram", n.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			size, _, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			n.mu.Lock()
			n.said = append(n.said, strings.Fields(string(buffer[:size]))...)
			n.mu.Unlock()
		}
	}()
	return n
}

func (n *notified) count(what string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	found := 0
	for _, said := range n.said {
		if said == what {
			found++
		}
	}
	return found
}

// service is a unit whose commands are run as systemd would, in a directory.
type service struct {
	unit
	dir    string
	values *strings.Replacer
}

func (s service) environment(notify *notified) []string {
	env := []string{"PATH=", "NOTIFY_SOCKET=" + notify.address}
	for _, line := range s.unit["Environment"] {
		env = append(env, strings.Fields(s.values.Replace(line))...)
	}
	return env
}

func (s service) command(setting string) []string {
	return strings.Fields(s.values.Replace(s.unit[setting][0]))
}

func (s service) start(t *testing.T, notify *notified) *caddy {
	t.Helper()
	words := s.command("ExecStart")
	p := startProcessWith(t, s.dir, s.environment(notify), words...)
	eventually(t, "it says that it is ready", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("it ended: %v\n%s", p.err, p.log)
		default:
		}
		return notify.count("READY=1") > 0
	})
	return p
}

// The unit's Caddyfile serves, and a reload reaches the process where the unit says that
// its admin API is.
func TestSystemdUnitServes(t *testing.T) {
	t.Parallel()
	dir := shortTempDir(t)
	up := startUpstream(t, answers201)
	text, err := os.ReadFile(filepath.Join(unitsDirectory, "Caddyfile"))
	if err != nil {
		t.Fatal(err)
	}
	port := freeport.Of(t)
	caddyfile := filepath.Join(dir, "Caddyfile")
	shown := strings.NewReplacer(":8080 {", fmt.Sprintf(":%d {\n\tbind 127.0.0.1", port), "localhost:3000", up.addr).Replace(string(text))
	if err := os.WriteFile(caddyfile, []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "caddy-dedup"), 0o700); err != nil { // as RuntimeDirectory and StateDirectory do
		t.Fatal(err)
	}
	notify := listenNotify(t, dir)
	s := service{readUnit(t, "caddy-dedup.service"), dir, strings.NewReplacer("%S", dir, "%t", dir, installed, binary, "/etc/caddy-dedup/Caddyfile", caddyfile)}
	p := s.start(t, notify)
	p.addr = fmt.Sprintf("127.0.0.1:%d", port)
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")

	for _, words := range [][]string{s.command("ExecReload"), {binary, "health"}, {binary, "keys", "show", "k"}} {
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Env = s.environment(notify)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", words, err, output)
		}
	}
	eventually(t, "it has told of the reload", func() bool { return notify.count("RELOADING=1") > 0 && notify.count("READY=1") > 1 })
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	p.terminate(t)
	if code := p.awaitExit(t); code != 0 || notify.count("STOPPING=1") == 0 {
		t.Errorf("it ended with %d, and told of its end %d times", code, notify.count("STOPPING=1"))
	}
}

func TestSystemdUnitOfAProxyServes(t *testing.T) {
	t.Parallel()
	dir := shortTempDir(t)
	up := startUpstream(t, answers201)
	addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	notify := listenNotify(t, dir)
	text, err := os.ReadFile(filepath.Join(unitsDirectory, "caddy-dedup@.service"))
	if err != nil {
		t.Fatal(err)
	}
	// The example in the unit, as EnvironmentFile would have it.
	_, flags, _ := strings.Cut(string(text), "# PROXY_FLAGS=\"")
	flags, _, _ = strings.Cut(flags, "\"")
	flags = strings.NewReplacer(":8080", addr, "localhost:3000", up.addr).Replace(flags)
	s := service{readUnit(t, "caddy-dedup@.service"), dir, strings.NewReplacer("%S", dir, "%i", "orders", installed, binary, "$PROXY_FLAGS", flags)}
	p := s.start(t, notify)
	p.addr = addr
	options := []option{header("X-GitHub-Delivery", "1"), header("X-GitHub-Hook-ID", "7"), host("hooks.test")}
	first := p.post(t, "/", "", "{}", options...)
	wantFresh(t, first, 201, "run 1 of 1")
	wantReplay(t, p.post(t, "/", "", "{}", options...), first)
	cmd := exec.CommandContext(t.Context(), binary, "keys", "list", "--json")
	cmd.Env = []string{"XDG_DATA_HOME=" + filepath.Join(dir, "caddy-dedup-orders")}
	if output, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(output), "github") {
		t.Errorf("keys list: %v\n%s", err, output)
	}
	for name := range filesIn(t, dir) {
		if !strings.HasPrefix(name, filepath.Join(dir, "caddy-dedup-orders")+"/") {
			t.Errorf("it has written %s, outside of its directory", name)
		}
	}
}
