package redis

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// smallResponse is the maximum size, in bytes as stored, of a response in the value of its
	// record. A larger one would pass through Lua there, which is far slower.
	smallResponse = 8 << 10
	// unsettledLife is the expiry of a body that was written before the script settles the run.
	unsettledLife = time.Minute
	// responseMargin is how much longer than its record a response beside it lives, so that the
	// record never lacks it.
	responseMargin = time.Second
)

// Renew implements [idempotency.Store].
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	keys, revision := []string{s.names.record(c.Key)}, newRevision()
	var answer reply
	run := func(by *script) error {
		return try(ctx, func() (err error) {
			answer, err = s.runScript(ctx, by, keys, c.Token, toMillis(c.Lease), toMillis(c.Life()), c.PrevToken, revision[:])
			return err
		})
	}
	err := run(renewScript)
	if hasCode(err, "OOM") {
		if again := run(renewFullScript); again == nil || !answered(again) {
			err = again
		}
	}
	if err == nil {
		err = answer.err(keys[0])
	}
	return s.fail("renew", err)
}

// Settle implements [idempotency.Store]. It takes one round trip, and a second one for a large response
// that waits for replicas. A large response is not limited by the timeout, but by the time in which
// nothing moves ([moveBody]). Once the server has its body, only the script is repeated.
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if settlement.State == idempotency.Complete && settlement.Response == nil {
		return errors.New("settle: a complete record needs its response")
	}
	step, cancel := s.withTimeout(ctx)
	defer cancel()
	call, err := s.newSettleCall(key, claimed, settlement)
	if err != nil {
		return s.fail("settle", err)
	}
	node, err := s.nodeOf(step, call.keys[0])
	if err != nil {
		return s.fail("settle", err)
	}
	to := target{node: node}
	replicated := s.limits.replicas() > 0 && settlement.State == idempotency.Complete
	if replicated {
		to.waits = s.enoughReplicas(step, node)
	}
	answers := func() int64 { return s.pipes.to(target{node: node}).answers.Load() }
	before := answers()
	var answer reply
	settled := false
	if call.body != nil && !call.written {
		answer, settled, err = call.runWithBody(ctx, to)
		if err != nil && !settled {
			return s.fail("settle", s.bodies.countFailure(claimed.Token, len(call.body), before, answers(), err))
		}
		step, cancel = s.withTimeout(ctx)
		defer cancel()
	}
	if !settled {
		answer, err = call.tryScript(step, to)
	}
	switch {
	case call.body == nil:
	case hasCode(err, "TRYAGAIN"), s.isRedirect(err), err != nil && !answered(err):
		s.bodies.keepWritten(claimed.Token, failedBody{answers: answers(), name: call.keys[2], head: bytes.Clone(call.head), size: len(call.body), expiry: call.expiry})
	default:
		s.bodies.forget(claimed.Token)
	}
	if err == nil {
		err = answer.err(call.keys[0])
	}
	if err != nil {
		return s.fail("settle", err)
	}
	if answer.word == replySettled {
		answer.replicas = -1 // an earlier attempt has settled it, over another connection
	}
	if replicated {
		s.checkReplicated(step, to, answer.replicas, key, claimed)
	}
	return nil
}

// settleCall is one call of Settle.
type settleCall struct {
	store *Store
	keys  []string
	args  []any // of settle.lua
	// value is the value to write, and life its expiry. If a forced run keeps nothing, the value of
	// the record before it has its expiry already, and life is 0.
	value []byte
	life  time.Duration
	// claimed is the value that the claim has written, if the server can compare it; nil if a script must
	// settle the run.
	claimed []byte
	// body is written beside the record before the script runs: the body of a complete record's
	// response, or the complete answer of a released run; nil for none. head is the head of that response
	// in the value. written reports whether the server has the body under its temporary name, until expiry.
	body, head []byte
	written    bool
	expiry     time.Time
}

func (s *Store) newSettleCall(key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) (*settleCall, error) {
	c := &settleCall{store: s, life: settlement.Retention}
	settled := claimed.Settled(settlement, processTime())
	value, err := encodeValue(valueBuffer(), key, settled, responseSizeHint(settlement))
	if err != nil {
		return nil, err
	}
	var answer []byte // beside the record, if it is small
	besideLife, at := settlement.ResponseRetention(), len(value)
	switch response := settlement.Response; {
	case response == nil || besideLife <= 0:
	case settlement.State != idempotency.Complete:
		// The answer is for the requests that waited. It is not in the value, which the next
		// claim replaces.
		answer = idempotency.AppendResponse(nil, key, claimed.Token, response)
		if len(answer) > smallResponse {
			c.body, answer = answer, nil
		}
	default:
		if value, c.body = appendKept(value, key, claimed.Token, response); c.body != nil {
			besideLife += responseMargin
		}
	}
	var name string // the temporary one of the body
	if c.body != nil {
		name = s.names.unsettled(key, claimed.Token, settlement.Response)
		if before := s.bodies.written(claimed.Token, len(c.body)); before != nil {
			value = append(value[:at], before.head...)
			c.written, name, c.expiry = true, before.name, before.expiry
		}
		c.head = value[at:]
	}
	c.value = value
	expiry := toMillis(c.life)
	// The arguments of settle.lua from the third on; nil for none.
	var previous, responseLife, response, withdrawnLife, copies, left any
	if settled.Token != claimed.Token { // a forced run keeps nothing, so the record before it counts again
		c.life, expiry = 0, settled.Expires.UnixMilli()
		putDigits(value[atExpiry:atToken], expiry)
		left = claimed.Token
	}
	if claimed.PrevToken != "" {
		previous = claimed.PrevToken
	}
	c.keys = append(c.keys, s.names.record(key))
	if answer != nil || c.body != nil {
		c.keys = append(c.keys, s.names.response(key, claimed.Token))
		responseLife = toMillis(besideLife)
	}
	if c.body != nil {
		c.keys = append(c.keys, name)
	}
	if answer != nil {
		response = answer
	}
	if settlement.Withdraws && left == nil {
		withdrawnLife = toMillis(settlement.AnswerRetention)
	}
	if claimed.Previous != nil && left == nil {
		copies = s.names.copies()
	}
	more := [...]any{previous, responseLife, response, withdrawnLife, copies, left}
	last := len(more) // arguments after the last one that is set are omitted
	for last > 0 && more[last-1] == nil {
		last--
	}
	if len(c.keys) == 1 && last == 0 && s.dialer.comparesValues.Load() {
		if c.claimed, err = claimedValue(key, claimed); err != nil {
			return nil, err
		}
	}
	c.args = append(c.args, c.value, expiry)
	for _, arg := range more[:last] {
		c.args = append(c.args, cmp.Or(arg, any("")))
	}
	return c, nil
}

