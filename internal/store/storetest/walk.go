package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The durations of the random operations, in units of a walk. Time moves by multiples of modelStep, and
// leases and retentions end between two multiples. So it does not matter that the clock of the store
// also moves a little between the steps.
const (
	modelStep  = 25
	modelLease = 60
	modelLife  = 310
)

func agreesWithModel(f *fixture) {
	started, moved := f.now(), time.Duration(0)
	w := NewWalk("", 3, 5, 0)
	w.clock = func() time.Time { return started.Add(moved) }
	if f.options.Bubble {
		w.unit = time.Second // a store has work to do in each minute
	}
	for range 1500 {
		if f.options.Bubble && w.random.IntN(10) == 0 {
			d := time.Duration(1+w.random.IntN(4)) * modelStep * w.unit
			time.Sleep(d)
			moved += d
		}
		k := w.anyKey()
		err := w.operate(f.ctx, f.store, k)
		if err == nil {
			err = w.compare(f.ctx, f.peer, k)
		}
		if err != nil {
			f.Fatalf("step %d: %v", w.step, err)
		}
	}
}

// Walk makes random operations on its own keys, makes the same operations on a model, and compares the
// results. A Walk is one caller; several can share a store.
type Walk struct {
	model  model
	random *rand.Rand
	clock  func() time.Time
	unit   time.Duration
	keys   []idempotency.Key
	name   string
	body   int // maximum size of a body, in addition to a few bytes
	step   int
	// owners has the last claims of each key that proceeded, the newest last.
	owners map[idempotency.Key][]owner
	doubt  *doubt
}

type owner struct {
	claim  idempotency.Claim
	record *idempotency.Record
}

// doubt is an operation without an answer.
type doubt struct {
	key   idempotency.Key
	apply func() // applies it to the model
}

// Crashed must be called after the process of the store was killed, before [Walk.Check].
func (w *Walk) Crashed() {
	w.model.now = w.clock()
	before := w.model.clone()
	w.model.crash()
	if doubt := w.doubt; doubt != nil {
		apply := doubt.apply
		doubt.apply = func() { // if the store has executed it, that was before the crash
			w.model = before
			apply()
			w.model.crash()
		}
	}
}

// NewWalk returns a walk over so many keys. The name distinguishes its keys from those of other walks. body
// is the maximum size of a response's body, in addition to a few bytes.
func NewWalk(name string, seed uint64, keys, body int) *Walk {
	w := &Walk{
		random: rand.New(rand.NewPCG(seed, 14)), clock: time.Now, unit: time.Minute, name: name, body: body,
		owners: make(map[idempotency.Key][]owner), model: newModel(),
	}
	for i := range keys {
		w.keys = append(w.keys, key(fmt.Sprintf("%s key %d", w.name, i)))
	}
	return w
}

// Operate makes one operation. After an error of the store, which the returned one wraps, it is unknown whether the
// store has executed the operation, until [Walk.Check] finds out. Any other error says how the store contradicts the
// model.
func (w *Walk) Operate(ctx context.Context, store idempotency.Store) error {
	k := w.anyKey()
	if err := w.operate(ctx, store, k); err != nil {
		return err
	}
	return w.compare(ctx, store, k)
}

