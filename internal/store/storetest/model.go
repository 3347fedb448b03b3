package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

var modelTests = []subtest{
	{"random operations agree with the model", agreesWithModel},
}

// model is the simplest store that keeps the contract: two maps, and a clock that only
// the test moves.
type model struct {
	now       time.Time
	records   map[idempotency.Key]*idempotency.Record
	responses map[string]keptResponse
}

type keptResponse struct {
	response *idempotency.Response
	until    time.Time
}

func responseName(k idempotency.Key, token string) string { return string(k[:]) + token }

func (m *model) lookup(k idempotency.Key) *idempotency.Record {
	if r := m.records[k]; r != nil && m.now.Before(r.Expires) {
		return r
	}
	return nil
}

func (m *model) response(k idempotency.Key, token string) *idempotency.Response {
	if kept := m.responses[responseName(k, token)]; m.now.Before(kept.until) {
		return kept.response
	}
	return nil
}

func (m *model) claim(c idempotency.Claim) idempotency.Claimed {
	found := m.lookup(c.Key)
	claimed := idempotency.Claimed{Verdict: idempotency.Decide(found, c, m.now), Record: found}
	switch claimed.Verdict {
	case idempotency.Proceed:
		claimed.Previous = found
		claimed.Record = c.Record(found, m.now)
		m.records[c.Key] = claimed.Record
	case idempotency.ReplayKept:
		claimed.Response = m.response(c.Key, found.Token)
	}
	return claimed
}

func (m *model) renew(c idempotency.Claim) error {
	found := m.lookup(c.Key)
	if open, err := found.Owned(c.Token, c.Follows); !open {
		return err
	}
	next := *found
	next.LeaseUntil, next.Expires = m.now.Add(c.Lease), m.now.Add(c.Life())
	m.records[c.Key] = &next
	return nil
}

func (m *model) settle(k idempotency.Key, token string, s idempotency.Settlement) error {
	found := m.lookup(k)
	// No claim is lost here, so it makes no difference which record it follows.
	if open, err := found.Owned(token, ""); !open {
		return err
	}
	m.records[k] = found.Settled(s, m.now)
	if s.Response != nil {
		m.responses[responseName(k, token)] = keptResponse{s.Response, m.now.Add(s.ResponseFor())}
	}
	return nil
}

func (m *model) free(k idempotency.Key, token string) error {
	freed, err := m.lookup(k).Freed(token, m.now)
	if err == nil {
		m.records[k] = freed
	}
	return err
}

func (m *model) forget(k idempotency.Key) error {
	if err := m.lookup(k).MayBeTaken(m.now); err != nil {
		return err
	}
	delete(m.records, k)
	for name := range m.responses {
		if name[:len(k)] == string(k[:]) {
			delete(m.responses, name)
		}
	}
	return nil
}

// The durations of the random operations. Time moves by multiples of modelStep, and
// leases and retentions end between two such multiples. So it makes no difference
// that the clock of the store also moves a little by itself.
const (
	modelStep  = 25 * time.Minute
	modelLease = 60 * time.Minute
	modelLife  = 310 * time.Minute
)

func agreesWithModel(f *fixture) {
	w := &walk{
		fixture: f,
		random:  rand.New(rand.NewPCG(3, 14)),
		started: f.now(),
		owners:  make(map[idempotency.Key][]owner),
		model: model{
			records:   make(map[idempotency.Key]*idempotency.Record),
			responses: make(map[string]keptResponse),
		},
	}
	for i := range 1500 {
		w.step = i
		w.model.now = w.started.Add(w.moved)
		w.operate()
	}
}

// walk makes random operations on a store, and the same ones on the model.
type walk struct {
	*fixture
	model   model
	random  *rand.Rand
	started time.Time
	moved   time.Duration
	step    int
	// owners are the last claims that proceeded, the newest last.
	owners map[idempotency.Key][]owner
}

type owner struct {
	claim  idempotency.Claim
	record *idempotency.Record
}

func (w *walk) operate() {
	k := key(fmt.Sprint("key ", w.random.IntN(5)))
	switch op := w.random.IntN(20); {
	case op < 7:
		w.tryClaim(k)
	case op < 9:
		w.tryRenew(k)
	case op < 14:
		w.trySettle(k)
	case op < 15:
		w.tryOperator(k)
	case op < 17 && w.options.Advance != nil:
		d := time.Duration(1+w.random.IntN(4)) * modelStep
		w.options.Advance(d)
		w.moved += d
		w.model.now = w.started.Add(w.moved)
	}
	record, _, err := w.peer.Lookup(w.ctx, k)
	if err != nil {
		w.Fatalf("step %d: lookup: %v", w.step, err)
	}
	w.agree("lookup", record, w.model.lookup(k))
	for _, o := range w.owners[k] {
		w.sameResponse(fmt.Sprintf("step %d: response of %s", w.step, o.claim.Token),
			w.fixture.response(k, o.claim.Token), w.model.response(k, o.claim.Token))
	}
}

