package keyscommand

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
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

// look runs keys list where nobody listens at the default, with the sockets of a directory.
func look(t *testing.T, directory string, args ...string) (said string, status int) {
	t.Helper()
	t.Setenv("CADDY_ADMIN", "")
	nobody := freed(t)
	p := Program{
		DefaultAddress: func() string { return nobody },
		Directory:      func() string { return directory },
		ParseAddress: func(text string) (Address, error) {
			path, isSocket := strings.CutPrefix(text, "unix/")
			if isSocket {
				return Address{Network: "unix", Address: path, Socket: true}, nil
			}
			return Address{Network: "tcp", Address: text}, nil
		},
		Exit: func(_ *cobra.Command, ended int) error { status = ended; return nil },
	}
	cmd := &cobra.Command{Use: "keys", SilenceUsage: true}
	p.SetUp(cmd)
	var out bytes.Buffer
	cmd.SetArgs(append([]string{"list"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	if err := cmd.Execute(); err != nil {
		status = 1
	}
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

// hangsUp ends a connection without an answer.
func hangsUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "find") // that of a test is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	return directory
}

// The one proxy that answers is asked, and one that was killed has only left its socket.
func TestSocketThatWasLeftIsNobody(t *testing.T) {
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
	silent := listen(t, directory, "1", hangsUp)
	said, status := look(t, directory)
	if status != 3 || !strings.Contains(said, "no admin API of caddy-dedup answers") || !strings.Contains(said, silent) {
		t.Errorf("alone, it ended with %d: %s", status, said)
	}
	answers := listen(t, directory, "2", isAdmin)
	said, status = look(t, directory)
	for _, word := range []string{"choose one with --address", silent + " does not answer", answers} {
		if status != 3 || !strings.Contains(said, word) {
			t.Errorf("beside another, it ended with %d and does not say %q: %s", status, word, said)
		}
	}
	if said, status := look(t, directory, "--address", "unix/"+answers); status != 0 {
		t.Errorf("with an address, it ended with %d: %s", status, said)
	}
}

func TestDirectoryThatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said, status := look(t, file)
	if status != 3 || !strings.Contains(said, syscall.ENOTDIR.Error()) {
		t.Errorf("it ended with %d and does not say why: %s", status, said)
	}
	if said, status := look(t, file+".not"); status != 3 || strings.Contains(said, "no such file") {
		t.Errorf("one that is not there: it ended with %d: %s", status, said)
	}
}

func TestSilence(t *testing.T) {
	dial := func(err error) error {
		return exitError{exitNoAnswer, &url.Error{Op: "Get", Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}}}
	}
	for _, c := range []struct {
		err           error
		silent, hangs bool
	}{
		{dial(syscall.ECONNREFUSED), false, false},
		{dial(syscall.ENOENT), false, false},
		{dial(syscall.EACCES), true, false},
		{dial(syscall.EAGAIN), true, true}, // too many wait for it
		{dial(syscall.ETIMEDOUT), true, true},
		{exitError{exitNoAnswer, &url.Error{Op: "Get", Err: context.DeadlineExceeded}}, true, true},
		{exitError{exitNoAnswer, &url.Error{Op: "Get", Err: io.EOF}}, true, false},
		{exitError{exitNoAnswer, fmt.Errorf("it %w: %w", errNotOurs, fs.ErrNotExist)}, false, false},
		{errors.New("malformed"), true, false},
	} {
		if silent, hangs := isSilent(c.err), hangs(c.err); silent != c.silent || hangs != c.hangs {
			t.Errorf("%v: silent %v, hangs %v", c.err, silent, hangs)
		}
	}
}

// An empty address is what a variable leaves that is not set.
func TestEmptyAddress(t *testing.T) {
	directory := shortDirectory(t)
	listen(t, directory, "1", isAdmin)
	for says, args := range map[string][]string{
		"--address is empty": {"--address", ""},
		"takes one value":    {"--address", "localhost:1", "--address", "localhost:2"},
	} {
		if said, status := look(t, directory, args...); status != 2 || !strings.Contains(said, says) {
			t.Errorf("%q ended with %d and does not say %q: %s", args, status, says, said)
		}
	}
}
