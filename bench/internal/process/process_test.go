//go:build linux

package process

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAProcessThatEndsByItselfEndsTheRun(t *testing.T) {
	set, ctx := NewSet(t.Context(), t.TempDir())
	defer set.Close()
	if _, err := set.Start("the broken one", nil, "sh", "-c", "echo no room left; exit 3"); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	said := context.Cause(ctx).Error()
	for _, words := range []string{"the broken one", "exit status 3", "no room left"} {
		if !strings.Contains(said, words) {
			t.Errorf("the cause does not say %q: %s", words, said)
		}
	}
	if _, err := set.Start("another", nil, "true"); err == nil {
		t.Error("a run that has failed still starts processes")
	}
}

func TestStoppedProcessesAreGoneAndNoFailure(t *testing.T) {
	set, ctx := NewSet(t.Context(), t.TempDir())
	defer set.Close()
	var all []*Process
	for _, name := range []string{"a", "b"} {
		p, err := set.Start(name, nil, "sleep", "600")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	set.Stop(all[0])
	if _, err := CPU(all[0].PID); err == nil {
		t.Error("a stopped process is still there")
	}
	if ctx.Err() != nil {
		t.Errorf("the run ended: %v", context.Cause(ctx))
	}
	set.Close()
	if _, err := CPU(all[1].PID); err == nil {
		t.Error("a process outlives its set")
	}
}

func TestAwaitSaysWhatWasAwaited(t *testing.T) {
	set, _ := NewSet(t.Context(), t.TempDir())
	defer set.Close()
	p, err := set.Start("the slow one", nil, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	err = set.Await(p, time.Nanosecond, func() error { return errors.New("port closed") })
	if err == nil || !strings.Contains(err.Error(), "the slow one") || !strings.Contains(err.Error(), "port closed") {
		t.Errorf("the error is %v", err)
	}
	tries := 0
	if err := set.Await(p, time.Minute, func() error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil || tries != 3 {
		t.Errorf("after %d tries: %v", tries, err)
	}
}