// tryOperator frees or forgets a key.
func (w *walk) tryOperator(k idempotency.Key) {
	if w.random.IntN(2) == 0 {
		w.sameError("forget", w.store.Forget(w.ctx, k), w.model.forget(k))
		if w.model.lookup(k) == nil {
			w.owners[k] = nil // responses of earlier runs may stay or go, so they are not compared
		}
		return
	}
	token := fmt.Sprintf("operator-%d", w.step)
	_, err := w.store.Free(w.ctx, k, token)
	w.sameError("free", err, w.model.free(k, token))
	if err == nil {
		w.owners[k] = nil
	}
}

func (w *walk) tryClaim(k idempotency.Key) {
	c := w.newClaim(k)
	c.Lease, c.Retention = modelLease, modelLife
	c.Hold = w.random.IntN(6) == 0
	c.Fingerprints = [...][]string{nil, {"body:1"}, {"body:1"}, {"body:2"}}[w.random.IntN(4)]
	if o := w.anyOwner(k); o != nil {
		switch w.random.IntN(5) {
		case 0:
			c.Proof = idempotency.Proof(k, o.claim.Token)
		case 1:
			// The same token means the same claim, so nothing else in it may differ.
			if found := w.model.lookup(k); found != nil && found.State == idempotency.InFlight && found.Token == o.claim.Token {
				c = o.claim
			}
		}
	}
	got, err := w.store.Claim(w.ctx, c)
	if err != nil {
		w.Fatalf("step %d: claim: %v", w.step, err)
	}
	want := w.model.claim(c)
	if got.Verdict != want.Verdict {
		w.Fatalf("step %d: verdict %v, want %v", w.step, got.Verdict, want.Verdict)
	}
	w.agree("claim", got.Record, want.Record)
	w.agree("previous", got.Previous, want.Previous)
	w.sameResponse(fmt.Sprintf("step %d: replay", w.step), got.Response, want.Response)
	if got.Verdict == idempotency.Proceed {
		owners := append(w.owners[k], owner{c, got.Record})
		w.owners[k] = owners[max(0, len(owners)-4):]
	}
}

func (w *walk) tryRenew(k idempotency.Key) {
	if o := w.anyOwner(k); o != nil {
		w.sameError("renew", w.store.Renew(w.ctx, o.claim), w.model.renew(o.claim))
	}
}

func (w *walk) trySettle(k idempotency.Key) {
	o := w.anyOwner(k)
	if o == nil {
		return
	}
	s := idempotency.Settlement{
		State:     [...]idempotency.State{idempotency.Complete, idempotency.Released, idempotency.Released, idempotency.Held}[w.random.IntN(4)],
		Retention: modelLife, AnswerFor: modelLease,
	}
	s.Counted = s.State != idempotency.Released || w.random.IntN(2) == 0
	if s.State == idempotency.Complete || w.random.IntN(2) == 0 {
		s.Response = answer(200+w.step%100, fmt.Sprint("step ", w.step))
	}
	w.sameError("settle", w.store.Settle(w.ctx, k, o.record, s), w.model.settle(k, o.claim.Token, s))
}

// anyOwner returns a claim that has proceeded, mostly the newest one.
func (w *walk) anyOwner(k idempotency.Key) *owner {
	owners := w.owners[k]
	if len(owners) == 0 {
		return nil
	}
	n := len(owners) - 1
	if w.random.IntN(3) == 0 {
		n = w.random.IntN(len(owners))
	}
	return &owners[n]
}

func (w *walk) sameError(what string, got, want error) {
	w.Helper()
	if !errors.Is(got, want) {
		w.Fatalf("step %d: %s: %v, want %v", w.step, what, got, want)
	}
}

// agree compares a record of the store with that of the model. The clock of the model
// stands still between two operations, and that of the store need not. So times may
// differ, but not by more than a part of a step.
func (w *walk) agree(what string, got, want *idempotency.Record) {
	w.Helper()
	what = fmt.Sprintf("step %d: %s", w.step, what)
	if got != nil && want != nil {
		for _, at := range [][2]time.Time{{got.LeaseUntil, want.LeaseUntil}, {got.Expires, want.Expires}} {
			if at[0].IsZero() != at[1].IsZero() || at[0].Sub(at[1]).Abs() > modelStep/5 {
				w.Fatalf("%s: ends at %v, want %v", what, at[0], at[1])
			}
		}
		same := *got
		same.Claimed, same.Ended, same.LeaseUntil, same.Expires = want.Claimed, want.Ended, want.LeaseUntil, want.Expires
		got = &same
	}
	w.sameRecord(what, got, want)
}
