package openstores

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
)

// server is a memory store that many connections share, each with a timeout.
type server struct {
	*memory.Store
	// slow is how long it takes for one operation.
	slow   time.Duration
	opened []*connection
}

type connection struct {
	idempotency.Store
	server  *server
	timeout time.Duration
	closed  atomic.Bool
	missed  int64
}

func (c *connection) Unreplicated() int64 { return c.missed }

func (c *connection) Claim(ctx context.Context, claim idempotency.Claim) (idempotency.Claimed, error) {
	time.Sleep(min(c.server.slow, c.timeout))
	if c.closed.Load() {
		return idempotency.Claimed{}, idempotency.ErrClosed
	}
	if ctx.Err() != nil || c.timeout < c.server.slow {
		return idempotency.Claimed{}, context.DeadlineExceeded
	}
	return c.Store.Claim(ctx, claim)
}

func (c *connection) Close() error {
	c.closed.Store(true)
	return nil
}

// tunedModule opens such connections.
type tunedModule struct {
	countedModule
	server  *server
	timeout time.Duration
}

func (m *tunedModule) Tuning() any                     { return m.timeout }
func (m *tunedModule) OperationTimeout() time.Duration { return m.timeout }

func (m *tunedModule) Open(*zap.Logger) (idempotency.Store, error) {
	c := &connection{Store: m.server, server: m.server, timeout: m.timeout}
	m.server.opened = append(m.server.opened, c)
	return c, nil
}

// A configuration with another timeout keeps the open store, its engine and its runs,
// and its timeout counts when the old one is gone.
func TestTimeoutOfAnOpenStoreChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &server{Store: memory.New(1 << 20)}
		defer func() { _ = shared.Store.Close() }()
		handle := func(timeout time.Duration) *Handle {
			m := &tunedModule{server: shared, timeout: timeout}
			return &Handle{Stores: stores, Config: m, Key: t.Name(), Logger: zap.NewNop(), Settings: engine.Settings{Timeout: timeout}}
		}
		impatient, patient := handle(time.Second), handle(3*time.Second)
		store := started(t, impatient)
		run := begin(t, store, "in flight")
		claims := func(id string, want bool) {
			t.Helper()
			d, err := store.Begin(t.Context(), someKey(id))
			got, claimed := d.(*engine.Run)
			if err != nil || claimed != want {
				t.Errorf("%s: decided %+v, %v; want a run: %v", id, d, err, want)
			}
			if claimed {
				kept(got)
			}
		}
		shared.slow = 2 * time.Second
		claims("under the old timeout", false)
		if started(t, patient) != store {
			t.Fatal("it is another store")
		}
		claims("beside the old configuration", false)

		// A claim that is under way goes on where it began.
		shared.slow = 500 * time.Millisecond
		under := make(chan engine.Decision)
		go func() {
			d, _ := store.Begin(t.Context(), someKey("under way"))
			under <- d
		}()
		synctest.Wait()
		cleanedUp(impatient)
		synctest.Wait()
		if shared.opened[0].closed.Load() {
			t.Error("the store is closed under an operation")
		}
		old, ok := (<-under).(*engine.Run)
		if !ok {
			t.Fatal("the claim under way failed")
		}
		synctest.Wait()
		if len(shared.opened) != 2 || !shared.opened[0].closed.Load() {
			t.Errorf("%d were opened, and the old one is closed: %v", len(shared.opened), shared.opened[0].closed.Load())
		}
		shared.slow = 2 * time.Second
		claims("under the new timeout", true)

		waiting := make(chan engine.Decision)
		go func() {
			req := someKey("in flight")
			req.Wait = time.Minute
			d, _ := store.Begin(t.Context(), req)
			waiting <- d
		}()
		synctest.Wait()
		kept(run)
		kept(old)
		if d, ok := (<-waiting).(engine.Replay); !ok {
			t.Errorf("the duplicate got %+v", d)
		}
		// The same settings once more open nothing.
		same := handle(3 * time.Second)
		started(t, same)
		cleanedUp(patient)
		cleanedUp(same)
		<-store.ended
		if n := len(shared.opened); n != 2 || !shared.opened[1].closed.Load() {
			t.Errorf("%d were opened, and the last one is closed: %v", n, shared.opened[1].closed.Load())
		}
	})
}

