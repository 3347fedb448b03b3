package main

import (
	"os"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // the arguments are right
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

var anonymous = regexp.MustCompile(`(?m)^RssAnon:\s*(\d+) kB$`)

func anonymousMB() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	found := anonymous.FindSubmatch(status)
	if found == nil {
		return 0
	}
	kilobytes, _ := strconv.ParseFloat(string(found[1]), 64) // it is digits
	return kilobytes * 1024 / 1e6
}

// flushData flushes a file without its times, as engines do.
func flushData(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
