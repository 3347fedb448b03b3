package storepool

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// pool has the stores that tests open.
var pool = New(func() error { return nil }, nil, nil)

// countedStore is a memory store that counts settlements. It can be unavailable for settlements, and lose
// the replies to claims.
type countedStore struct {
	*memory.Store
	unavailable, losesReplies atomic.Bool

	closed    atomic.Bool
	completed atomic.Int64
	damages   atomic.Int64
	closes    chan struct{}
}

func (s *countedStore) Damages() int64 { return s.damages.Load() }

func (s *countedStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	got, err := s.Store.Claim(ctx, c)
	if s.losesReplies.Load() {
		return idempotency.Claimed{Record: got.Record}, errors.New("no reply")
	}
	return got, err
}

func (s *countedStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if s.unavailable.Load() {
		return errors.New("unavailable")
	}
	err := s.Store.Settle(ctx, key, claimed, settlement)
	if err == nil && settlement.State == idempotency.Complete {
		s.completed.Add(1)
	}
	return err
}

func (s *countedStore) Close() error {
	s.closed.Store(true)
	if s.closes != nil {
		<-s.closes
	}
	return s.Store.Close()
}

// countedModule opens such stores, as the configurations of one test name them.
type countedModule struct {
	key string
	// opens blocks Open until it is closed; nil does not.
	opens chan struct{}
	// closes blocks Close likewise.
	closes chan struct{}
	err    error

	opened atomic.Int64
	// tuned is the limit of the configuration that tuned the store last.
	tuned atomic.Int64
	store atomic.Pointer[countedStore]
}

func (m *countedModule) PoolKey() string                 { return m.key }
func (m *countedModule) Tuning() any                     { return nil }
func (m *countedModule) Tune(idempotency.Store)          {}
func (m *countedModule) Describe() string                { return "counted store" }
func (m *countedModule) OperationTimeout() time.Duration { return time.Second }
func (m *countedModule) Shared() bool                    { return false }

func (m *countedModule) Open(*zap.Logger) (idempotency.Store, error) {
	m.opened.Add(1)
	if m.opens != nil {
		<-m.opens
	}
	if m.err != nil {
		return nil, m.err
	}
	s := &countedStore{Store: memory.New(1 << 20), closes: m.closes}
	m.store.Store(s)
	return s, nil
}

// configuredModule is a countedModule with the settings of one configuration.
type configuredModule struct {
	*countedModule
	limit int
}

func (m configuredModule) Tune(idempotency.Store) { m.tuned.Store(int64(m.limit)) }

// handleOf is the handle of one configuration.
func (m *countedModule) handleOf(limit int, logger *zap.Logger) *Handle {
	return &Handle{
		Pool: pool, Config: configuredModule{m, limit}, Key: m.key, Logger: logger,
		Settings: engine.Settings{Limits: engine.Limits{InFlight: limit}},
	}
}

