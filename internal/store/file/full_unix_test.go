//go:build unix

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func init() { children["full"] = fillDisk }

func TestFullDisk(t *testing.T) {
	if err := child(t, "full", newPath(t)).Run(); err != nil {
		t.Fatal(err)
	}
}

// fillDisk sets a limit for the size of files, fills the store until it meets the
// limit, and lifts the limit again. The limit is for a whole process, so this runs
// in a child process.
func fillDisk(path string) error {
	ctx := context.Background()
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	defer s.Close()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	low := limit
	low.Cur = 1 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &low); err != nil {
		return err
	}
	body := strings.Repeat("x", 2<<10)
	taken := 0
	for err == nil {
		if err = keep(ctx, s, fmt.Sprint(taken, body)); err == nil {
			taken++
		}
	}
	if !errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("after %d keys: %w; want ErrNoSpace", taken, err)
	}
	if taken == 0 {
		return errors.New("no key fits")
	}
	// The operation that failed may have been a settlement. So claim until a claim
	// fails.
	var failed string
	for i := range 10_000 {
		failed = fmt.Sprint("more ", i)
		if _, err = s.Claim(ctx, claimOf(failed)); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("claim: %w; want ErrNoSpace", err)
	}
	check := func() error {
		if record, _, err := s.Lookup(ctx, key(failed)); record != nil || err != nil {
			return fmt.Errorf("the claim that failed: %+v, %w", record, err)
		}
		for i := range taken {
			claimed, err := ask(s, fmt.Sprint(i, body))
			if err != nil || claimed.Verdict != idempotency.ReplayKept {
				return fmt.Errorf("key %d: verdict %v, %w", i, claimed.Verdict, err)
			}
		}
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	for { // it is a moment until the store has noticed
		if err = keep(ctx, s, failed); !errors.Is(err, ErrNoSpace) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	// After reopening, everything that was acknowledged is still there.
	if s, err = Open(path, zap.NewNop()); err != nil {
		return err
	}
	defer s.Close()
	for i := range taken {
		if claimed, err := ask(s, fmt.Sprint(i, body)); err != nil || claimed.Verdict != idempotency.ReplayKept {
			return fmt.Errorf("reopened: key %d: verdict %v, %w", i, claimed.Verdict, err)
		}
	}
	return nil
}
