//go:build linux

package process

import (
	"os"
	"testing"
	"time"
)

func TestProcessorTime(t *testing.T) {
	for name, c := range map[string]struct {
		stat string
		want time.Duration
	}{
		"an ordinary name":             {"7 (caddy) S 1 7 7 0 -1 4194560 2029 0 0 0 150 25 0 0 20 0 9 0 1 2 3", 1750 * time.Millisecond},
		"a name with a parenthesis":    {"7 (a) b) c) S 1 7 7 0 -1 4194560 2029 0 0 0 1 2 0 0 20 0 9 0 1 2 3", 30 * time.Millisecond},
		"an end right behind the time": {"7 (caddy) S 1 7 7 0 -1 4194560 2029 0 0 0 0 0", 0},
	} {
		if got, err := parseStat([]byte(c.stat)); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "7 (caddy) S 1", "7 (caddy) S 1 7 7 0 -1 4194560 2029 0 0 0 x 2 0"} {
		if got, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is taken for %v", bad, got)
		}
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
	if _, err := CPU(os.Getpid()); err != nil {
		t.Error(err)
	}
	if bytes, err := Anonymous(os.Getpid()); err != nil || bytes <= 0 {
		t.Errorf("%d, %v", bytes, err)
	}
}
