//go:build !linux

package process

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// errSystem is the answer on other systems: what a process costs is read from /proc.
var errSystem = errors.New("the benchmark runs on Linux only")

// CPU is known on Linux only.
func CPU(int) (time.Duration, error) { return 0, errSystem }

// Anonymous is known on Linux only.
func Anonymous(int) (int64, error) { return 0, errSystem }

func start(*exec.Cmd) error         { return errSystem }
func terminate(p *os.Process) error { return p.Kill() }
