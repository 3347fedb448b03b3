package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the processor time that a process has taken, its threads together. It asks
// the process's own clock, which counts nanoseconds; /proc/PID/stat has only hundredths of
// a second, and a Redis that answers for a tenth of a second can take less.
func CPU(pid int) (time.Duration, error) {
	// As clock_getcpuclockid(3) makes it: the complement of the process, and 2 for the
	// scheduler's count.
	var taken unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &taken); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(taken.Nano()), nil
}

// Anonymous returns how many bytes of a process are resident and in no file.
func Anonymous(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return anonymousIn(status)
}

// anonymousIn reads /proc/PID/status, as proc_pid_status(5) has it.
func anonymousIn(status []byte) (int64, error) {
	_, rest, found := bytes.Cut(status, []byte("\nRssAnon:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	kilobytes, isKB := strings.CutSuffix(strings.TrimSpace(string(line)), " kB")
	n, err := strconv.ParseInt(kilobytes, 10, 64)
	if !found || !isKB || err != nil {
		return 0, fmt.Errorf("/proc/PID/status has no RssAnon in kB, but %q", line)
	}
	return n << 10, nil
}