func mustEnter(t *testing.T, h *Handle) *Store {
	t.Helper()
	store, err := h.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// started opens the store for a configuration as its start does.
func started(t *testing.T, h *Handle) *Store {
	t.Helper()
	store, err := h.Start()
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func requestFor(id string) engine.Request {
	return engine.Request{
		Key:    idempotency.Identity{ID: id}.Key(),
		Policy: idempotency.Policy{Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour}},
	}
}

// startRun starts a run, and fails the test if the engine refuses it.
func startRun(t *testing.T, store *Store, id string) *engine.Run {
	t.Helper()
	d, err := store.Claim(t.Context(), requestFor(id))
	run, ok := d.(*engine.Run)
	if !ok {
		t.Fatalf("decided %+v, %v", d, err)
	}
	return run
}

func kept(run *engine.Run) {
	_, _ = run.Settle(idempotency.End{How: idempotency.Answered, Response: &idempotency.Response{Status: 201}}, nil)
}

// The settings of a new configuration apply when the old one has stopped, and not before, so one that
// fails to start changes nothing.
func TestSettingsOfTheOldestConfigurationCount(t *testing.T) {
	m := &countedModule{key: t.Name()}
	oldLog, oldLines := observer.New(zapcore.InfoLevel)
	newLog, newLines := observer.New(zapcore.InfoLevel)
	first := m.handleOf(1, zap.New(oldLog).Named("dedup"))
	failing := m.handleOf(2, zap.New(newLog).Named("failing"))
	next := m.handleOf(3, zap.New(newLog).Named("dedup"))

	store := started(t, first)
	withField := store.log.With(zap.String("key", "k"))
	want := func(limit int, lines, others *observer.ObservedLogs) {
		t.Helper()
		if got := m.tuned.Load(); got != int64(limit) {
			t.Errorf("the store is tuned by the configuration with limit %d, want %d", got, limit)
		}
		var runs []*engine.Run
		for n := range limit {
			runs = append(runs, startRun(t, store, string(rune('a'+n))))
		}
		d, _ := store.Claim(t.Context(), requestFor("one more"))
		if refused, ok := d.(engine.Refusal); !ok || refused.Reason != engine.ReasonOverloaded {
			t.Errorf("beside %d runs another got %+v", limit, d)
		}
		for _, run := range runs {
			_, _ = run.Settle(idempotency.End{How: idempotency.NotSent}, nil)
		}
		lines.TakeAll()
		others.TakeAll()
		withField.Info("a line")
		got := lines.TakeAll()
		if len(got) != 1 || got[0].ContextMap()["key"] != "k" || got[0].LoggerName != "dedup" {
			t.Errorf("the log has %+v", got)
		}
		if n := others.Len(); n != 0 {
			t.Errorf("the other log has %d lines", n)
		}
	}
	want(1, oldLines, newLines)
	if started(t, failing) != store {
		t.Error("the same store is opened twice")
	}
	want(1, oldLines, newLines)
	failing.Stop()
	want(1, oldLines, newLines)
	started(t, next)
	want(1, oldLines, newLines)
	first.Stop()
	want(3, newLines, oldLines)
	next.Stop()
	<-store.closed
	if n := m.opened.Load(); n != 1 {
		t.Errorf("opened %d times", n)
	}
}

// A store is closed when its last work is done, whether of a configuration or of a late request.
func TestStoreIsClosedAfterItsLastWork(t *testing.T) {
	m := &countedModule{key: t.Name()}
	h := m.handleOf(10, zap.NewNop())
	store := started(t, h)
	request := mustEnter(t, h) // a request that outlives the configuration
	h.Stop()
	run := startRun(t, request, "k")
	request.Leave()
	isOpen := func(when string) {
		t.Helper()
		select {
		case <-store.closed:
			t.Fatalf("closed %s", when)
		default:
		}
		if m.store.Load().closed.Load() {
			t.Fatalf("closed %s", when)
		}
	}
	isOpen("with a run in flight")
	// A configuration that starts again uses the same store, which still has the run.
	again := m.handleOf(10, zap.NewNop())
	if started(t, again) != store {
		t.Error("a store with work to do is opened twice")
	}
	kept(run)
	d, _ := store.Claim(t.Context(), requestFor("k"))
	if _, ok := d.(engine.Replay); !ok {
		t.Errorf("the duplicate got %+v", d)
	}
	isOpen("under a configuration")
	again.Stop()
	<-store.closed
	if !m.store.Load().closed.Load() {
		t.Error("it is not closed")
	}
	// A request of a stopped configuration opens the store again.
	late := mustEnter(t, h)
	if late == store || m.opened.Load() != 2 {
		t.Errorf("opened %d times", m.opened.Load())
	}
	late.Leave()
	<-late.closed
}

func TestExitClosesStoresAndSettlesRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(func() error { return nil }, engine.NewCopies(0), nil)
		idle, busy, left := &countedModule{key: "idle"}, &countedModule{key: "busy"}, &countedModule{key: "left"}
		open := make(map[*countedModule]*Store)
		for _, m := range []*countedModule{idle, busy, left} {
			h := m.handleOf(10, zap.NewNop())
			h.Pool = p
			open[m] = started(t, h)
			defer func() { <-open[m].closed }()
			if m == busy { // its request has not left
				defer mustEnter(t, h).Leave()
			}
			if m != idle {
				startRun(t, open[m], "k")
			}
			h.Stop()
		}
		p.Exit()
		record, _, err := busy.store.Load().Lookup(t.Context(), requestFor("k").Key)
		if err != nil || record.State != idempotency.Released {
			t.Errorf("the run is left as %+v, %v", record, err)
		}
		if !left.store.Load().closed.Load() {
			t.Error("a store whose run was abandoned is left open")
		}
		if !idle.store.Load().closed.Load() {
			t.Error("a store without runs is left open")
		}
	})
}

