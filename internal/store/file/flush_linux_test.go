package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func init() { children["flush"] = writeWithoutFlushes }

// What is not flushed is lost when the machine stops. So a store whose flushes fail
// must acknowledge nothing: one that does has not waited for its flush, or has made
// none.
func TestFailedFlushAcknowledgesNothing(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	if _, err := s.Claim(t.Context(), counted("running")); err != nil {
		t.Fatal(err)
	}
	if err := keep(t.Context(), s, "kept"); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	for _, write := range []string{"claim", "settle", "free", "forget"} {
		cmd := child(t, "flush", path)
		cmd.Env = append(cmd.Env, which+"="+write)
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v", write, err)
		}
	}
}

// which is the environment variable that says which write is tried.
const which = "CADDY_DEDUP_WRITE"

// writeWithoutFlushes tries a write in a process whose flushes fail.
func writeWithoutFlushes(path string) error {
	ctx := context.Background()
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	running, _, err := s.Lookup(ctx, key("running"))
	if err != nil {
		return err
	}
	if err := failFlushes(); err != nil {
		return fmt.Errorf("making flushes fail: %w", err)
	}
	writes := map[string]func() error{
		"claim":  func() error { _, err := s.Claim(ctx, counted("new")); return err },
		"settle": func() error { return s.Settle(ctx, key("running"), running, completeAs("late")) },
		"free": func() error {
			_, err := s.Free(ctx, key("kept"), "token of an operator", idempotency.Seen{})
			return err
		},
		"forget": func() error { return s.Forget(ctx, key("kept"), idempotency.Seen{}) },
	}
	// After the first that fails, the store is given up: each has to be the first once.
	write := writes[os.Getenv(which)]
	if write == nil {
		return fmt.Errorf("there is no write %q", os.Getenv(which))
	}
	if err := write(); err == nil || !strings.Contains(err.Error(), syscall.EIO.Error()) {
		return fmt.Errorf("with a flush that fails: %w; want the error of the flush", orNone(err))
	}
	if _, err := s.Claim(ctx, claimOf("another")); err == nil {
		return errors.New("a claim was acknowledged after a flush that failed")
	}
	return nil // and it cannot be closed
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// failFlushes makes fsync and fdatasync fail with EIO from now on, in all threads of the
// process, by a filter of system calls (seccomp(2)).
func failFlushes() error {
	const (
		setNoNewPrivs = 38 // PR_SET_NO_NEW_PRIVS, without which only root may filter
		filterMode    = 1  // SECCOMP_SET_MODE_FILTER
		allThreads    = 1  // SECCOMP_FILTER_FLAG_TSYNC
		allow         = 0x7fff0000
		fail          = 0x00050000 | uint32(syscall.EIO)
	)
	program := []syscall.SockFilter{
		{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS}, // the number of the call
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, Jt: 2, K: syscall.SYS_FSYNC},
		{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, Jt: 1, K: syscall.SYS_FDATASYNC},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: allow},
		{Code: syscall.BPF_RET | syscall.BPF_K, K: fail},
	}
	filter := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // the next two calls are about one thread
	defer runtime.UnlockOSThread()
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); err != 0 {
		return err
	}
	if thread, _, err := syscall.RawSyscall(unix.SYS_SECCOMP, filterMode, allThreads, uintptr(unsafe.Pointer(&filter))); err != 0 || thread != 0 {
		return fmt.Errorf("seccomp: thread %d, %w", thread, err)
	}
	return nil
}
