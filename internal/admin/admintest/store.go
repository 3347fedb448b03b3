// Package admintest has stores for the tests of what operators see: the admin API, the page and
// the commands.
package admintest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// answer is an error of a server, which writes sentences.
type answer string

func (a answer) Error() string { return string(a) }

// ErrAway is what a store that is away says.
var ErrAway error = answer("the <store> is away.")

// damage is why a record cannot be read.
var damage = &idempotency.UnreadableError{Where: "record", Err: errors.New("it is <damaged>")}

// ErrUnready is why a store is not ready that can be read.
var ErrUnready = errors.New("its disk is full")

// Store is a memory store that is open as the admin API has it, with an engine of its own.
type Store struct {
	*engine.Engine
	Records idempotency.Store // what is in it, even while it is away
	Away    atomic.Bool
	Full    atomic.Bool // it refuses what an operator changes
	Unready atomic.Bool // it can be read, and is not ready
	Damaged map[idempotency.Key]bool
	Lost    bool          // of its responses, all
	Delay   time.Duration // of a list
	Unused  bool          // by a configuration

	name       string
	namespaces []string
	users      atomic.Int64
}

// Open opens a store of this name, whose keys are in these namespaces, until the test ends.
func Open(t testing.TB, name string, namespaces ...string) *Store {
	t.Helper()
	s := &Store{Records: memory.New(64 << 20), Damaged: make(map[idempotency.Key]bool), name: name, namespaces: namespaces}
	s.Engine = engine.New(asked{s.Records, s}, engine.Options{Timeout: time.Minute, Logger: zap.NewNop(), NewToken: rand.Text})
	t.Cleanup(func() {
		if n := s.users.Load(); n != 0 {
			t.Errorf("%s was entered %d times more than it was left", name, n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// As returns the same store under another name.
func (s *Store) As(name string) *Store {
	return &Store{Engine: s.Engine, Records: s.Records, Damaged: s.Damaged, name: name, namespaces: s.namespaces}
}

// What follows is what the admin API asks of a store.

func (s *Store) Key() string          { return s.name }
func (s *Store) Name() string         { return "store " + s.name }
func (s *Store) Namespaces() []string { return s.namespaces }
func (s *Store) InUse() bool          { return !s.Unused }
func (s *Store) Leave()               { s.users.Add(-1) }

// Enter begins a use of the store, which Leave ends.
func (s *Store) Enter() *Store {
	s.users.Add(1)
	return s
}

// Users is how often it was entered more than it was left.
func (s *Store) Users() int64 { return s.users.Load() }

// asked is what the engine asks.
type asked struct {
	idempotency.Store
	of *Store
}

func (a asked) check(key idempotency.Key) error {
	switch {
	case a.of.Away.Load():
		return ErrAway
	case a.of.Damaged[key]:
		return damage
	}
	return nil
}

func (a asked) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	if a.of.Lost {
		return nil, nil
	}
	return a.Store.Response(ctx, key, token)
}

func (a asked) Ready(ctx context.Context) error {
	if a.of.Unready.Load() {
		return ErrUnready
	}
	return errors.Join(a.check(idempotency.Key{}), a.Store.Ready(ctx))
}

func (a asked) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	if err := a.check(key); err != nil {
		return nil, time.Time{}, err
	}
	return a.Store.Lookup(ctx, key)
}

func (a asked) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	switch {
	case a.of.Away.Load():
		return nil, ErrAway
	case a.of.Full.Load():
		return nil, idempotency.ErrFull
	}
	return a.Store.Change(ctx, key, c)
}

func (a asked) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
	if a.of.Away.Load() {
		return ErrAway
	}
	if a.of.Damaged[key] && seen.State == idempotency.Unreadable {
		seen = idempotency.Precondition{}
	}
	return a.Store.Forget(ctx, key, seen)
}

func (a asked) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return a.listed(a.Store.List(ctx, cursor, limit))
}

func (a asked) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return a.listed(a.Store.Find(ctx, of, cursor, limit))
}

func (a asked) listed(page []idempotency.Listed, next string, err error) ([]idempotency.Listed, string, error) {
	time.Sleep(a.of.Delay)
	if a.of.Away.Load() {
		return nil, "", ErrAway
	}
	for i, l := range page {
		if a.of.Damaged[l.Key] {
			page[i] = idempotency.Listed{Key: l.Key, Unreadable: damage}
		}
	}
	return page, next, err
}

// Run is a run of which a store has the record: what was claimed, and how it ended.
type Run struct {
	Namespace, Provider, ID, Route, Path string // of the key and the request; the namespace is "default" if empty
	Parts, Scope                         []string
	Execution                            string            // its ID; one that names the delivery ID if empty
	State                                idempotency.State // "": it has not ended
	Status                               int               // of the response; a complete run has one, of 201
	Header                               map[string][]string
	Body, Reason                         string
	Lease                                time.Duration // an hour if 0
	Retention                            time.Duration // an hour if 0
	Hold                                 bool
}

// Put has the record of a run in the store.
func (s *Store) Put(t testing.TB, r Run) idempotency.Key {
	t.Helper()
	if r.State == idempotency.Complete && r.Status == 0 {
		r.Status, r.Body = 201, cmp.Or(r.Body, "kept")
	}
	key := idempotency.Identity{
		Namespace: cmp.Or(r.Namespace, "default"), Scope: []string{r.Route}, Prefix: r.Provider, ID: r.ID, Tuple: strings.Join(r.Parts, ":"),
	}.Key()
	plain := strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, r.ID)
	claimed, err := s.Records.Claim(context.Background(), idempotency.Claim{
		Key: key, Token: "secret-token", ExecutionID: cmp.Or(r.Execution, "execution of "+plain+r.Route),
		Origin: idempotency.Origin{Provider: r.Provider, DeliveryID: r.ID, Parts: r.Parts, Scope: r.Scope, Method: "POST", Host: "example.com", Path: r.Path},
		Terms:  idempotency.Terms{Lease: cmp.Or(r.Lease, time.Hour), Retention: cmp.Or(r.Retention, time.Hour), Hold: r.Hold},
	})
	if err != nil || claimed.Verdict != idempotency.Proceed {
		t.Fatalf("claim of %+v: %v, %v", r, claimed.Verdict, err)
	}
	if r.State == "" {
		return key
	}
	settlement := idempotency.Settlement{State: r.State, Counted: true, Retention: cmp.Or(r.Retention, time.Hour), Reason: r.Reason}
	if r.Status != 0 {
		settlement.Response = &idempotency.Response{Status: r.Status, Header: r.Header, Body: []byte(r.Body)}
	}
	if err := s.Records.Settle(context.Background(), key, claimed.Record, settlement); err != nil {
		t.Fatal(err)
	}
	return key
}

// State is the state of a key, "none" if there is no record.
func (s *Store) State(t testing.TB, key idempotency.Key) idempotency.State {
	t.Helper()
	record, _, err := s.Records.Lookup(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if record == nil {
		return "none"
	}
	return record.State
}
