package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// fault says how an operation on the store fails.
type fault int

const (
	works fault = iota
	// refused: it fails at once and is never executed.
	refused
	// hung: it fails when its time is over and is never executed.
	hung
	// replyLost: it is executed, and fails when its time is over.
	replyLost
	// executedLater: it fails when its time is over, and is executed one second after
	// that.
	executedLater
	// twice: it is executed as with replyLost, and again as with executedLater.
	twice
	// panics: it panics.
	panics
	// moves: a settlement takes a second for each MiB of its body.
	moves
	// stuck: a settlement with a body of a MiB moves nothing of it.
	stuck
)

// executionDelay is when an operation with the fault executedLater is executed.
const executionDelay = time.Second

var (
	errRefused = errors.New("connection refused")
	errLost    = errors.New("no reply")
)

// link is the connection of one replica to the shared store. It records the operations, and makes
// them fail as the test says.
type link struct {
	idempotency.Store // as it was at first

	mu             sync.Mutex
	leadsTo        idempotency.Store
	wakeUpsDropped bool // wake-ups do not come through
	faults         map[string]fault
	errs           map[string]error
	badKey         idempotency.Key
	badErr         error // the error of all settlements of badKey
	gates          map[string]chan struct{}
	calls          map[string][]time.Time
	progress       idempotency.Progress // of bodies
}

func newLink(store idempotency.Store) *link {
	return &link{
		Store: store, leadsTo: store,
		faults: make(map[string]fault),
		errs:   make(map[string]error),
		gates:  make(map[string]chan struct{}),
		calls:  make(map[string][]time.Time),
	}
}

// to is where operations go: another server, after a failover.
func (l *link) to() idempotency.Store {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leadsTo
}

func (l *link) failover(to idempotency.Store) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leadsTo = to
}

// fail makes the operations with these names fail from now on, or all of them if no
// names are given.
func (l *link) fail(how fault, operations ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(operations) == 0 {
		operations = []string{"claim", "renew", "settle", "ready", "lookup", "response"}
	}
	for _, operation := range operations {
		l.faults[operation] = how
	}
}

// failWith makes an operation do nothing and fail with this error. With nil it works
// again.
func (l *link) failWith(err error, operation string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs[operation] = err
}

// failKey makes the settlements of one key fail with this error. With nil they work
// again.
func (l *link) failKey(key idempotency.Key, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.badKey, l.badErr = key, err
}

// dropWakeUps loses all wake-ups from now on.
func (l *link) dropWakeUps() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakeUpsDropped = true
}

// pause delays an operation, before it is executed, until resume is called.
func (l *link) pause(operation string) (resume func()) {
	gate := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gates[operation] = gate
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.gates, operation)
		close(gate)
	}
}

func (l *link) count(operation string) int { return len(l.times(operation)) }

// times returns the times at which the operation was called.
func (l *link) times(operation string) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[operation]
}

func (l *link) do(ctx context.Context, operation string, call func(context.Context) error) error {
	l.mu.Lock()
	l.calls[operation] = append(l.calls[operation], time.Now())
	how, err := l.faults[operation], l.errs[operation]
	gate, gateOfReply := l.gates[operation], l.gates["reply to "+operation]
	l.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if err != nil {
		return err
	}
	executeLater := func() {
		deadline, _ := ctx.Deadline()
		late := context.WithValue(context.Background(), lateKey{}, true)
		time.AfterFunc(time.Until(deadline)+executionDelay, func() { _ = call(late) })
	}
	switch how {
	case works:
		err := call(ctx)
		if gateOfReply != nil {
			<-gateOfReply
		}
		return err
	case refused:
		return errRefused
	case hung:
	case replyLost:
		_ = call(ctx)
	case executedLater:
		executeLater()
	case twice:
		_ = call(ctx)
		executeLater()
	case panics:
		panic("the store has a bug")
	case moves, stuck:
		return call(context.WithValue(ctx, movingKey{}, how))
	}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", errLost, ctx.Err())
}

// movingKey has the fault of a settlement whose body moves.
type movingKey struct{}

// move moves a body, if the settlement is one that moves it.
func (l *link) move(ctx context.Context, response *idempotency.Response) error {
	how, isMoving := ctx.Value(movingKey{}).(fault)
	if !isMoving || response == nil {
		return nil
	}
	idempotency.Follow(ctx, &l.progress)
	for left := len(response.Body); left >= 1<<20 && ctx.Err() == nil; left -= 1 << 20 {
		if how == stuck {
			<-ctx.Done()
		} else {
			time.Sleep(time.Second)
			l.progress.Moved()
		}
	}
	return ctx.Err()
}

// lateKey marks the context of an operation that is executed after its caller has given up.
type lateKey struct{}

func (l *link) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	found, now, _ := l.to().Lookup(ctx, c.Key)
	inDoubt := c.Record(found, now)
	var got idempotency.Claimed
	err := l.do(ctx, "claim", func(ctx context.Context) error {
		claimed, err := l.to().Claim(ctx, c)
		if ctx.Value(lateKey{}) == nil {
			got = claimed
		}
		return err
	})
	if errors.Is(err, errLost) {
		return idempotency.Claimed{Record: inDoubt}, err
	}
	return got, err
}

func (l *link) Renew(ctx context.Context, c idempotency.Claim) error {
	return l.do(ctx, "renew", func(ctx context.Context) error { return l.to().Renew(ctx, c) })
}

func (l *link) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	l.mu.Lock()
	err := l.badErr
	if key != l.badKey {
		err = nil
	}
	l.mu.Unlock()
	return l.do(ctx, "settle", func(ctx context.Context) error {
		if err == nil {
			err = l.move(ctx, s.Response)
		}
		if err != nil {
			return err
		}
		return l.to().Settle(ctx, key, claimed, s)
	})
}

func (l *link) Ready(ctx context.Context) error { return l.do(ctx, "ready", l.to().Ready) }

func (l *link) Lookup(ctx context.Context, key idempotency.Key) (r *idempotency.Record, now time.Time, err error) {
	err = l.do(ctx, "lookup", func(ctx context.Context) error {
		r, now, err = l.to().Lookup(ctx, key)
		return err
	})
	return r, now, err
}

func (l *link) Response(ctx context.Context, key idempotency.Key, token string) (r *idempotency.Response, err error) {
	err = l.do(ctx, "response", func(ctx context.Context) error {
		r, err = l.to().Response(ctx, key, token)
		return err
	})
	return r, err
}

func (l *link) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (r *idempotency.Record, err error) {
	err = l.do(ctx, "change", func(ctx context.Context) error {
		r, err = l.to().Change(ctx, key, c)
		return err
	})
	return r, err
}

func (l *link) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	return l.do(ctx, "forget", func(ctx context.Context) error { return l.to().Forget(ctx, key, pre) })
}

func (l *link) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return l.Store.Subscribe(func(key idempotency.Key) {
		l.mu.Lock()
		wakeUpsDropped := l.wakeUpsDropped
		l.mu.Unlock()
		if !wakeUpsDropped {
			wake(key)
		}
	})
}

// Close does nothing, because other replicas use the store too.
func (l *link) Close() error { return nil }

// recover makes all operations work again.
func (l *link) recover() {
	l.fail(works)
	l.failWith(nil, "settle")
}
