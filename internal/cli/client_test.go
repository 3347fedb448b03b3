package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
)

// freed is a port at which nobody listens.
func freed(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// look runs keys list where nobody listens at the default, with the sockets of Caddy's data
// directory.
func look(t *testing.T, data string, args ...string) (said string, status int) {
	t.Helper()
	at := caddy.DefaultAdminListen
	caddy.DefaultAdminListen = freed(t)
	defer func() { caddy.DefaultAdminListen = at }()
	t.Setenv("CADDY_ADMIN", "")
	t.Setenv("XDG_DATA_HOME", filepath.Dir(data))
	var out bytes.Buffer
	status = execute(keysCommand, strings.NewReader(""), &out, &out, append([]string{"list"}, args...)...)
	return out.String(), status
}

// listen serves at the socket of a proxy.
func listen(t *testing.T, directory, name string, serve http.HandlerFunc) (path string) {
	t.Helper()
	path = filepath.Join(directory, "dedup-admin-"+name+".sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(serve)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	return path
}

func isAdmin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/dedup/keys/" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"status": 400}`)
		return
	}
	_, _ = io.WriteString(w, `{"keys": []}`)
}

func shortDirectory(t *testing.T) string {
	t.Helper()
	data := filepath.Join(deduptest.TempDir(t), "caddy")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	return data
}

// The one proxy that answers is asked, and one that was killed has only left its socket.
func TestSocketLeftByKilledProxy(t *testing.T) {
	directory := shortDirectory(t)
	listen(t, directory, "1", isAdmin)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(directory, "dedup-admin-2.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	if said, status := look(t, directory); status != 0 {
		t.Errorf("it ended with %d: %s", status, said)
	}
}

// Of two proxies one does not answer. The other is not taken for it: its keys would look as
// if they were all, and the wrong ones would be freed.
func TestSocketThatIsSilentIsAProxyToo(t *testing.T) {
	directory := shortDirectory(t)
	silent := listen(t, directory, "1", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	said, status := look(t, directory)
	if status != 3 || !strings.Contains(said, silent+" does not answer") {
		t.Errorf("alone, it ended with %d: %s", status, said)
	}
	answers := listen(t, directory, "2", isAdmin)
	said, status = look(t, directory)
	for _, word := range []string{"choose one with --address", silent, answers} {
		if status != 2 || !strings.Contains(said, word) {
			t.Errorf("beside another, it ended with %d and does not say %q: %s", status, word, said)
		}
	}
	if said, status := look(t, directory, "--address", "unix/"+answers); status != 0 {
		t.Errorf("with an address, it ended with %d: %s", status, said)
	}
}

func TestDirectoryThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "caddy")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said, status := look(t, file)
	if status != 3 || !strings.Contains(said, syscall.ENOTDIR.Error()) {
		t.Errorf("it ended with %d and does not say why: %s", status, said)
	}
	if said, status := look(t, filepath.Join(t.TempDir(), "caddy")); status != 3 || strings.Contains(said, "no such file") {
		t.Errorf("one that is not there: it ended with %d: %s", status, said)
	}
}

// An empty address is what a variable leaves that is not set.
func TestEmptyAddress(t *testing.T) {
	directory := shortDirectory(t)
	listen(t, directory, "1", isAdmin)
	if said, status := look(t, directory, "--address", ""); status != 2 || !strings.Contains(said, "--address is empty") {
		t.Errorf("it ended with %d: %s", status, said)
	}
	if said, status := look(t, directory, "--address", "2019"); status != 2 || !strings.Contains(said, "--address: ") || !strings.Contains(said, "localhost:2019") {
		t.Errorf("a port alone: it ended with %d: %s", status, said)
	}
}

func TestAddressesOfAdminAPIs(t *testing.T) {
	for text, want := range map[string]string{
		"localhost:2019":        "tcp localhost:2019",
		"localhost":             "tcp localhost:2019",
		":2020":                 "tcp :2020",
		"[::1]:2019":            "tcp [::1]:2019",
		"tcp4/localhost:2019":   "tcp4 localhost:2019",
		"unix//run/a.sock":      "unix /run/a.sock",
		"unix//run/a.sock|0600": "unix /run/a.sock",
		"unix/a.sock":           "unix a.sock",
	} {
		if got, err := parseAdmin(text); err != nil || got.Network+" "+got.JoinHostPort(0) != want {
			t.Errorf("%s is %+v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"2019", "/run", "/run/a.sock", "unix:/run/a.sock", "unix:///run/a.sock", "unix/", "localhost:2019-2020", "http://localhost:2019", "localhost:2019/dedup", "localhost:x"} {
		if got, err := parseAdmin(text); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "localhost:2019 or unix//run") {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
}
