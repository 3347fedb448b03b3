package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// starts are done by one thread that lives as long as this process: the kernel kills a
// child with a death signal when the thread that made it ends.
var starts = make(chan func())

func init() {
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
}

// start starts a command that is killed with this process, however that ends. The command
// does not get the terminal's interrupts: it is stopped in order.
func start(command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	failed := make(chan error)
	starts <- func() { failed <- command.Start() }
	return <-failed
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