// A hanging disk does not keep a process from exiting.
func TestExitTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &countedModule{key: t.Name(), closes: make(chan struct{})}
		core, logs := observer.New(zap.ErrorLevel)
		h := m.handleOf(10, zap.New(core))
		h.Pool = New(func() error { return nil }, engine.NewCopies(0), nil)
		store := started(t, h)
		h.Stop()
		start := time.Now()
		h.Pool.Exit()
		if waited := time.Since(start); waited != 5*time.Second {
			t.Errorf("waited %s for a store that does not close, want 5s", waited)
		}
		if n := logs.FilterMessageSnippet("could not be closed").Len(); n != 1 {
			t.Errorf("logged %d times", n)
		}
		close(m.closes)
		<-store.closed
	})
}

// A request for one store does not wait for another store that is being opened. Requests for the same
// store do, and it is opened once.
func TestOpeningDoesNotDelayOtherStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &countedModule{key: t.Name() + " slow", opens: make(chan struct{})}
		other := &countedModule{key: t.Name() + " other"}
		entered := make(chan *Store)
		for range 2 {
			go func() {
				store, _ := slow.handleOf(1, zap.NewNop()).open()
				entered <- store
			}()
		}
		synctest.Wait() // one opens it, and the other waits
		store := started(t, other.handleOf(1, zap.NewNop()))
		for _, open := range pool.All() { // as the admin API does
			if open.key == slow.key {
				t.Error("All returned a store that is still being opened")
			}
			open.Leave()
		}
		store.Leave()
		close(slow.opens)
		one, two := <-entered, <-entered
		if one != two || slow.opened.Load() != 1 {
			t.Errorf("opened %d times", slow.opened.Load())
		}
		one.Leave()
		two.Leave()
		<-one.closed
		<-store.closed
	})
}

func TestOpenError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &countedModule{key: t.Name(), err: errors.New("it is damaged")}
		h := m.handleOf(1, zap.NewNop())
		for range 2 {
			if _, err := h.Start(); !errors.Is(err, m.err) {
				t.Errorf("got %v", err)
			}
			if _, err := h.Enter(t.Context()); !errors.Is(err, ErrNotOpen) {
				t.Errorf("a request got %v", err)
			}
		}
		m.err = nil
		store := started(t, h)
		h.Stop()
		<-store.closed
		if n := m.opened.Load(); n != 3 {
			t.Errorf("opened %d times, want 3: a failure is no reason not to try again", n)
		}
	})
}

// While its configuration starts, a request waits until the store is open, for up to the timeout of an
// operation, or until its client disconnects.
func TestRequestWaitsForItsStoreToOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := (&countedModule{key: t.Name()}).handleOf(1, zap.NewNop())
		start := time.Now()
		if _, err := h.Enter(t.Context()); !errors.Is(err, ErrNotOpen) || time.Since(start) != h.Config.OperationTimeout() {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		ctx, leave := context.WithCancel(t.Context())
		entered := make(chan error, 2)
		go func() {
			_, err := h.Enter(ctx)
			entered <- err
		}()
		synctest.Wait()
		leave()
		if err := <-entered; !errors.Is(err, context.Canceled) {
			t.Errorf("after its client disconnected, the request got %v", err)
		}
		go func() {
			store, err := h.Enter(t.Context())
			if err == nil {
				store.Leave()
			}
			entered <- err
		}()
		synctest.Wait()
		store := started(t, h)
		if err := <-entered; err != nil {
			t.Errorf("the store is open, and a request that waited got %v", err)
		}
		h.Stop()
		<-store.closed
	})
}

