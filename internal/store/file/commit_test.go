package file

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// logWatch is a disk in memory that counts what is done with the log of the database,
// and what is written to slots, and can hold up the flushes of the log.
type logWatch struct {
	vfs.FS
	writes, flushes atomic.Int64
	mu              sync.RWMutex // locked while flushes are held up
	held            atomic.Int64 // flushes that are held up
}

func newLogWatch() *logWatch {
	w := new(logWatch)
	w.FS = errorfs.Wrap(newMemory(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case strings.HasSuffix(op.Path, claimsName) && op.Kind == errorfs.OpFileWriteAt:
			w.writes.Add(1)
		case !strings.HasSuffix(op.Path, ".log"):
		case op.Kind == errorfs.OpFileWrite:
			w.writes.Add(1)
		case op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData:
			w.held.Add(1)
			w.mu.RLock()
			defer w.mu.RUnlock()
			w.held.Add(-1)
			w.flushes.Add(1)
		}
		return nil
	}))
	return w
}

// counted is a claim that has to survive a crash of the machine.
func counted(name string) idempotency.Claim {
	c := claimOf(name)
	c.Hold = true
	return c
}

func TestConcurrentOperationsShareFlushes(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	fs.mu.Lock()
	var done sync.WaitGroup
	claim := func(name string) {
		done.Go(func() {
			if _, err := s.Claim(context.Background(), counted(name)); err != nil {
				t.Errorf("claim: %v", err)
			}
		})
	}
	claim("first")
	poll(t, "the first is being flushed", func() bool { return fs.held.Load() == 1 })
	before := fs.flushes.Load()
	const claims = 64
	for i := range claims {
		claim(fmt.Sprint(i))
	}
	d := s.database
	poll(t, "all claims are with pebble", func() bool {
		for i := range claims {
			if record, err := d.record(key(fmt.Sprint(i))); record == nil || err != nil {
				return false
			}
		}
		return true
	})
	fs.mu.Unlock()
	done.Wait()
	if n := fs.flushes.Load() - before; n != 2 {
		t.Errorf("the first claim and %d that came while it was flushed took %d flushes, want 2", claims, n)
	}
}

// Without hold and without a limit of attempts, a claim is given to the system, and does
// not wait until the disk has it.
func TestClaimWaitsForItsFlushWhereItCounts(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	fs.mu.Lock()
	before := fs.writes.Load()
	if _, err := s.Claim(t.Context(), claimOf("released")); err != nil {
		t.Fatal(err)
	}
	if fs.writes.Load() == before {
		t.Error("a claim was acknowledged that the system does not know yet")
	}
	limited := claimOf("limited")
	limited.MaxAttempts = 1
	for _, c := range []idempotency.Claim{counted("held"), limited} {
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := s.Claim(ctx, c)
			result <- err
		}()
		poll(t, "it is with pebble", func() bool {
			record, err := s.database.record(c.Key)
			return record != nil && err == nil
		})
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("a claim that counts was acknowledged while its flush was held up: %v", err)
		}
	}
	fs.mu.Unlock()
}

func TestDuplicatesWriteNothing(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	if err := keep(t.Context(), s, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), counted("b")); err != nil {
		t.Fatal(err)
	}
	before := fs.writes.Load()
	replays(t, s, "a")
	if claimed, err := ask(s, "b"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Fatalf("verdict %v, %v", claimed.Verdict, err)
	}
	if err := s.Settle(t.Context(), key("c"), &idempotency.Record{Token: "nobody"}, completeAs("c")); !errors.Is(err, idempotency.ErrGone) {
		t.Fatalf("settle: %v, want ErrGone", err)
	}
	if n := fs.writes.Load() - before; n != 0 {
		t.Errorf("they wrote %d times to the log, want 0", n)
	}
}

