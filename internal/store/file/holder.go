package file

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// writeHolder writes a small file that names the process which has the store open: its
// number and its host. Only error messages use it; what keeps a second process out is
// the lock.
func writeHolder(name string, fs vfs.FS) error {
	host, _ := os.Hostname() // empty where the system has none
	return writeFile(fs, name, fmt.Sprintf("%d %s\n", os.Getpid(), host))
}

// holder describes the process that has the store open, as far as it is known.
func holder(name string, fs vfs.FS) string {
	const unknown = "another process"
	text, err := readFile(fs, name)
	if err != nil {
		return unknown
	}
	number, host, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(number)
	if err != nil || pid <= 0 {
		return unknown
	}
	here, _ := os.Hostname()
	switch {
	case host != here:
		return fmt.Sprintf("process %d on host %s", pid, host)
	case pid == os.Getpid():
		return fmt.Sprintf("this process itself (%d)", pid)
	case !running(pid):
		return unknown // the process that wrote it has crashed
	default:
		return fmt.Sprintf("process %d", pid)
	}
}

func running(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	err = process.Signal(syscall.Signal(0))
	return err == nil || os.IsPermission(err)
}
