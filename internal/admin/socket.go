package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

const (
	socketNetwork = "unix/"
	// The prefix and suffix of the name of a proxy's socket.
	socketPrefix = "dedup-admin-"
	socketSuffix = ".sock"
	// SocketNames is the pattern of these names.
	SocketNames = socketPrefix + "*" + socketSuffix
	// SocketMode, at the end of the address of a socket, restricts the admin API to the user of the
	// process.
	SocketMode = "|0600"
	// maxSocketPath is the maximum length of the path of a unix socket on every system (sun_path in unix(7) has 108 bytes, elsewhere 104, with a NUL).
	maxSocketPath = 103
)

// SocketAt returns the address of the admin API of a proxy that listens on the given
// address: a socket in this directory.
func SocketAt(directory, listen string) string {
	name := strings.NewReplacer(":", "-", "[", "", "]", "", "%", "-").Replace(strings.TrimPrefix(listen, ":"))
	return socketNetwork + filepath.Join(directory, socketPrefix+name+socketSuffix) + SocketMode
}

// Sockets returns the addresses of the sockets that proxies have, or have left, in this
// directory. If the directory does not exist, there are none; if it cannot be read, that is an error.
func Sockets(directory string) (sockets []string, err error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, socketPrefix) && strings.HasSuffix(name, socketSuffix) {
			sockets = append(sockets, socketNetwork+filepath.Join(directory, name))
		}
	}
	return sockets, err
}

// PrepareSocket makes the directory of the admin API's socket, if its address is one. A socket left by an
// earlier process is fine. One that still answers belongs to another proxy, and is an error.
func PrepareSocket(address string) error {
	address, isSocket := strings.CutPrefix(address, socketNetwork)
	if !isSocket {
		return nil
	}
	path, _, _ := strings.Cut(address, "|")
	if len(path) > maxSocketPath {
		return fmt.Errorf("the admin API's socket %s has a path of %d bytes; the maximum is %d; set XDG_DATA_HOME to a shorter directory, or use --admin off",
			path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("the directory of the admin API's socket cannot be made (%w); set XDG_DATA_HOME to one that can be written, or use --admin off", err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return fmt.Errorf("another proxy with this address runs: it answers on the admin API's socket %s", path)
	}
	return nil
}