// What is not flushed yet can be undone by a crash, so nobody gets to see it.
func TestNobodySeesWhatIsNotFlushed(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	claimed, err := s.Claim(t.Context(), counted("a"))
	if err != nil {
		t.Fatal(err)
	}
	fs.mu.Lock()
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(context.Background(), key("a"), claimed.Record, completeAs("a")) }()
	poll(t, "the settlement is being flushed", func() bool { return fs.held.Load() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if got, err := s.Claim(ctx, claimOf("a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a duplicate got verdict %v, %v", got.Verdict, err)
	}
	if record, _, err := s.Lookup(ctx, key("a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lookup: %+v, %v", record, err)
	}
	fs.mu.Unlock()
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	replays(t, s, "a")
}

// paused returns a store whose writer has not begun.
func paused(t *testing.T) (s *Store, begin func()) {
	t.Helper()
	return pausedIn(t, newMemory(), "/data/keys", "/data/other")
}

// pausedIn returns a store in a file system whose writer has not begun, with a database in
// another directory.
func pausedIn(t *testing.T, fs vfs.FS, path, other string) (s *Store, begin func()) {
	t.Helper()
	s = reopenIn(t, fs, path)
	d, err := openDatabase(other, fs, true, s.logger)
	if err != nil {
		t.Fatal(err)
	}
	d.filters.begun = time.Now() // its filter would be made by the writer
	running := s.replace(d)
	running.awaitUnused()
	if err := running.close(); err != nil {
		t.Fatal(err)
	}
	begin = sync.OnceFunc(d.run)
	t.Cleanup(begin) // else closing would wait for ever
	return s, begin
}

type claimResult struct {
	claimed idempotency.Claimed
	err     error
}

// claimUntil claims in the background until the context ends.
func claimUntil(ctx context.Context, s *Store, name string) <-chan claimResult {
	result := make(chan claimResult, 1)
	go func() {
		claimed, err := s.Claim(ctx, counted(name))
		result <- claimResult{claimed, err}
	}()
	return result
}

// byTime is a context as the engine makes them.
type byTime struct{ context.Context }

// Done implements [context.Context].
func (byTime) Done() <-chan struct{} { panic("it is not asked for a timer of its own") }

// Err implements [context.Context].
func (c byTime) Err() error {
	if at, _ := c.Deadline(); time.Now().Before(at) {
		return nil
	}
	return context.DeadlineExceeded
}

// EndsByTimeAlone implements [idempotency.TimedContext].
func (byTime) EndsByTimeAlone() {}

// Callers whose time ends at about the same moment share a timer, hear of it little late and
// never early, and nothing is left of it.
func TestDeadlinesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begin := paused(t)
		began := time.Now()
		var done sync.WaitGroup
		const callers = 60
		for i := range callers {
			timeout := time.Duration(i) * time.Millisecond
			done.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				c, err := s.Claim(byTime{ctx}, counted(fmt.Sprint(i)))
				if late := time.Since(began) - timeout; !errors.Is(err, context.DeadlineExceeded) || c.Record != nil || late < 0 || late > deadlineStep {
					t.Errorf("after %v: %v, %v, %v late", timeout, c.Record, err, late)
				}
			})
		}
		synctest.Wait()
		d := &s.database.deadlines
		d.mu.Lock()
		if n := len(d.ends); n > callers/20+1 {
			t.Errorf("%d callers have %d timers", callers, n)
		}
		d.mu.Unlock()
		done.Wait()
		synctest.Wait()
		d.mu.Lock()
		if n := len(d.ends); n != 0 {
			t.Errorf("%d timers are left", n)
		}
		d.mu.Unlock()
		begin()
	})
}

