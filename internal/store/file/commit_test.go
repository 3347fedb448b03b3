package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// countFlushes counts the flushes of the log from now on.
func (f *faulty) countFlushes() *atomic.Int64 {
	flushes := new(atomic.Int64)
	f.set(func(op errorfs.Op) error {
		if isFlush(op) && strings.HasSuffix(op.Path, ".log") {
			flushes.Add(1)
		}
		return nil
	})
	return flushes
}

// docs/costs.md has these numbers.
func TestFlushesPerRequest(t *testing.T) {
	fs := newFaulty(newMemory())
	s := openStore(t, fs, storePath)
	const requests = 50
	for what, flushes := range map[string]int64{"release": 1, "hold": 2, "max_attempts": 2} {
		counted := fs.countFlushes()
		for i := range requests {
			c := claimOf(fmt.Sprint(what, i))
			c.Hold = what == "hold"
			if what == "max_attempts" {
				c.MaxAttempts = 3
			}
			record := claimed(t, s, c)
			must(t, s.Settle(t.Context(), c.Key, record, completeAs("body")))
		}
		if n := counted.Load(); n != flushes*requests {
			t.Errorf("%s: %d first deliveries took %d flushes, want %d each", what, requests, n, flushes)
		}
		counted = fs.countFlushes()
		for i := range requests {
			replays(t, s, fmt.Sprint(what, i), "body")
		}
		if n := counted.Load(); n != 0 {
			t.Errorf("%s: %d duplicates took %d flushes", what, requests, n)
		}
	}
}

// No caller sees a change, and no stored claim is granted, before a flush makes it durable.
func TestChangesAreVisibleAfterFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		running := claimed(t, s, claimOf("running"))
		claims := []idempotency.Claim{holding("hold"), claimOf("attempts")}
		claims[1].MaxAttempts = 2
		end := fs.hang(errorfs.OpIsWrite)
		var done atomic.Int32
		go func() {
			wantErr(t, s.Settle(t.Context(), key("running"), running, completeAs("running")), nil)
			done.Add(1)
		}()
		for _, c := range claims {
			go func() {
				if got, err := s.Claim(t.Context(), c); err != nil || got.Verdict != idempotency.Proceed {
					t.Errorf("claim: %v, %v", got.Verdict, err)
				}
				done.Add(1)
			}()
		}
		synctest.Wait()
		for _, name := range []string{"running", "hold", "attempts"} {
			if _, _, err := s.Lookup(timeoutContext(t, time.Second), key(name)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("lookup of %s: %v, want DeadlineExceeded", name, err)
			}
		}
		if done.Load() > 0 {
			t.Error("acknowledged before it was flushed")
		}
		page, _, err := s.List(t.Context(), "", 10)
		if err != nil {
			t.Error(err)
		}
		for _, listed := range page { // not as a claim of a dead process
			if listed.Record.Lapsed(listed.Now) {
				t.Errorf("a claim that is being flushed is listed as lapsed")
			}
		}
		end()
		synctest.Wait()
		replays(t, s, "running", "running")
		for _, c := range claims {
			if r, _, err := s.Lookup(t.Context(), c.Key); err != nil || r.State != idempotency.InFlight {
				t.Errorf("a claim that was flushed: %+v, %v", r, err)
			}
		}
	})
}

// A write that its caller gives up in the queue is never written, and its error says so. One that is
// given up later is in doubt until the disk answers. Subscribers are woken then.
func TestAbandonedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		running := claimed(t, s, claimOf("running"))
		var woken atomic.Int32
		defer s.Subscribe(func(k idempotency.Key) {
			if k == key("running") {
				woken.Add(1)
			}
		})()
		end := fs.hang(errorfs.OpIsWrite)
		wantErr(t, s.Settle(timeoutContext(t, time.Millisecond), key("running"), running, completeAs("running")), context.DeadlineExceeded)
		var doubtful, unwritten []string
		for i := range 3 * maxQueued {
			name := fmt.Sprint(i)
			got, err := s.Claim(timeoutContext(t, time.Millisecond), holding(name))
			switch {
			case !errors.Is(err, context.DeadlineExceeded):
				t.Fatalf("claim: %v", err)
			case got.Record != nil:
				doubtful = append(doubtful, name)
			default:
				unwritten = append(unwritten, name)
			}
		}
		if woken.Load() > 0 || len(doubtful) == 0 || len(unwritten) == 0 {
			t.Errorf("woken %d times; %d claims in doubt, %d not written", woken.Load(), len(doubtful), len(unwritten))
		}
		end()
		synctest.Wait()
		if woken.Load() != 1 {
			t.Errorf("woken %d times, want once", woken.Load())
		}
		replays(t, s, "running", "running")
		for _, name := range unwritten {
			if r, _, err := s.Lookup(t.Context(), key(name)); r != nil || err != nil {
				t.Fatalf("a claim that was given up in the queue: %+v, %v", r, err)
			}
		}
		for _, name := range doubtful {
			// The owner withdraws it by its token.
			r, _, err := s.Lookup(t.Context(), key(name))
			if err != nil || r == nil || r.State != idempotency.InFlight {
				t.Fatalf("a claim in doubt: %+v, %v", r, err)
			}
			must(t, s.Settle(t.Context(), key(name), r, idempotency.Settlement{State: idempotency.Released, Retention: time.Hour, Withdraws: true}))
		}
	})
}

// A write whose flush ends after a failure is not acknowledged: pebble does not know whether a flush
// has failed.
func TestFlushThatEndsAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := openDatabase(newMemory(), "/", true, new(damages), zap.NewNop())
		must(t, err)
		w := &write{batch: d.db.NewBatch(), onResult: func(o writeResult) { t.Errorf("it finished with result %d", o) }, done: make(chan struct{})}
		w.state.Store(writeStarted)
		must(t, errors.Join(w.batch.Set([]byte("name"), nil, nil), d.db.ApplyNoSyncWait(w.batch, pebble.Sync)))
		d.disk.fail(syscall.EIO)
		d.applied <- w
		synctest.Wait()
		select {
		case <-w.done:
			t.Error("it is done")
		default:
		}
		wantErr(t, d.close(), syscall.EIO)
	})
}

// Close waits for writes under way.
func TestCloseWritesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		records := make(map[string]*idempotency.Record)
		for i := range 100 {
			name := fmt.Sprint(i)
			records[name] = claimed(t, s, claimOf(name))
		}
		end := fs.hang(errorfs.OpIsWrite)
		for name, record := range records {
			go func() {
				wantErr(t, s.Settle(t.Context(), key(name), record, completeAs(name)), nil)
			}()
		}
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		wantErr(t, storetest.ErrOf(ask(t.Context(), s, "0")), idempotency.ErrClosed)
		end()
		wantErr(t, <-closed, nil)
		closeStore(t, s)
		s = openStore(t, fs, storePath)
		replaysAll(t, s, 0, 100)
	})
}
