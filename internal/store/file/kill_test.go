package file

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"os"
	"slices"
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

func init() {
	children["served"] = func(path string) error {
		s, err := Open(path, zap.NewNop())
		if err != nil {
			return err
		}
		server := rpc.NewServer()
		if err := server.RegisterName("Store", remote{s}); err != nil {
			return err
		}
		server.ServeConn(pipes{os.Stdin, os.Stdout})
		return nil
	}
}

// pipes are what two processes talk over.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// Asked is an operation with its arguments.
type Asked struct {
	Operation  string
	Claim      idempotency.Claim
	Key        idempotency.Key
	Token      string
	Change     idempotency.Change
	Pre        idempotency.Precondition
	Record     *idempotency.Record
	Settlement idempotency.Settlement
}

// Answered is the result of an operation. The process sends it after the store has acknowledged the operation.
type Answered struct {
	Claimed  idempotency.Claimed
	Record   *idempotency.Record
	Response *idempotency.Response
	Err      string
	Changed  *idempotency.ChangedError
}

// remote has the operations of a store, as net/rpc calls them.
type remote struct{ store *Store }

func (r remote) Do(q Asked, a *Answered) (err error) {
	ctx := context.Background()
	switch q.Operation {
	case "claim":
		a.Claimed, err = r.store.Claim(ctx, q.Claim)
	case "renew":
		err = r.store.Renew(ctx, q.Claim)
	case "settle":
		err = r.store.Settle(ctx, q.Key, q.Record, q.Settlement)
	case "lookup":
		a.Record, _, err = r.store.Lookup(ctx, q.Key)
	case "response":
		a.Response, err = r.store.Response(ctx, q.Key, q.Token)
	case "change":
		a.Record, err = r.store.Change(ctx, q.Key, q.Change)
	case "forget":
		err = r.store.Forget(ctx, q.Key, q.Pre)
	}
	if changed, ok := errors.AsType[idempotency.ChangedError](err); ok {
		a.Changed = &changed
	} else if err != nil {
		a.Err = err.Error()
	}
	return nil
}

// served is the store of another process.
type served struct {
	idempotency.Store // for the operations that the test does not use
	client            *rpc.Client
}

var errKilled = errors.New("the process was killed")

// ruleErrors are the errors that a rule of the store decides, as opposed to failures.
var ruleErrors = []error{idempotency.ErrGone, idempotency.ErrFenced, idempotency.ErrInFlight, idempotency.ErrComplete}

func (s served) ask(q Asked) (a Answered, err error) {
	err = s.client.Call("Store.Do", q, &a)
	switch at := slices.IndexFunc(ruleErrors, func(rule error) bool { return rule.Error() == a.Err }); {
	case errors.As(err, new(rpc.ServerError)):
	case err != nil: // an operation without an answer is in doubt
		err = errKilled
	case at >= 0:
		err = ruleErrors[at]
	case a.Changed != nil:
		err = *a.Changed
	case a.Err != "":
		err = errors.New(a.Err)
	}
	return a, err
}

// Claim implements [idempotency.Store], as do the others.
func (s served) Claim(_ context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	a, err := s.ask(Asked{Operation: "claim", Claim: c})
	return a.Claimed, err
}

func (s served) Renew(_ context.Context, c idempotency.Claim) error {
	return storetest.ErrOf(s.ask(Asked{Operation: "renew", Claim: c}))
}

func (s served) Settle(_ context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	return storetest.ErrOf(s.ask(Asked{Operation: "settle", Key: key, Record: claimed, Settlement: settlement}))
}

func (s served) Lookup(_ context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	a, err := s.ask(Asked{Operation: "lookup", Key: key})
	return a.Record, time.Time{}, err
}

func (s served) Response(_ context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	a, err := s.ask(Asked{Operation: "response", Key: key, Token: token})
	return a.Response, err
}

func (s served) Change(_ context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	a, err := s.ask(Asked{Operation: "change", Key: key, Change: c})
	return a.Record, err
}

func (s served) Forget(_ context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	return storetest.ErrOf(s.ask(Asked{Operation: "forget", Key: key, Pre: pre}))
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
	s := served{client: rpc.NewClient(pipes{out, in})}
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
	go func() {
		done.Wait()
		close(answers)
	}()
	n := 0
	for range answers {
		if n++; n == operations {
			must(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // its error only reports the kill
	if n < operations {
		t.Fatalf("the process exited by itself after %d operations", n)
	}
	return n
}
