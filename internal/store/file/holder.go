package file

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// holderPath is a small file beside the store file. It names the process that has
// the store open: its number and its host. Only error messages use it; what keeps a
// second process out is the lock.
func holderPath(path string) string { return path + ".pid" }

func writeHolder(path string) error {
	host, _ := os.Hostname() // empty where the system has none
	return os.WriteFile(holderPath(path), fmt.Appendf(nil, "%d %s\n", os.Getpid(), host), 0o600)
}

func removeHolder(path string) { _ = os.Remove(holderPath(path)) }

// holder describes the process that has the file open, as far as it is known.
func holder(path string) string {
	const unknown = "another process"
	text, err := os.ReadFile(holderPath(path))
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
		return unknown // the process that wrote the file has crashed
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
