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
)

func init() { children["flush"] = writeWithoutFlushes }

// What is not flushed is lost when the machine stops. So a store whose flushes fail
// must acknowledge nothing: one that does has not waited for its flush, or has made
// none.
func TestFailedFlushAcknowledgesNothing(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	if _, err := s.Claim(t.Context(), claimOf("running")); err != nil {
		t.Fatal(err)
	}
	if err := keep(t.Context(), s, "kept"); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	if err := child(t, "flush", path).Run(); err != nil {
		t.Fatal(err)
	}
}

// writeWithoutFlushes tries each of the writes in a process whose flushes fail.
func writeWithoutFlushes(path string) error {
	const variable = "CADDY_DEDUP_FLUSHES_FAIL"
	if os.Getenv(variable) == "" {
		// The filter is that of one thread, and of the program that it becomes.
		runtime.LockOSThread()
		if err := failFlushes(); err != nil {
			return fmt.Errorf("making flushes fail: %w", err)
		}
		return syscall.Exec("/proc/self/exe", []string{os.Args[0], path}, append(os.Environ(), variable+"=1"))
	}
	ctx := context.Background()
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	running, _, err := s.Lookup(ctx, key("running"))
	if err != nil {
		return err
	}
	var wrong []error
	for name, write := range map[string]func() error{
		"claim":  func() error { _, err := s.Claim(ctx, claimOf("new")); return err },
		"renew":  func() error { return s.Renew(ctx, claimOf("running")) },
		"settle": func() error { return s.Settle(ctx, key("running"), running, completeAs("late")) },
		"free":   func() error { _, err := s.Free(ctx, key("kept"), "token of an operator"); return err },
		"forget": func() error { return s.Forget(ctx, key("kept")) },
	} {
		// Not that one fails because of what the one before has left.
		if err := write(); err == nil || !strings.Contains(err.Error(), syscall.EIO.Error()) {
			wrong = append(wrong, fmt.Errorf("%s, with a flush that fails: %w; want the error of the flush", name, orNone(err)))
		}
	}
	if record, _, err := s.Lookup(ctx, key("new")); record != nil || err != nil {
		wrong = append(wrong, fmt.Errorf("the claim that failed: %+v, %w", record, orNone(err)))
	}
	return errors.Join(append(wrong, s.Close())...)
}

func orNone(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

// failFlushes makes fsync and fdatasync fail with EIO, by a filter of system calls
// (seccomp(2)).
func failFlushes() error {
	const (
		setSeccomp    = 22 // PR_SET_SECCOMP
		setNoNewPrivs = 38 // PR_SET_NO_NEW_PRIVS, without which only root may filter
		filterMode    = 2  // SECCOMP_MODE_FILTER
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
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); err != 0 {
		return err
	}
	if _, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, setSeccomp, filterMode, uintptr(unsafe.Pointer(&filter)), 0, 0, 0); err != 0 {
		return err
	}
	return nil
}
