package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor times in /proc. The kernel has 100 in a second for all
// programs, whatever its own clock does.
const tick = 10 * time.Millisecond

// CPU returns the processor time that a process has taken, its threads together.
func CPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(stat)
}

// parseStat reads a line of /proc/PID/stat, as proc_pid_stat(5) has it: utime and stime
// are the fields 14 and 15. The second field is the program's name in parentheses, and
// may have spaces and parentheses in it.
func parseStat(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("a line of /proc/PID/stat with %d fields behind the name, not 13 or more: %q", len(fields), stat)
	}
	total := int64(0)
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("a time in /proc/PID/stat: %w", err)
		}
		total += ticks
	}
	return time.Duration(total) * tick, nil
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
