package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// blocker keeps the committer inside a transaction until letGo is called.
type blocker struct {
	entered, leave chan struct{}
	done           chan error
}

// block queues a blocker.
func block(s *Store) *blocker {
	b := &blocker{make(chan struct{}), make(chan struct{}), make(chan error, 1)}
	go func() {
		_, err := s.commit(context.Background(), &operation{apply: func(*tables) error {
			close(b.entered)
			<-b.leave
			return nil
		}})
		b.done <- err
	}()
	return b
}

func (b *blocker) letGo(t *testing.T) {
	t.Helper()
	close(b.leave)
	if err := <-b.done; err != nil {
		t.Fatalf("the blocker: %v", err)
	}
}

// transactions is how many write transactions were committed.
func transactions(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.db.View(func(tx *bolt.Tx) error { n = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConcurrentClaimsShareTransactions(t *testing.T) {
	s := reopen(t, newPath(t))
	before := transactions(t, s)
	b := block(s)
	<-b.entered
	const claims = 64
	var done sync.WaitGroup
	for i := range claims {
		done.Go(func() {
			if _, err := s.Claim(context.Background(), claimOf(fmt.Sprint(i))); err != nil {
				t.Errorf("claim: %v", err)
			}
		})
	}
	poll(t, "all claims are queued", func() bool { return len(s.queue) == claims })
	b.letGo(t)
	done.Wait()
	if n := transactions(t, s) - before; n != 1 {
		t.Errorf("%d claims that were queued together took %d transactions, want 1", claims, n)
	}
}

func TestDuplicatesWriteNothing(t *testing.T) {
	s := reopen(t, newPath(t))
	if err := keep(t.Context(), s, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), claimOf("b")); err != nil {
		t.Fatal(err)
	}
	before := transactions(t, s)
	kept(t, s, "a")
	if claimed, err := ask(s, "b"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Fatalf("verdict %v, %v", claimed.Verdict, err)
	}
	if err := s.Settle(t.Context(), key("c"), &idempotency.Record{Token: "nobody"}, completeAs("c")); !errors.Is(err, idempotency.ErrGone) {
		t.Fatalf("settle: %v, want ErrGone", err)
	}
	if n := transactions(t, s) - before; n != 0 {
		t.Errorf("they took %d write transactions, want 0", n)
	}
}

type claimResult struct {
	claimed idempotency.Claimed
	err     error
}

// claimUntil claims in the background until the context ends.
func claimUntil(ctx context.Context, s *Store, name string) <-chan claimResult {
	result := make(chan claimResult, 1)
	go func() {
		claimed, err := s.Claim(ctx, claimOf(name))
		result <- claimResult{claimed, err}
	}()
	return result
}

func TestClaimGivenUpInTheQueueIsNotApplied(t *testing.T) {
	s := reopen(t, newPath(t))
	b := block(s)
	<-b.entered
	ctx, cancel := context.WithCancel(t.Context())
	result := claimUntil(ctx, s, "a")
	poll(t, "the claim is queued", func() bool { return len(s.queue) == 1 })
	cancel()
	r := <-result
	if !errors.Is(r.err, context.Canceled) || r.claimed.Record != nil {
		t.Errorf("claim: %+v, %v; want canceled and no record", r.claimed, r.err)
	}
	b.letGo(t)
	if err := keep(t.Context(), s, "behind it"); err != nil {
		t.Fatal(err)
	}
	if record, _, err := s.Lookup(t.Context(), key("a")); record != nil || err != nil {
		t.Errorf("it was applied: %+v, %v", record, err)
	}
}

func TestClaimGivenUpInTheCommitMayBeApplied(t *testing.T) {
	s := reopen(t, newPath(t))
	first := block(s)
	<-first.entered
	second := block(s)
	poll(t, "the second blocker is queued", func() bool { return len(s.queue) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	result := claimUntil(ctx, s, "a")
	poll(t, "the claim is queued", func() bool { return len(s.queue) == 2 })
	first.letGo(t)
	<-second.entered
	cancel()
	r := <-result
	if !errors.Is(r.err, context.Canceled) || r.claimed.Record == nil || r.claimed.Record.Token != claimOf("a").Token {
		t.Errorf("claim: %+v, %v; want canceled and the record that may be written", r.claimed, r.err)
	}
	second.letGo(t)
	record, _, err := s.Lookup(t.Context(), key("a"))
	if err != nil || record == nil || record.Token != claimOf("a").Token {
		t.Errorf("the group was committed without it: %+v, %v", record, err)
	}
}

func TestSettlementGivenUpInTheCommitWakes(t *testing.T) {
	s := reopen(t, newPath(t))
	claimed, err := s.Claim(t.Context(), claimOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	woken := make(chan idempotency.Key, 1)
	defer s.Subscribe(func(k idempotency.Key) { woken <- k })()
	first := block(s)
	<-first.entered
	second := block(s)
	poll(t, "the second blocker is queued", func() bool { return len(s.queue) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("a"), claimed.Record, completeAs("a")) }()
	poll(t, "the settlement is queued", func() bool { return len(s.queue) == 2 })
	first.letGo(t)
	<-second.entered
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	second.letGo(t)
	select {
	case k := <-woken:
		if k != key("a") {
			t.Errorf("woken for %s", k)
		}
	case <-time.After(patience):
		t.Error("nobody was woken")
	}
}

func TestCloseCommitsWhatIsQueued(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	b := block(s)
	<-b.entered
	result := claimUntil(context.Background(), s, "a")
	poll(t, "the claim is queued", func() bool { return len(s.queue) == 1 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.closing
	b.letGo(t)
	if r := <-result; r.err != nil {
		t.Errorf("claim: %v", r.err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if claimed, err := ask(reopen(t, path), "a"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Errorf("reopened: verdict %v, %v", claimed.Verdict, err)
	}
}

func init() { children["keeper"] = keepUntilKilled }

// keepUntilKilled keeps keys in several goroutines. It prints each key as soon as the
// store has acknowledged it.
func keepUntilKilled(path string) error {
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	errs := make(chan error)
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("key %d of worker %d", i, worker)
				if err := keep(context.Background(), s, name); err != nil {
					errs <- err
					return
				}
				if _, err := fmt.Println(name); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

func TestKilledProcessLosesNothing(t *testing.T) {
	path := newPath(t)
	cmd := child(t, "keeper", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acknowledged []string
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // only a whole line is an acknowledgement
		}
		acknowledged = append(acknowledged, strings.TrimSuffix(line, "\n"))
		if len(acknowledged) == 500 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // its error only says that it was killed
	if len(acknowledged) < 500 {
		t.Fatalf("it ended by itself after %d keys", len(acknowledged))
	}
	if _, err := os.Stat(holderPath(path)); err != nil {
		t.Errorf("the killed process left no note of itself: %v", err)
	}
	s := reopen(t, path)
	for _, name := range acknowledged {
		kept(t, s, name)
	}
}
