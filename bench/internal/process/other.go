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

// Memory is what a process holds, in bytes.
type Memory struct{ Anonymous, Peak int64 }

// MemoryOf is known on Linux only.
func MemoryOf(int) (Memory, error) { return Memory{}, errSystem }

// Pause is there on Linux only.
func (p *Process) Pause() error { return errSystem }

// Continue is there on Linux only.
func (p *Process) Continue() error { return errSystem }

func start(*exec.Cmd) error         { return errSystem }
func terminate(p *os.Process) error { return p.Kill() }