// claimedValue returns the value that a claim of a key without a record has written.
func claimedValue(key idempotency.Key, claimed *idempotency.Record) ([]byte, error) {
	value, err := encodeValue(nil, key, claimed, 0)
	if err != nil {
		return nil, err
	}
	copy(value[atRevision:atLease], claimRevision)
	putDigits(value[atLease:atExpiry], claimed.LeaseUntil.UnixMilli())
	putDigits(value[atExpiry:atToken], claimed.Expires.UnixMilli())
	return value, nil
}

// responseSizeHint estimates the maximum of what appendKept appends, in bytes.
func responseSizeHint(s idempotency.Settlement) int {
	const head = 512
	if s.State != idempotency.Complete || len(s.Response.Body) > smallResponse {
		return head
	}
	return head + len(s.Response.Body)
}

// appendKept appends the response of a complete record to its value. Of a response with a large body it
// appends only the head; it returns the body, not copied, to be written beside the record.
func appendKept(value []byte, key idempotency.Key, token string, r *idempotency.Response) (_, body []byte) {
	at := len(value)
	if len(r.Body) <= smallResponse {
		value = idempotency.AppendResponse(append(value, responseInside), key, token, r)
		if len(value)-at <= 1+smallResponse || len(r.Body) == 0 {
			return value, nil
		}
	}
	return idempotency.AppendResponseHead(append(value[:at], responseBeside), key, token, r), r.Body
}

// prepare gives a request that runs the script its value.
func (c *settleCall) prepare(sent *request) { sent.value, sent.life = c.value, c.life }

// tryScript is runScript with retries.
func (c *settleCall) tryScript(ctx context.Context, to target) (answer reply, err error) {
	attempts := 0
	err = try(ctx, func() (err error) {
		attempts++
		answer, err = c.runScript(ctx, to)
		return err
	})
	if err == nil && attempts == 1 {
		reuse(c.value)
	}
	return answer, err
}

// runScript makes one attempt to settle.
func (c *settleCall) runScript(ctx context.Context, to target) (reply, error) {
	if c.claimed != nil {
		sent := newRequest(ctx, "set", c.keys[0], c.value, "ifeq", c.claimed, "px", toMillis(c.life))
		c.claimed = nil // Only the first attempt uses IFEQ. The script can tell whether it has settled the run.
		c.prepare(sent)
		if err := c.store.pipes.to(to).send(ctx, sent); err == nil || !answered(err) {
			return reply{word: replyOK, replicas: sent.replicas}, err
		}
		// The value is another one, because the lease was renewed or others wait for the run, or the
		// server refuses the command.
	}
	return c.store.runScriptAt(ctx, to, settleScript, c.keys, c.prepare, c.args...)
}

// runWithBody writes a large body beside the record, and runs the script in the same flush; the script
// renames or removes the body. settled is false if only the body is written: then the script must still
// be sent, by its text, to another node, or in a flush that waits for replicas. Otherwise
// an error is that of the script.
func (c *settleCall) runWithBody(ctx context.Context, to target) (answer reply, settled bool, err error) {
	s := c.store
	c.expiry = time.Now().Add(unsettledLife)
	defer func() {
		if err != nil {
			err = readError(c.keys[0], err)
		}
	}()
	if to.waits {
		// A separate flush would occupy a connection while it waits. The script has a later
		// offset in the replication stream, so its WAIT covers the body as well.
		return reply{}, false, s.setBody(ctx, redirect{}, c.keys[2], c.body)
	}
	n := s.bodies.node(to.node.Options().Addr)
	settle, err := moveBody(ctx, s, n, n.writes, len(c.body), func() (*request, error) {
		body := newRequest(ctx, "set", c.keys[2], c.body, "px", unsettledLife.Milliseconds())
		settle := newScriptRequest(ctx, settleScript, false, c.keys, c.args...)
		c.prepare(settle)
		p := s.pipes.to(target{node: n.client})
		if err := p.connect(ctx); err != nil {
			return nil, err
		}
		p.flush(ctx, body, settle)
		return settle, body.Err()
	})
	next := s.redirected(err)
	switch {
	case next.to != nil:
		return reply{}, false, s.setBody(ctx, next, c.keys[2], c.body)
	case err != nil:
		return reply{}, false, err
	case hasCode(settle.Err(), "NOSCRIPT"), hasCode(settle.Err(), "TRYAGAIN"), s.isRedirect(settle.Err()), connectionFailed(settle.Err()):
		return reply{}, false, nil // only the script is sent again
	}
	answer, err = readReply(c.keys[0], settle) // an error has removed the body
	return answer, true, err
}
