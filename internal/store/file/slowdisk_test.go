package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// settle settles as an engine does: it repeats attempts, each of which limit limits.
func settle(t *testing.T, s *Store, name string, record *idempotency.Record, settlement idempotency.Settlement, limit time.Duration) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := s.Settle(ctx, key(name), record, settlement)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("settle %s: %v", name, err)
			return
		}
		time.Sleep(3 * time.Second)
		wantErr(t, s.Renew(t.Context(), claimOf(name)), nil, name)
	}
}

// On a slow disk each large body is written once, all are kept in about the time that the disk needs
// for them, and small responses are kept meanwhile.
func TestSlowDiskWritesLargeBodiesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, size, rate, limit = 20, 3 << 20, 3 << 20, 5 * time.Second // as 20 of 8 MiB at 8 MiB a second
		var written int                                                    // bytes of bodies
		turn := make(chan struct{}, 1)
		s := openStore(t, &hooked{newMemory(), func(name string, _ int64, n int) (int, error) {
			turn <- struct{}{} // with a mutex, the clock of synctest would stop
			time.Sleep(time.Duration(n) * time.Second / rate)
			if strings.Contains(name, bodiesName) {
				written += n
			}
			<-turn
			return n, nil
		}}, storePath)
		bodies := make([]string, n)
		start := time.Now()
		var large sync.WaitGroup
		for i := range n {
			name := fmt.Sprint("large ", i)
			bodies[i] = strings.Repeat(fmt.Sprintf("%08d", i), size/8)
			record := claimed(t, s, claimOf(name))
			large.Go(func() { settle(t, s, name, record, completeAs(bodies[i]), limit) })
		}
		stop, stopped := context.WithCancel(t.Context())
		small := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ; stop.Err() == nil; small++ {
				wantErr(t, keepAs(timeoutContext(t, limit), s, fmt.Sprint("small ", small), completeAs("small")), nil, small, time.Since(start))
				time.Sleep(time.Second / 10)
			}
		}()
		large.Wait()
		stopped()
		<-done
		if took := time.Since(start); took > 30*time.Second { // the disk's own time is 20 s
			t.Errorf("it took %v", took)
		}
		storetest.Equal(t, written, n*size, "bytes of bodies were written")
		if small < 10 {
			t.Errorf("only %d small responses were kept meanwhile", small)
		}
		for i, body := range bodies {
			replays(t, s, fmt.Sprint("large ", i), body)
		}
	})
}

// A settlement that is cancelled while its body is written returns at once. The next attempt waits for
// that write, or uses its result, even if it has encrypted the body anew.
func TestSettlementCancelledDuringBody(t *testing.T) {
	for _, finished := range []bool{false, true} {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		record := claimed(t, s, claimOf("a"))
		started, release := make(chan struct{}, 10), make(chan struct{})
		fs.set(func(op errorfs.Op) error {
			if strings.Contains(op.Path, bodiesName) && op.Kind == errorfs.OpFileWriteAt {
				started <- struct{}{}
				<-release
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		settled := make(chan error, 1)
		go func() { settled <- s.Settle(ctx, key("a"), record, completeAs(largeText("a"))) }()
		<-started
		cancel()
		wantErr(t, <-settled, context.Canceled)
		if finished {
			close(release)
			c, _ := s.keys.tryLock(key("a"))
			s.keys.unlock(key("a"), c)
			<-c.body.done
		}
		go func() { settled <- s.Settle(t.Context(), key("a"), record, completeAs(largeText("A"))) }()
		if !finished {
			eventually(t, "the next attempt has the key", func() bool { _, locked := s.keys.peek(key("a")); return locked })
			close(release)
		}
		wantErr(t, <-settled, nil)
		if len(started) > 0 {
			t.Error("the body was written twice")
		}
		replays(t, s, "a", largeText("a"))
		closeStore(t, s)
	}
}

// A body whose settlement fails after the body was written is not written again, even if the database
// was replaced meanwhile.
func TestSettlementThatFailsAfterBody(t *testing.T) {
	for name, limit := range map[string]time.Duration{"fails": time.Minute, "hangs": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			fs := newFaulty(newMemory())
			s := openStore(t, fs, storePath)
			record, before := claimed(t, s, claimOf("a")), s.current()
			synctest.Wait()
			bodies, release := 0, make(chan struct{})
			fs.set(func(op errorfs.Op) error {
				switch {
				case strings.Contains(op.Path, bodiesName) && op.Kind == errorfs.OpFileWriteAt:
					bodies++
				case strings.HasSuffix(op.Path, ".log") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && name == "hangs":
					<-release
				case strings.HasSuffix(op.Path, ".log") && op.Kind == errorfs.OpFileWrite && s.current() == before:
					return syscall.EIO
				}
				return nil
			})
			if err := s.Settle(timeoutContext(t, limit), key("a"), record, completeAs(largeText("a"))); err == nil {
				t.Error("settled")
			}
			close(release)
			awaitReady(t, s)
			wantErr(t, s.Settle(t.Context(), key("a"), record, completeAs(largeText("a"))), nil)
			if bodies != 1 {
				t.Errorf("%s: the body was written %d times", name, bodies)
			}
			replays(t, s, "a", largeText("a"))
		})
	}
}

// Two bodies of more than halfSize are written at a time. A settlement whose body waits for its turn ends with its
// context, and leaves nothing behind.
func TestBodiesAreWrittenInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		var writing atomic.Int64
		release := make(chan struct{})
		fs.set(func(op errorfs.Op) error {
			if strings.Contains(op.Path, bodiesName) && op.Kind == errorfs.OpFileWriteAt {
				writing.Add(1)
				<-release
			}
			return nil
		})
		var done sync.WaitGroup
		for i := range 8 {
			name := fmt.Sprint(i)
			record := claimed(t, s, claimOf(name))
			done.Go(func() {
				wantErr(t, s.Settle(t.Context(), key(name), record, completeAs(strings.Repeat("x", halfSize+1))), nil)
			})
		}
		synctest.Wait()
		storetest.Equal(t, writing.Load(), 2, "bodies that are being written")
		late := claimed(t, s, claimOf("late"))
		wantErr(t, s.Settle(timeoutContext(t, time.Second), key("late"), late, completeAs(largeText("late"))), context.DeadlineExceeded)
		close(release)
		done.Wait()
		wantErr(t, s.Settle(t.Context(), key("late"), late, completeAs(largeText("late"))), nil)
	})
}
