package file

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func init() { children["keeper"] = keepUntilKilled }

// keepUntilKilled claims keys in several goroutines, and keeps a response for two of
// three. It prints what the store has acknowledged as soon as it has.
func keepUntilKilled(path string) error {
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	errs := make(chan error)
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				if err := keepOrClaim(s, fmt.Sprintf("%d/%d/%d", os.Getpid(), worker, i), i%3 == 0); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

func keepOrClaim(s *Store, name string, claimOnly bool) error {
	if claimOnly {
		if _, err := s.Claim(context.Background(), claimOf(name)); err != nil {
			return err
		}
		_, err := fmt.Println("claimed", name)
		return err
	}
	if err := keep(context.Background(), s, name); err != nil {
		return err
	}
	_, err := fmt.Println("kept", name)
	return err
}

// A process that is killed, again and again, loses nothing that it has acknowledged:
// neither a response, nor a claim that was not flushed.
func TestKilledProcessLosesNothing(t *testing.T) {
	path := newPath(t)
	var acknowledged []string
	for round := range 6 {
		cmd := child(t, "keeper", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		for said := 0; ; said++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				if said < 300 {
					t.Fatalf("it ended by itself after %d keys", said)
				}
				break // only a whole line is an acknowledgement
			}
			acknowledged = append(acknowledged, strings.TrimSuffix(line, "\n"))
			if said == 300+97*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // its error only says that it was killed
		if _, err := os.Stat(filepath.Join(path, holderName)); err != nil {
			t.Errorf("the killed process left no note of itself: %v", err)
		}
	}
	s := reopen(t, path)
	for _, line := range acknowledged {
		is, name, _ := strings.Cut(line, " ")
		if is == "kept" {
			replays(t, s, name)
		} else if claimed, err := ask(s, name); err != nil || claimed.Verdict != idempotency.WaitForRun {
			t.Errorf("a claim that was acknowledged: verdict %v, %v", claimed.Verdict, err)
		}
	}
}
