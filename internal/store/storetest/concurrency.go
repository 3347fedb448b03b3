package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const claimers = 32

// storeOf returns the store for every second caller, and the peer for the others.
func (f *fixture) storeOf(i int) idempotency.Store {
	if i%2 == 0 {
		return f.store
	}
	return f.peer
}

// claimAtOnce makes all claims concurrently, and returns those that proceed. All others must have the
// verdict to wait for that run.
func (f *fixture) claimAtOnce(claims []idempotency.Claim) []idempotency.Claimed {
	f.Helper()
	all := make([]idempotency.Claimed, len(claims))
	errs := make([]error, len(claims))
	start := make(chan struct{})
	var done sync.WaitGroup
	for i, c := range claims {
		done.Go(func() {
			<-start
			all[i], errs[i] = f.storeOf(i).Claim(f.ctx, c)
		})
	}
	close(start)
	done.Wait()
	var proceeding []idempotency.Claimed
	for i, claimed := range all {
		if errs[i] != nil {
			f.Fatalf("claim: %v", errs[i])
		}
		if claimed.Verdict == idempotency.Proceed {
			proceeding = append(proceeding, claimed)
		}
	}
	if len(proceeding) == 0 {
		f.Fatal("no claim proceeds")
	}
	for _, claimed := range all {
		if claimed.Verdict == idempotency.Proceed {
			continue
		}
		if claimed.Verdict != idempotency.WaitForRun {
			f.Fatalf("verdict %v, want %v", claimed.Verdict, idempotency.WaitForRun)
		}
		f.sameRecord("what another claim found", claimed.Record, proceeding[0].Record)
	}
	return proceeding
}

// oneOf makes many new claims of a key concurrently, and returns the only one that proceeds.
func (f *fixture) oneOf(k idempotency.Key) idempotency.Claimed {
	f.Helper()
	claims := make([]idempotency.Claim, claimers)
	for i := range claims {
		claims[i] = f.newClaim(k)
	}
	proceeding := f.claimAtOnce(claims)
	if len(proceeding) != 1 {
		f.Fatalf("%d claims proceed, want 1", len(proceeding))
	}
	f.sameRecord("lookup", f.lookup(k), proceeding[0].Record)
	return proceeding[0]
}

func oneFresh(f *fixture) {
	for i := range 10 {
		if winner := f.oneOf(key(fmt.Sprint("key ", i))); winner.Record.Attempt != 1 {
			f.Errorf("attempt %d, want 1", winner.Record.Attempt)
		}
	}
}

func oneTakeover(f *fixture) {
	f.lapse(f.newClaim(key("a")))
	if winner := f.oneOf(key("a")); winner.Record.Attempt != 2 {
		f.Errorf("attempt %d, want 2", winner.Record.Attempt)
	}
}

func oneAfterRelease(f *fixture) {
	k := key("a")
	claimed := f.claim(f.newClaim(k), idempotency.Proceed)
	for attempt := 2; attempt < 12; attempt++ {
		f.settle(k, claimed.Record, release(true, "busy"))
		claimed = f.oneOf(k)
		if claimed.Record.Attempt != attempt {
			f.Fatalf("attempt %d, want %d", claimed.Record.Attempt, attempt)
		}
	}
}

func oneToken(f *fixture) {
	c := f.newClaim(key("a"))
	claims := make([]idempotency.Claim, claimers)
	for i := range claims {
		claims[i] = c
	}
	for _, claimed := range f.claimAtOnce(claims) {
		if claimed.Record.Attempt != 1 || claimed.Record.Token != c.Token {
			f.Errorf("the same token proceeds as %+v", claimed.Record)
		}
	}
	if got := f.lookup(key("a")).Attempt; got != 1 {
		f.Errorf("attempt %d after retries of one claim, want 1", got)
	}
}

func racingSettlements(f *fixture) {
	k := key("a")
	first := f.lapse(f.newClaim(k))
	second := f.claim(f.newClaim(k), idempotency.Proceed)
	var done sync.WaitGroup
	for i := range claimers {
		done.Go(func() {
			store := f.storeOf(i / 2)
			if i%2 == 0 {
				WantErr(f, store.Settle(f.ctx, k, first.Record, complete("late")), idempotency.ErrFenced)
			} else if err := store.Settle(f.ctx, k, second.Record, complete("owner")); err != nil {
				f.Errorf("the owner settles: %v", err)
			}
		})
	}
	done.Wait()
	replayed := f.claim(f.newClaim(k), idempotency.ReplayKept)
	f.sameResponse("the replay", replayed.Response, answer(201, "owner"))
}

// run is the shared state of the workers for one key. Only the worker that owns the claim uses attempts,
// without a lock: if two runs overlap, the race detector reports it.
type run struct {
	running  atomic.Int32
	attempts int
	kept     atomic.Pointer[string]
}

func exclusiveRuns(f *fixture) {
	const workers, steps, keys = 8, 150, 4
	runs := make([]run, keys)
	var done sync.WaitGroup
	for worker := range workers {
		done.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(worker)))
			for range steps {
				n := random.IntN(keys)
				f.randomRun(f.storeOf(worker), key(fmt.Sprint("key ", n)), &runs[n], random)
			}
		})
	}
	done.Wait()
}

// randomRun claims a key and, if the claim proceeds, ends the run in a random way. It uses Errorf, because
// only the goroutine of the test may call Fatalf.
func (f *fixture) randomRun(store idempotency.Store, k idempotency.Key, r *run, random *rand.Rand) {
	c := f.newClaim(k)
	keptBefore := r.kept.Load()
	claimed, err := store.Claim(f.ctx, c)
	switch {
	case err != nil:
		f.Errorf("claim: %v", err)
		return
	case claimed.Verdict == idempotency.ReplayKept:
		if want := r.kept.Load(); want == nil || string(claimed.Response.Body) != *want {
			f.Errorf("replayed %q, which no run had kept", claimed.Response.Body)
		}
		return
	case claimed.Verdict == idempotency.WaitForRun:
		return
	case claimed.Verdict != idempotency.Proceed:
		f.Errorf("verdict %v", claimed.Verdict)
		return
	}
	if r.running.Add(1) != 1 {
		f.Error("two runs of one key overlap")
	}
	if keptBefore != nil {
		f.Errorf("a key ran again after it had kept %q", *keptBefore)
	}
	r.attempts++
	if claimed.Record.Attempt != r.attempts {
		f.Errorf("attempt %d, want %d", claimed.Record.Attempt, r.attempts)
	}
	WantErr(f, store.Renew(f.ctx, c), nil)
	var s idempotency.Settlement
	switch random.IntN(12) {
	case 0:
		s = complete(c.Token)
		r.kept.Store(&c.Token)
	case 1, 2, 3:
		s = release(false, c.Token)
		r.attempts--
	default:
		s = release(true, c.Token)
	}
	r.running.Add(-1)
	WantErr(f, store.Settle(f.ctx, k, claimed.Record, s), nil)
	if s.State == idempotency.Released {
		response, err := store.Response(f.ctx, k, c.Token)
		if err != nil || response == nil || string(response.Body) != c.Token {
			f.Errorf("the response of a released run: %v, %v", response, err)
		}
	}
}