func TestClaimGivenUpInTheQueueIsNotApplied(t *testing.T) {
	s, begin := paused(t)
	ctx, cancel := context.WithCancel(t.Context())
	result := claimUntil(ctx, s, "a")
	poll(t, "the claim is queued", func() bool { return len(s.database.queue) == 1 })
	cancel()
	r := <-result
	if !errors.Is(r.err, context.Canceled) || r.claimed.Record != nil {
		t.Errorf("claim: %+v, %v; want canceled and no record", r.claimed, r.err)
	}
	begin()
	if err := keep(t.Context(), s, "behind it"); err != nil {
		t.Fatal(err)
	}
	if record, _, err := s.Lookup(t.Context(), key("a")); record != nil || err != nil {
		t.Errorf("it was applied: %+v, %v", record, err)
	}
}

func TestClaimGivenUpInTheFlushMayBeApplied(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	fs.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	result := claimUntil(ctx, s, "a")
	poll(t, "it is being flushed", func() bool { return fs.held.Load() == 1 })
	cancel()
	r := <-result
	if !errors.Is(r.err, context.Canceled) || r.claimed.Record == nil || r.claimed.Record.Token != claimOf("a").Token {
		t.Errorf("claim: %+v, %v; want canceled and the record that may be written", r.claimed, r.err)
	}
	fs.mu.Unlock()
	record, _, err := s.Lookup(t.Context(), key("a"))
	if err != nil || record == nil || record.Token != claimOf("a").Token {
		t.Errorf("it was flushed without its caller: %+v, %v", record, err)
	}
}

func TestSettlementGivenUpInTheFlushWakes(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	claimed, err := s.Claim(t.Context(), counted("a"))
	if err != nil {
		t.Fatal(err)
	}
	woken := make(chan idempotency.Key, 1)
	defer s.Subscribe(func(k idempotency.Key) { woken <- k })()
	fs.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("a"), claimed.Record, completeAs("a")) }()
	poll(t, "it is being flushed", func() bool { return fs.held.Load() == 1 })
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	fs.mu.Unlock()
	select {
	case k := <-woken:
		if k != key("a") {
			t.Errorf("woken for %s", k)
		}
	case <-time.After(patience):
		t.Error("nobody was woken")
	}
}

func TestCloseWritesWhatIsQueued(t *testing.T) {
	s, begin := paused(t)
	fs := s.database.disk.FS
	result := claimUntil(context.Background(), s, "a")
	poll(t, "the claim is queued", func() bool { return len(s.database.queue) == 1 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.closing
	begin()
	if r := <-result; r.err != nil {
		t.Errorf("claim: %v", r.err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if err := writeFile(fs, path.Join("/data/other", labelName), label); err != nil {
		t.Fatal(err)
	}
	if claimed, err := ask(reopenIn(t, fs, "/data/other"), "a"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Errorf("reopened: verdict %v, %v", claimed.Verdict, err)
	}
}

// The disk is full for a moment while an operation waits for its place in the queue. It
// goes on to wait, and is not taken for done.
func TestTroubleThatIsOverAcknowledgesNothing(t *testing.T) {
	s, begin := paused(t)
	d := s.database
	for len(d.queue) < cap(d.queue) {
		op := &operation{batch: d.db.NewBatch(), ended: func(bool) {}}
		op.state.Store(givenUp)
		d.queue <- op
	}
	result := claimUntil(t.Context(), s, "a")
	poll(t, "the key is locked", func() bool {
		locked := !d.locks.tryLock(key("a"))
		if !locked {
			d.locks.unlock(key("a"))
		}
		return locked
	})
	for range 20 {
		d.disk.mu.Lock()
		d.disk.worse() // and well again before anybody has looked
		d.disk.mu.Unlock()
		select {
		case r := <-result:
			t.Fatalf("while the queue is full: %+v, %v", r.claimed, r.err)
		case <-time.After(time.Millisecond): // one of the turns finds it waiting
		}
	}
	begin()
	if r := <-result; r.err != nil {
		t.Fatal(r.err)
	}
	if record, _, err := s.Lookup(t.Context(), key("a")); record == nil || err != nil {
		t.Errorf("lookup: %+v, %v; want the claim", record, err)
	}
}