// While a stopped store waits for a claim in doubt, its configuration starts again, the end of a run
// cannot be stored, and the configuration stops. The store is closed when that end is stored, and not
// before.
func TestStoreIsNotClosedWithAnUnstoredEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &countedModule{key: t.Name()}
		first := m.handleOf(1, zap.NewNop())
		store := started(t, first)
		m.store.Load().losesReplies.Store(true)
		if d, _ := store.Claim(t.Context(), requestFor("in doubt")); d.(engine.Refusal).Reason != engine.ReasonUnavailable {
			t.Fatalf("decided %+v", d)
		}
		m.store.Load().losesReplies.Store(false)
		first.Stop()
		synctest.Wait() // it waits for the claim in doubt

		second := m.handleOf(1, zap.NewNop())
		if started(t, second) != store {
			t.Fatal("the store was opened twice")
		}
		run := startRun(t, store, "paid")
		time.Sleep(1500 * time.Millisecond)
		m.store.Load().unavailable.Store(true)
		kept(run)
		second.Stop()
		time.Sleep(idempotency.ClaimTimeout)
		m.store.Load().unavailable.Store(false)
		// The claim in doubt is withdrawn before the end is tried again.
		<-store.closed
		if n := m.store.Load().completed.Load(); n != 1 {
			t.Errorf("the store was closed with %d ends stored, want 1", n)
		}
	})
}

// A server that is no longer there, and no longer configured, does not take room until the retention ends.
func TestUnusedStoreIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &countedModule{key: t.Name()}
		core, logs := observer.New(zap.ErrorLevel)
		h := m.handleOf(10, zap.New(core))
		store := started(t, h)
		paid, late := startRun(t, store, "paid"), startRun(t, store, "late")
		m.store.Load().unavailable.Store(true)
		kept(paid)
		time.Sleep(30 * time.Minute) // a store that a configuration uses is tried for as long as the retention
		h.Stop()
		start := time.Now()
		time.Sleep(unusedTimeout - time.Second)
		select {
		case <-store.closed:
			t.Fatal("given up too early")
		default:
		}
		kept(late)
		<-store.closed
		if took := time.Since(start); took < unusedTimeout || took > unusedTimeout+2*unusedInterval {
			t.Errorf("given up after %v, want %v", took, unusedTimeout)
		}
		lines := logs.FilterMessageSnippet("a store is given up").All()
		if len(lines) != 1 || lines[0].ContextMap()["store"] != m.Describe() || lines[0].ContextMap()["runs"] != int64(2) {
			t.Errorf("logged %v, want one line with the store and 2 runs", lines)
		}
	})
}

// A store that answers again, or that a configuration uses again, is not given up.
func TestUnusedStoreThatRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, recover := range map[string]func(m *countedModule, h *Handle){
			"answers": func(m *countedModule, _ *Handle) { m.store.Load().unavailable.Store(false) },
			"used": func(m *countedModule, h *Handle) {
				started(t, h)
				time.Sleep(30 * time.Minute)
				m.store.Load().unavailable.Store(false)
				time.Sleep(time.Minute)
				h.Stop()
			},
		} {
			m := &countedModule{key: t.Name() + name}
			h := m.handleOf(10, zap.NewNop())
			store := started(t, h)
			run := startRun(t, store, "paid")
			m.store.Load().unavailable.Store(true)
			kept(run)
			h.Stop()
			time.Sleep(4 * time.Minute)
			recover(m, h)
			<-store.closed
			if n := m.store.Load().completed.Load(); n != 1 {
				t.Errorf("%s: %d ends are stored, want 1", name, n)
			}
		}
	})
}

// A counter of the stores goes on when a store is closed.
func TestCountersOfClosedStores(t *testing.T) {
	before := pool.InProgress().Damages
	for n := range int64(2) {
		m := &countedModule{key: t.Name()}
		h := m.handleOf(1, zap.NewNop())
		s := started(t, h)
		m.store.Load().damages.Store(2)
		if got := pool.InProgress().Damages - before; got != 2*n+2 {
			t.Errorf("%d damages with %d stores, want %d", got, n+1, 2*n+2)
		}
		h.Stop()
		<-s.Closed()
		if got := pool.InProgress().Damages - before; got != 2*n+2 {
			t.Errorf("%d damages after %d stores were closed, want %d", got, n+1, 2*n+2)
		}
	}
}