// Those who wait are woken by the store that is in use.
func TestTunedStoreWakes(t *testing.T) {
	shared := &server{Store: memory.New(1 << 20)}
	defer func() { _ = shared.Store.Close() }()
	module := func(timeout time.Duration) *tunedModule { return &tunedModule{server: shared, timeout: timeout} }
	store, err := openStoreOf(module(time.Second), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	woken := 0
	stop := store.Subscribe(func(idempotency.Key) { woken++ })
	settle := func(id string) {
		t.Helper()
		c := idempotency.Claim{Key: idempotency.Identity{ID: id}.Key(), Token: id, Terms: someKey(id).Policy.Terms}
		claimed, err := store.Claim(t.Context(), c)
		if err == nil {
			err = store.Settle(t.Context(), c.Key, claimed.Record, idempotency.Settlement{State: idempotency.Released, Retention: time.Hour})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	settle("one")
	if err := store.(*tunedStore).tune(module(2*time.Second), zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	store.(*tunedStore).closing.Wait()
	settle("two")
	if woken != 2 {
		t.Errorf("woken %d times, want 2", woken)
	}
	stop()
	settle("three")
	if woken != 2 {
		t.Error("woken after it stopped")
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// What a store could not replicate in time is counted over all its tunings, whether
// they are closed or not.
func TestTunedStoreCountsWhatIsNotReplicated(t *testing.T) {
	shared := &server{Store: memory.New(1 << 20)}
	defer func() { _ = shared.Store.Close() }()
	opened, err := openStoreOf(&tunedModule{server: shared, timeout: time.Second}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	store := opened.(*tunedStore)
	counts := func(want int64) {
		t.Helper()
		if n := store.Unreplicated(); n != want {
			t.Errorf("%d are counted, want %d", n, want)
		}
	}
	shared.opened[0].missed = 2
	counts(2)
	under := store.begin() // an operation keeps the first one open
	if err := store.tune(&tunedModule{server: shared, timeout: 2 * time.Second}, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	shared.opened[1].missed = 10
	counts(12)
	shared.opened[0].missed = 3
	under.operations.Done()
	store.closing.Wait()
	counts(13)
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	counts(13)
}

// redisModule opens a Redis store with a timeout.
type redisModule struct {
	countedModule
	address string
	timeout time.Duration
}

func (m *redisModule) Tuning() any                     { return m.timeout }
func (m *redisModule) OperationTimeout() time.Duration { return m.timeout }

func (m *redisModule) Open(logger *zap.Logger) (idempotency.Store, error) {
	return redis.Open(redis.Options{Addresses: []string{m.address}, Prefix: redis.DefaultPrefix, Timeout: m.timeout, Logger: logger})
}

// Somebody waits for a run elsewhere while Redis is opened with another timeout, and
// again with another one before the first is closed. The end of the run still wakes.
func TestTunedRedisWakesWhoWaitedBefore(t *testing.T) {
	server := redistest.Start(t)
	open := func(timeout time.Duration) *tunedStore {
		store, err := openStoreOf(&redisModule{address: server.Addr, timeout: timeout}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		return store.(*tunedStore)
	}
	owner, store := open(10*time.Second), open(10*time.Second)
	woken := make(chan idempotency.Key, 10)
	defer store.Subscribe(func(key idempotency.Key) { woken <- key })()
	claim := idempotency.Claim{Key: idempotency.Identity{ID: "a"}.Key(), Token: "1", Terms: someKey("a").Policy.Terms}
	run, err := owner.Claim(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	waiting := claim
	waiting.Token, waiting.Waits = "2", true
	if found, err := store.Claim(t.Context(), waiting); err != nil || found.Verdict != idempotency.WaitForRun {
		t.Fatalf("the second claim: %+v, %v", found, err)
	}
	under := store.begin() // an operation keeps the first one open
	for _, timeout := range []time.Duration{11 * time.Second, 12 * time.Second} {
		if err := store.tune(&redisModule{address: server.Addr, timeout: timeout}, zap.NewNop()); err != nil {
			t.Fatal(err)
		}
	}
	under.operations.Done()
	store.closing.Wait()
	end := idempotency.Settlement{State: idempotency.Released, Retention: time.Hour}
	if err := owner.Settle(t.Context(), claim.Key, run.Record, end); err != nil {
		t.Fatal(err)
	}
	select {
	case key := <-woken:
		if key != claim.Key {
			t.Errorf("woken for %s", key)
		}
	case <-time.After(30 * time.Second):
		t.Error("not woken")
	}
}