// Check compares the walk's keys in the store with the model. An operation without an answer may have been
// executed or not. The error says how the store contradicts the model.
func (w *Walk) Check(ctx context.Context, store idempotency.Store) error {
	w.model.now = w.clock()
	doubt := w.doubt
	w.doubt = nil
	for _, k := range w.keys {
		err := w.compare(ctx, store, k)
		if err != nil && doubt != nil && doubt.key == k {
			doubt.apply()
			if again := w.compare(ctx, store, k); again == nil {
				err = nil
			} else {
				err = fmt.Errorf("without the operation that was not answered: %w; and with it: %w", err, again)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Walk) anyKey() idempotency.Key { return w.keys[w.random.IntN(len(w.keys))] }

func (w *Walk) operate(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	w.step++
	w.model.now = w.clock()
	switch op := w.random.IntN(18); {
	case op < 7:
		return w.tryClaim(ctx, store, k)
	case op < 9:
		return w.tryRenew(ctx, store, k)
	case op < 14:
		return w.trySettle(ctx, store, k)
	case op < 15:
		return w.tryOperator(ctx, store, k)
	default:
		return nil // the key is only compared
	}
}

// compare compares the record and the responses of a key with the model.
func (w *Walk) compare(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	record, _, err := store.Lookup(ctx, k)
	if err != nil {
		return err
	}
	if err := w.agree("lookup", record, w.model.lookup(k)); err != nil {
		return err
	}
	for _, o := range w.owners[k] {
		response, err := store.Response(ctx, k, o.claim.Token)
		if err != nil {
			return err
		}
		if d := responseDifference(response, w.model.response(k, o.claim.Token)); d != "" {
			return fmt.Errorf("response of %s: %s", o.claim.Token, d)
		}
	}
	return nil
}

// checkResult compares the error of an operation with that of the model.
func (w *Walk) checkResult(what string, k idempotency.Key, got error, apply func() error) error {
	_, changed := errors.AsType[idempotency.ChangedError](got)
	if got != nil && !errors.Is(got, idempotency.ErrGone) && !errors.Is(got, idempotency.ErrFenced) &&
		!errors.Is(got, idempotency.ErrInFlight) && !errors.Is(got, idempotency.ErrComplete) && !changed {
		w.doubt = &doubt{k, func() { _ = apply() }}
		return fmt.Errorf("%s: %w", what, got)
	}
	if want := apply(); !errors.Is(got, want) {
		return fmt.Errorf("%s: %w, want %w", what, got, want)
	}
	return nil
}

// tryOperator changes or forgets a key. A store may keep or remove responses of earlier runs then, so they
// are not compared.
func (w *Walk) tryOperator(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	pre := w.anyPrecondition(k)
	if w.random.IntN(2) == 0 {
		return w.checkResult("forget", k, store.Forget(ctx, k, pre), func() error {
			err := w.model.forget(k, pre)
			if w.model.lookup(k) == nil {
				w.owners[k] = nil
			}
			return err
		})
	}
	c := releasing
	if w.random.IntN(2) == 0 {
		c = completing(fmt.Sprintf("step %d %0*d", w.step, w.random.IntN(w.body+1), w.random.Uint32()))
	}
	c.Token, c.Precondition = fmt.Sprintf("operator-%s-%d", w.name, w.step), pre
	_, err := store.Change(ctx, k, c)
	return w.checkResult("change", k, err, func() error {
		err := w.model.change(k, c)
		if err == nil {
			w.owners[k] = nil
		}
		return err
	})
}

// anyPrecondition returns the precondition of a key as it is, another one, or none.
func (w *Walk) anyPrecondition(k idempotency.Key) idempotency.Precondition {
	found := w.model.lookup(k)
	if found == nil || w.random.IntN(2) == 0 {
		return idempotency.Precondition{}
	}
	pre := idempotency.PreconditionOf(found, w.model.now)
	switch w.random.IntN(6) {
	case 0:
		pre.ExecutionID += " before"
	case 1:
		pre.State = idempotency.Unreadable
	}
	return pre
}

func (w *Walk) tryClaim(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	c := w.newClaim(k)
	got, err := store.Claim(ctx, c)
	var want idempotency.Claimed
	apply := func() error {
		if want = w.model.claim(c); want.Verdict == idempotency.Proceed {
			owners := append(w.owners[k], owner{c, want.Record})
			w.owners[k] = owners[max(0, len(owners)-4):]
		}
		return nil
	}
	if err := w.checkResult("claim", k, err, apply); err != nil {
		return err
	}
	if got.Verdict != want.Verdict {
		return fmt.Errorf("claim: verdict %v, want %v", got.Verdict, want.Verdict)
	}
	if d := responseDifference(got.Response, want.Response); d != "" {
		return fmt.Errorf("claim: replay: %s", d)
	}
	return errors.Join(w.agree("claim", got.Record, want.Record), w.agree("claim: previous", got.Previous, want.Previous))
}

// newClaim returns the claim of a new request, of a request within an earlier run, or an earlier claim.
func (w *Walk) newClaim(k idempotency.Key) idempotency.Claim {
	c := idempotency.Claim{
		Key: k, Token: fmt.Sprintf("token-%s-%d", w.name, w.step), ExecutionID: fmt.Sprintf("execution-%s-%d", w.name, w.step),
		Origin: idempotency.Origin{Provider: "github", DeliveryID: "delivery \"é\" 1"},
		Terms:  idempotency.Terms{Lease: modelLease * w.unit, Retention: modelLife * w.unit, Hold: w.random.IntN(6) == 0},
	}
	if w.random.IntN(6) == 0 {
		c.MaxAttempts = 1 + w.random.IntN(3)
	}
	c.Fingerprints = [...][]string{nil, {"body:1"}, {"body:1"}, {"body:2"}}[w.random.IntN(4)]
	if o := w.anyOwner(k); o != nil {
		switch w.random.IntN(5) {
		case 0:
			c.Within = o.claim.ExecutionID
		case 1:
			// The same token means the same claim, so nothing else in it may differ.
			if found := w.model.lookup(k); found != nil && found.State == idempotency.InFlight && found.Token == o.claim.Token {
				c = o.claim
			}
		}
	}
	return c
}

func (w *Walk) tryRenew(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	o := w.anyOwner(k)
	if o == nil {
		return nil
	}
	return w.checkResult("renew", k, store.Renew(ctx, o.claim), func() error { return w.model.renew(o.claim) })
}

func (w *Walk) trySettle(ctx context.Context, store idempotency.Store, k idempotency.Key) error {
	o := w.anyOwner(k)
	if o == nil {
		return nil
	}
	s := idempotency.Settlement{
		State:     [...]idempotency.State{idempotency.Complete, idempotency.Released, idempotency.Released, idempotency.Held}[w.random.IntN(4)],
		Retention: modelLife * w.unit, AnswerRetention: modelLease * w.unit,
	}
	s.Counted = s.State != idempotency.Released || w.random.IntN(2) == 0
	if s.State == idempotency.Complete || w.random.IntN(2) == 0 {
		s.Response = answer(200+w.step%100, fmt.Sprintf("step %d %0*d", w.step, w.random.IntN(w.body+1), w.random.Uint32()))
	}
	return w.checkResult("settle", k, store.Settle(ctx, k, o.record, s), func() error { return w.model.settle(k, o.record, s) })
}

// anyOwner returns a claim that has proceeded, usually the newest.
func (w *Walk) anyOwner(k idempotency.Key) *owner {
	owners := w.owners[k]
	if len(owners) == 0 {
		return nil
	}
	n := len(owners) - 1
	if w.random.IntN(3) == 0 {
		n = w.random.IntN(len(owners))
	}
	o := owners[n]
	return &o
}

// agree compares a record of the store with that of the model. The clock of the model stops during an
// operation, but that of the store may not, so times may differ by a part of a step.
func (w *Walk) agree(what string, got, want *idempotency.Record) error {
	if got != nil && want != nil {
		for _, at := range [][2]time.Time{{got.LeaseUntil, want.LeaseUntil}, {got.Expires, want.Expires}} {
			if at[0].IsZero() != at[1].IsZero() || at[0].Sub(at[1]).Abs() > modelStep*w.unit/5 {
				return fmt.Errorf("%s: ends at %v, want %v", what, at[0], at[1])
			}
		}
		same := *got
		same.Claimed, same.Ended, same.LeaseUntil, same.Expires = want.Claimed, want.Ended, want.LeaseUntil, want.Expires
		got = &same
	}
	if d := recordDifference(got, want); d != "" {
		return fmt.Errorf("%s: %s", what, d)
	}
	return nil
}
