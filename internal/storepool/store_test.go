package storepool

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Namespaces has those of all configurations that have used the store, including stopped ones.
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
	run := startRun(t, store, "k")
	for i, h := range handles {
		h.Stop()
		isOpen := false
		for _, o := range pool.All() {
			isOpen = isOpen || o == store
			if got := o.Namespaces(); o == store && !slices.Equal(got, []string{"old", "new"}) {
				t.Errorf("without %d of the configurations the namespaces are %q", i+1, got)
			}
			if inUse := i+1 < len(handles); o == store && o.InUse() != inUse {
				t.Errorf("without %d of the configurations it is in use: %v", i+1, !inUse)
			}
			o.Leave()
		}
		if !isOpen {
			t.Errorf("without %d of the configurations it is closed, with a run in flight", i+1)
		}
	}
	kept(run)
	<-store.closed
}

// The log says if a start waits for a store to be opened, or to be closed before.
func TestSlowOpeningIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		m := &countedModule{key: t.Name(), opens: make(chan struct{}), closes: make(chan struct{})}
		h := m.handleOf(1, zap.New(core))
		open := func(opened chan<- *Store) { opened <- started(t, h) }
		wait := func(text string) {
			t.Helper()
			time.Sleep(m.OperationTimeout() - time.Millisecond)
			if logs.Len() > 0 {
				t.Errorf("too early: %v", logs.TakeAll())
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			lines := logs.TakeAll()
			if len(lines) != 1 || !strings.Contains(lines[0].Message, text) || lines[0].ContextMap()["store"] != m.Describe() {
				t.Errorf("got %v; want one line that it is %s", lines, text)
			}
		}
		opened := make(chan *Store)
		go open(opened)
		wait("still being opened")
		close(m.opens)
		<-opened
		h.Stop()
		synctest.Wait() // it is being closed
		go open(opened)
		wait("still being closed")
		close(m.closes)
		<-opened
		h.Stop()
		time.Sleep(time.Hour)
		if logs.Len() > 0 {
			t.Errorf("unexpected log entries: %v", logs.All())
		}
	})
}
