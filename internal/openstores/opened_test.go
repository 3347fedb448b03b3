package openstores

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// openNow returns what operators see of a store, without keeping it open; nil for nothing.
func openNow(key string) (found *Opened) {
	for _, o := range stores.All() {
		if o.Key() == key {
			found = o
		}
		o.Leave()
	}
	return found
}

// A store has the keys of the configurations that have used it, also of those that are gone.
func TestNamespacesOfAllConfigurations(t *testing.T) {
	m := &countedModule{key: t.Name()}
	var store *Store
	var handles []*Handle
	for _, namespace := range []string{"old", "new", "new"} {
		h := m.handleOf(1, zap.NewNop())
		h.Namespace = namespace
		store = started(t, h)
		handles = append(handles, h)
	}
	run := begin(t, store, "k")
	for i, h := range handles {
		cleanedUp(h)
		o := openNow(m.key)
		if got := o.Namespaces(); !slices.Equal(got, []string{"old", "new"}) {
			t.Errorf("without %d of the configurations the namespaces are %q", i+1, got)
		}
		if inUse := i+1 < len(handles); o.InUse() != inUse {
			t.Errorf("without %d of the configurations it is in use: %v", i+1, !inUse)
		}
	}
	kept(run)
	<-store.ended
}

// A store that is open under several settings is one for operators.
func TestStoreUnderSeveralSettingsIsOne(t *testing.T) {
	m := &countedModule{key: t.Name()}
	var handles []*Handle
	for times, namespace := range []string{"first", "second"} {
		h := m.handleOf(1, zap.NewNop())
		h.Namespace, h.Times = namespace, times
		started(t, h)
		handles = append(handles, h)
	}
	if n := m.opened.Load(); n != 2 {
		t.Fatalf("it was opened %d times", n)
	}
	count := 0
	for _, o := range stores.All() {
		if o.Key() == m.key {
			count++
		}
		o.Leave()
	}
	if count != 1 {
		t.Errorf("operators see it %d times", count)
	}
	first, second := handles[0].Store(), handles[1].Store()
	run := begin(t, second, "k")
	o := openNow(m.key)
	if got := o.Namespaces(); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("the namespaces are %q", got)
	}
	// What is only open for what was begun is asked last.
	cleanedUp(handles[0])
	<-first.ended
	if o := openNow(m.key); o.Store != second || !o.InUse() {
		t.Error("the store that is in use does not stand for all")
	}
	again := m.handleOf(1, zap.NewNop())
	started(t, again)
	cleanedUp(handles[1])
	if o := openNow(m.key); o.Store == second || len(o.also) != 1 || o.also[0] != second {
		t.Error("the store that is not in use does not come last")
	}
	kept(run)
	<-second.ended
	last := again.Store()
	cleanedUp(again)
	<-last.ended
}

// silentStore tells nobody of what has happened to a key.
type silentStore struct{ idempotency.Store }

func (silentStore) Subscribe(func(idempotency.Key)) (stop func()) { return func() {} }

// silentModule opens one store, however often it is opened.
type silentModule struct {
	countedModule
	one silentStore
}

func (m *silentModule) Open(*zap.Logger) (idempotency.Store, error) { return m.one, nil }

// What an operator frees or forgets is gone from the copies of this process at once, under
// whichever settings it has the store open.
func TestOperatorLeavesNoCopyUnderOtherSettings(t *testing.T) {
	set := NewSet(func() error { return nil }, engine.NewCopies(1<<20))
	m := &silentModule{one: silentStore{memory.New(1 << 20)}}
	var opened []*Store
	for times := range 2 {
		h := &Handle{Stores: set, Config: m, Key: t.Name(), Times: times, Logger: zap.NewNop()}
		store := started(t, h)
		t.Cleanup(func() {
			cleanedUp(h)
			<-store.ended
		})
		opened = append(opened, store)
	}
	for name, act := range map[string]func(*Opened, context.Context, idempotency.Key, idempotency.Seen) error{"freed": (*Opened).Free, "forgotten": (*Opened).Forget} {
		kept(begin(t, opened[0], name))
		for i, store := range opened {
			if d, err := store.Begin(t.Context(), someKey(name)); err != nil {
				t.Fatal(err)
			} else if _, replayed := d.(engine.Replay); !replayed {
				t.Fatalf("under settings %d it is %T", i, d)
			}
		}
		all := set.All()
		err := act(all[0], t.Context(), someKey(name).Key, idempotency.Seen{})
		all[0].Leave()
		if err != nil || len(all) != 1 {
			t.Fatalf("with %d stores: %v", len(all), err)
		}
		kept(begin(t, opened[1], name)) // and is no replay
	}
}

// Whoever waits for a store to be opened, or to be closed before, reads what for.
func TestSlowOpeningIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, said := observer.New(zap.WarnLevel)
		m := &countedModule{key: t.Name(), opens: make(chan struct{}), closes: make(chan struct{})}
		h := m.handleOf(1, zap.New(core))
		opens := func(opened chan<- *Store) { opened <- mustOpen(t, h) }
		wait := func(text string) {
			t.Helper()
			time.Sleep(m.OperationTimeout() - time.Millisecond)
			if said.Len() > 0 {
				t.Errorf("too early: %v", said.TakeAll())
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			lines := said.TakeAll()
			if len(lines) != 1 || !strings.Contains(lines[0].Message, text) || lines[0].ContextMap()["store"] != m.Describe() {
				t.Errorf("got %v; want one line that it is %s", lines, text)
			}
		}
		opened := make(chan *Store)
		go opens(opened)
		wait("still being opened")
		close(m.opens)
		(<-opened).Leave()
		synctest.Wait() // it is being closed
		go opens(opened)
		wait("still being closed")
		close(m.closes)
		(<-opened).Leave()
		time.Sleep(time.Hour)
		if said.Len() > 0 {
			t.Errorf("there is more: %v", said.All())
		}
	})
}
