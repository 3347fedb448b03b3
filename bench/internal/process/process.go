// Package process runs the servers of a benchmark as processes, reads what they cost, and
// ends them: also when the run fails, or is interrupted.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// endPatience is how long a process may take to stop before it is killed.
const endPatience = 10 * time.Second

// Process is one running server.
type Process struct {
	// Name is what the reports of a run call it.
	Name string
	// PID is its process ID.
	PID int

	log      string
	command  *exec.Cmd
	stopping atomic.Bool
	// exited is closed when the process is gone and waited for.
	exited chan struct{}
}

// Set is all processes of a run.
type Set struct {
	ctx  context.Context
	fail context.CancelCauseFunc
	dir  string

	mu      sync.Mutex
	running []*Process
	started int
}

// NewSet returns an empty set, whose logs go to a directory. Its context is that of the
// run: it ends with the given one, and as soon as a process ends by itself. The cause
// then says which, and what it said last.
func NewSet(ctx context.Context, dir string) (*Set, context.Context) {
	ctx, fail := context.WithCancelCause(ctx)
	return &Set{ctx: ctx, fail: fail, dir: dir}, ctx
}

// Start starts a process and does not wait for it to serve.
func (s *Set) Start(name string, env []string, program string, arguments ...string) (*Process, error) {
	if s.ctx.Err() != nil {
		return nil, context.Cause(s.ctx)
	}
	s.mu.Lock()
	s.started++
	log := filepath.Join(s.dir, fmt.Sprintf("%d.log", s.started))
	s.mu.Unlock()
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the process has it by then
	p := &Process{Name: name, log: log, command: exec.Command(program, arguments...), exited: make(chan struct{})}
	p.command.Env = append(os.Environ(), env...)
	p.command.Stdout, p.command.Stderr = file, file
	if err := start(p.command); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.PID = p.command.Process.Pid
	s.mu.Lock()
	s.running = append(s.running, p)
	s.mu.Unlock()
	go func() {
		err := p.command.Wait()
		close(p.exited)
		if !p.stopping.Load() {
			s.fail(fmt.Errorf("%s ended by itself (%s); it said last:\n%s", name, exitOf(err), p.Tail()))
		}
	}()
	return p, nil
}

func exitOf(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// Await returns nil as soon as the condition holds, which it asks for until the process
// ends, or the time is over.
func (s *Set) Await(p *Process, within time.Duration, holds func() error) error {
	for deadline := time.Now().Add(within); ; {
		err := holds()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready after %s: %w; it said last:\n%s", p.Name, within, err, p.Tail())
		}
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Stop ends a process and returns when it is gone.
func (s *Set) Stop(p *Process) {
	p.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.running {
		if other == p {
			s.running = append(s.running[:i], s.running[i+1:]...)
			return
		}
	}
}

// Close ends all processes, the last one first, and returns when they are gone.
func (s *Set) Close() {
	s.mu.Lock()
	running := s.running
	s.running = nil
	s.mu.Unlock()
	for i := len(running) - 1; i >= 0; i-- {
		running[i].stop()
	}
	s.fail(errors.New("the run is over"))
}

func (p *Process) stop() {
	p.stopping.Store(true)
	_ = terminate(p.command.Process) // it may be gone already
	select {
	case <-p.exited:
	case <-time.After(endPatience):
		_ = p.command.Process.Kill()
		<-p.exited
	}
}

// Tail is what the process said last.
func (p *Process) Tail() string {
	const most = 3000
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return strings.TrimSpace(string(text))
}
