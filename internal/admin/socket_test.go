package admin

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever looks for the socket of a proxy finds it, whatever its directory is called,
// and a second proxy with the same address is refused.
func TestSocketsAreFound(t *testing.T) {
	directory, err := os.MkdirTemp("", "a[b]*?") // that of a test is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(directory)
	address := SocketAt(directory, "[::1]:8080")
	if !strings.HasSuffix(address, "dedup-admin---1-8080.sock|0600") {
		t.Errorf("the address is %s", address)
	}
	if err := PrepareSocket(address); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(directory, "dedup-admin---1-8080.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sockets, err := Sockets(directory)
	if err != nil || len(sockets) != 1 || sockets[0] != strings.TrimSuffix(address, SocketMode) {
		t.Errorf("found %q, %v; want that of %s", sockets, err, address)
	}
	if err := PrepareSocket(address); err == nil || !strings.Contains(err.Error(), "another proxy") {
		t.Errorf("a second proxy gets %v", err)
	}
}

func TestSocketsThatAreNone(t *testing.T) {
	for _, address := range []string{"", "localhost:2019"} {
		if err := PrepareSocket(address); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	}
	long := SocketAt(filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPath)), ":80")
	if err := PrepareSocket(long); err == nil || !strings.Contains(err.Error(), "XDG_DATA_HOME") {
		t.Errorf("a path that is too long: %v", err)
	}
}
