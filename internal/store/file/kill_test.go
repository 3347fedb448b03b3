package file

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

var (
	killedDuration = flag.Duration("killed.for", 0, "duration of TestKilledProcessAgreesWithTheModel; 0: a few rounds")
	killedSeed     = flag.Uint64("killed.seed", 0, "seed of TestKilledProcessAgreesWithTheModel; 0: a random one")
)

func init() { children["served"] = serve }

// asked is an operation that the parent requests from the process that it is going to kill.
type asked struct {
	ID         uint64
	What       string
	Key        idempotency.Key
	Token      string
	Change     idempotency.Change
	Pre        idempotency.Precondition
	Claim      idempotency.Claim
	Record     *idempotency.Record
	Settlement idempotency.Settlement
}

// answered is the result of an operation. The process sends it after the store has acknowledged the
// operation.
type answered struct {
	ID       uint64
	Claimed  idempotency.Claimed
	Record   *idempotency.Record
	Response *idempotency.Response
	Err      string
	Changed  *idempotency.ChangedError
}

// ruleErrors are the errors that a rule of the store decides, as opposed to failures.
var ruleErrors = []error{idempotency.ErrGone, idempotency.ErrFenced, idempotency.ErrInFlight, idempotency.ErrComplete}

// serve executes the operations that it reads, each in a goroutine, until it is killed.
func serve(path string) error {
	s, err := Open(path, zap.NewNop())
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := gob.NewEncoder(os.Stdout)
	in := gob.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var a asked
		if err := in.Decode(&a); err != nil {
			return err
		}
		go func() {
			result := carryOut(s, a)
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(result) // to the parent, an operation without an answer is in doubt
		}()
	}
}

func carryOut(s *Store, a asked) answered {
	ctx := context.Background()
	result := answered{ID: a.ID}
	var err error
	switch a.What {
	case "claim":
		result.Claimed, err = s.Claim(ctx, a.Claim)
	case "renew":
		err = s.Renew(ctx, a.Claim)
	case "settle":
		err = s.Settle(ctx, a.Key, a.Record, a.Settlement)
	case "lookup":
		result.Record, _, err = s.Lookup(ctx, a.Key)
	case "response":
		result.Response, err = s.Response(ctx, a.Key, a.Token)
	case "change":
		result.Record, err = s.Change(ctx, a.Key, a.Change)
	case "forget":
		err = s.Forget(ctx, a.Key, a.Pre)
	default:
		err = fmt.Errorf("there is no operation %q", a.What)
	}
	if changed, ok := errors.AsType[idempotency.ChangedError](err); ok {
		result.Changed = &changed
	} else if err != nil {
		result.Err = err.Error()
	}
	return result
}

// served is the store of another process.
type served struct {
	idempotency.Store // for the operations that the test does not use
	mu                sync.Mutex
	out               *gob.Encoder
	last              uint64
	waiting           map[uint64]chan answered // nil after the process has exited
}

var errKilled = errors.New("the process was killed")

func newServed(in io.Writer, out io.Reader) *served {
	s := &served{out: gob.NewEncoder(in), waiting: make(map[uint64]chan answered)}
	go func() {
		decoder := gob.NewDecoder(bufio.NewReader(out))
		for {
			var a answered
			err := decoder.Decode(&a)
			s.mu.Lock()
			if err != nil { // also for an answer that is cut off
				for _, waiting := range s.waiting {
					close(waiting)
				}
				s.waiting = nil
				s.mu.Unlock()
				return
			}
			s.waiting[a.ID] <- a
			delete(s.waiting, a.ID)
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *served) ask(a asked) (answered, error) {
	s.mu.Lock()
	if s.waiting == nil {
		s.mu.Unlock()
		return answered{}, errKilled
	}
	s.last++
	a.ID = s.last
	result := make(chan answered, 1)
	s.waiting[a.ID] = result
	_ = s.out.Encode(a) // it fails if the process has exited, which the reader notices
	s.mu.Unlock()
	r, ok := <-result
	if !ok {
		return answered{}, errKilled
	}
	for _, err := range ruleErrors {
		if r.Err == err.Error() {
			return r, err
		}
	}
	if r.Changed != nil {
		return r, *r.Changed
	}
	if r.Err != "" {
		return r, errors.New(r.Err)
	}
	return r, nil
}

// Claim implements [idempotency.Store], as do the others.
func (s *served) Claim(_ context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	r, err := s.ask(asked{What: "claim", Claim: c})
	return r.Claimed, err
}

func (s *served) Renew(_ context.Context, c idempotency.Claim) error {
	_, err := s.ask(asked{What: "renew", Claim: c})
	return err
}

func (s *served) Settle(_ context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	_, err := s.ask(asked{What: "settle", Key: key, Record: claimed, Settlement: settlement})
	return err
}

func (s *served) Lookup(_ context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	r, err := s.ask(asked{What: "lookup", Key: key})
	return r.Record, time.Time{}, err
}

func (s *served) Response(_ context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	r, err := s.ask(asked{What: "response", Key: key, Token: token})
	return r.Response, err
}

func (s *served) Change(_ context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	r, err := s.ask(asked{What: "change", Key: key, Change: c})
	return r.Record, err
}

func (s *served) Forget(_ context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	_, err := s.ask(asked{What: "forget", Key: key, Pre: pre})
	return err
}

// A process that is repeatedly killed (SIGKILL) loses nothing that it has acknowledged, except claims
// that need not survive it. Each operation without an answer was executed completely or not at all.
// Everything else agrees with the model.
func TestKilledProcessAgreesWithTheModel(t *testing.T) {
	seed := *killedSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-killed.seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	// With responses of up to 32 KiB, memtables are flushed even in the short form of the test. In
	// some walks, many bodies are in segments.
	walks := make([]*storetest.Walk, 32)
	for i := range walks {
		body := 32 << 10
		if i%8 == 0 {
			body = 2 * maxInlineBody
		}
		walks[i] = storetest.NewWalk(fmt.Sprintf("walk %d", i), random.Uint64(), 10, body)
	}
	path := newPath(t)
	operations, start := 0, time.Now()
	for round := 0; round < 4 || time.Since(start) < *killedDuration; round++ {
		operations += walkUntilKilled(t, path, walks, 500+random.IntN(2000))
		s := openStore(t, vfs.Default, path)
		for _, walk := range walks {
			walk.Crashed()
			must(t, walk.Check(t.Context(), s), round)
		}
		closeStore(t, s)
	}
	t.Logf("%d operations in %v", operations, time.Since(start).Round(time.Second))
}

// walkUntilKilled walks over the store of another process, kills the process when it has answered so
// many operations, and returns how many it has answered in the end.
func walkUntilKilled(t *testing.T, path string, walks []*storetest.Walk, operations int) int {
	t.Helper()
	cmd, in, out := startChild(t, "served", path)
	s := newServed(in, out)
	var done sync.WaitGroup
	answers := make(chan struct{})
	for _, walk := range walks {
		done.Go(func() {
			for {
				err := walk.Operate(t.Context(), s)
				if err == nil {
					answers <- struct{}{}
					continue
				}
				if !errors.Is(err, errKilled) {
					t.Error(err)
				}
				return
			}
		})
	}
	all := make(chan struct{})
	go func() {
		done.Wait()
		close(all)
	}()
	for n := 0; ; {
		select {
		case <-answers:
			if n++; n == operations {
				must(t, cmd.Process.Kill())
			}
		case <-all:
			_ = cmd.Wait() // its error only reports the kill
			if n < operations {
				t.Fatalf("the process exited by itself after %d operations", n)
			}
			return n
		}
	}
}
