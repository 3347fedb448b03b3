//go:build linux

package process

import (
	"os"
	"testing"
	"time"
)

// A turn can take less of a processor than the hundredths of a second in /proc/PID/stat.
func TestProcessorTimeIsFine(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil || before <= 0 {
		t.Fatalf("%v, %v", before, err)
	}
	least := time.Hour
	for steps := 0; steps < 10; {
		now, err := CPU(os.Getpid())
		if err != nil || now < before {
			t.Fatalf("%v after %v, %v", now, before, err)
		}
		if now > before {
			least = min(least, now-before)
			steps++
		}
		before = now
	}
	if least >= 10*time.Millisecond {
		t.Errorf("the processor's time goes in steps of %v", least)
	}
	if taken, err := CPU(1 << 25); err == nil {
		t.Errorf("a process that is none has taken %v", taken)
	}
}

func TestAnonymous(t *testing.T) {
	got, err := anonymousIn([]byte("Name:\tcaddy\nVmRSS:\t 1024 kB\nRssAnon:\t     512 kB\nRssFile:\t 512 kB\n"))
	if err != nil || got != 512<<10 {
		t.Errorf("%d, %v; want %d", got, err, 512<<10)
	}
	for _, bad := range []string{"", "Name: a\nVmRSS: 1 kB\n", "Name: a\nRssAnon: 1 MB\n"} {
		if got, err := anonymousIn([]byte(bad)); err == nil {
			t.Errorf("%q is taken for %d", bad, got)
		}
	}
}

func TestUsageOfAProcessThatRuns(t *testing.T) {
	if bytes, err := Anonymous(os.Getpid()); err != nil || bytes <= 0 {
		t.Errorf("%d, %v", bytes, err)
	}
}
