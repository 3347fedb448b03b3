package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// smallResponse is the size, in bytes of its stored form, up to which the
	// response of a complete record lies in the record, and comes with it.
	// Larger ones would have to go through Lua, which is far slower.
	smallResponse = 8 << 10
	// unsettledLife is how long a response waits for the script that settles.
	unsettledLife = time.Minute
	// responseMargin lets the response of a complete record outlive it, so that
	// there is no moment in which only the record is left.
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
			answer, _, _, err = s.runScript(ctx, by, keys, nil, c.Token, toMillis(c.Lease), toMillis(c.Life()), c.Follows, revision[:])
			return err
		})
	}
	err := run(renewScript)
	if hasCode(err, "OOM") {
		if again := run(renewFullScript); again == nil || !answered(again) {
			err = again
		}
	}
	if err != nil {
		return s.fail("renew", err)
	}
	return answer.owned(keys[0])
}

// Settle implements [idempotency.Store]. It takes one round trip, and another one
// where it waits for replicas.
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if settlement.State == idempotency.Complete && settlement.Response == nil {
		return errors.New("settle: a complete record needs its response")
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call, err := newSettleCall(s, key, claimed, settlement)
	if err != nil {
		return s.fail("settle", err)
	}
	var answer reply
	var master executor
	err = try(ctx, func() (err error) {
		answer, master, err = call.run(ctx)
		return err
	})
	if err == nil && answer.word == replyNoResponse {
		err = errors.New("the response that was written just before is gone: the server evicts keys, or hung")
	}
	if err != nil {
		return s.fail("settle", err)
	}
	if err := answer.owned(call.keys[0]); err != nil {
		return err
	}
	if call.direct() {
		*call = settleCall{value: roomOf(call.value)}
		settleCalls.Put(call)
	}
	if s.replicas.wanted > 0 && settlement.State == idempotency.Complete {
		s.awaitReplicas(ctx, master, key, claimed)
	}
	return nil
}

// owned returns what the reply to a renewal or a settlement says about the claim.
func (r reply) owned(key string) error {
	switch r.word {
	case replyOK, replySettled:
		return nil
	case replyFenced:
		return idempotency.ErrFenced
	case replyAbsent:
		return idempotency.ErrGone
	default:
		return r.unexpectedReply(key)
	}
}

// settleCall is one call of Settle.
type settleCall struct {
	store *Store
	keys  []string
	// command is what is sent: settle.lua by its hash, with keys and args. Each of them is
	// a part of the room that the call has, and first is the command of the first attempt.
	command, args []any
	first         request
	commands      int // how many there were
	names         [3]string
	room          [3 + 3 + 8]any
	// value is what is written of the record, and life how long it lives. A value that
	// is left by a forced run has its expiry already, and no life.
	value  bytesArg
	life   time.Duration
	expiry int64 // the argument for either
	// body is what is put beside the record before the script runs, nil for nothing: the
	// body of a complete record, or the whole answer of a released run.
	body []byte
}

func newSettleCall(s *Store, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) (*settleCall, error) {
	c := settleCalls.Get().(*settleCall)
	c.store, c.life = s, settlement.Retention
	settled := claimed.Settled(settlement, processTime())
	value, err := encodeValue(c.value, key, settled, roomFor(settlement))
	if err != nil {
		return nil, err
	}
	var answer []byte // beside the record, and small
	besideLife := settlement.ResponseFor()
	switch response := settlement.Response; {
	case response == nil || besideLife <= 0:
	case settlement.State != idempotency.Complete:
		// The next claim replaces the value, and this is for those who have waited.
		answer = idempotency.AppendResponse(nil, key, claimed.Token, response)
		if len(answer) > smallResponse {
			c.body, answer = answer, nil
		}
	default:
		if value, c.body = appendKept(value, key, claimed.Token, response); c.body != nil {
			besideLife += responseMargin
		}
	}
	leaves := settled.Token != claimed.Token
	c.value, c.expiry = value, toMillis(c.life)
	var more [6]any // the arguments from the third on: see settle.lua
	if leaves {
		c.life, c.expiry = 0, settled.Expires.UnixMilli()
		putDigits(value[atExpiry:atToken], c.expiry)
		more[5] = claimed.Token
	}
	if claimed.Follows != "" {
		more[0] = claimed.Follows
	}
	c.keys = append(c.names[:0], s.names.record(key))
	if answer != nil || c.body != nil {
		c.keys = append(c.keys, s.names.response(key, claimed.Token))
		more[1] = toMillis(besideLife)
	}
	if c.body != nil {
		c.keys = append(c.keys, s.names.unsettled(key, claimed.Token, value[atRevision:atLease]))
	}
	if answer != nil {
		more[2] = answer
	}
	if settlement.Withdraws && !leaves {
		more[3] = toMillis(settlement.AnswerFor)
	}
	if claimed.Replaces != nil && !leaves {
		more[4] = s.names.copies()
	}
	c.compose(more[:])
	return c, nil
}

// compose makes the command. Of the arguments that the common way does not need, those
// after the last one that is set are left out.
func (c *settleCall) compose(more []any) {
	command := append(c.room[:0], "evalsha", settleScript.argument, len(c.keys))
	for _, key := range c.keys {
		command = append(command, key)
	}
	command = append(command, &c.value, &c.expiry)
	last := len(more)
	for last > 0 && more[last-1] == nil {
		last--
	}
	for _, arg := range more[:last] {
		if arg == nil {
			arg = ""
		}
		command = append(command, arg)
	}
	c.command, c.args = command, command[3+len(c.keys):]
}

// request returns the command for one attempt.
func (c *settleCall) request(ctx context.Context, byText bool) *request {
	to := &c.first
	c.commands++
	switch {
	case byText:
		to = newScript(ctx, settleScript, true, c.keys, c.args...)
	case c.commands > 1:
		to = newRequest(ctx, c.command...)
	default:
		to.begin(ctx, c.command)
	}
	to.SetFirstKeyPos(firstKey)
	to.value, to.life = c.value, c.life
	return to
}

// settleCalls are zero but for the room of a value.
var settleCalls = sync.Pool{New: func() any { return new(settleCall) }}

// direct reports whether the first command was all, and it was executed. Nobody else has
// the call then: a flush that is late still has what it sends.
func (c *settleCall) direct() bool { return c.commands == 1 && c.body == nil }

// roomFor is how many bytes appendKept appends at most, or a little less.
func roomFor(s idempotency.Settlement) int {
	const head = 512
	if s.State != idempotency.Complete || len(s.Response.Body) > smallResponse {
		return head
	}
	return head + len(s.Response.Body)
}

// appendKept appends the response of a complete record to its value. Of a large one it
// appends the head alone, and returns the body, which is not copied: it must lie beside.
func appendKept(value []byte, key idempotency.Key, token string, r *idempotency.Response) (_, body []byte) {
	at := len(value)
	if len(r.Body) <= smallResponse {
		value = idempotency.AppendResponse(append(value, responseInside), key, token, r)
		if len(value)-at <= 1+smallResponse {
			return value, nil
		}
	}
	value = idempotency.AppendResponseHead(append(value[:at], responseBeside), key, token, r)
	if r.Body == nil {
		return value, []byte{}
	}
	return value, r.Body
}

// run settles, without a retry. A large response is put beside the record first, in the
// same round trip, but in no flush together with others, who would have to wait for it.
// The script then gives it its name, or removes it.
func (c *settleCall) run(ctx context.Context) (answer reply, by executor, err error) {
	s := c.store
	if c.body != nil {
		pipeline := s.client.Pipeline()
		set := pipeline.Set(ctx, c.keys[2], c.body, unsettledLife)
		settle := c.request(ctx, false)
		_ = pipeline.Process(ctx, settle) // it is only queued here
		if _, err := pipeline.Exec(ctx); err != nil && !answered(err) {
			return reply{}, executor{}, err
		}
		if set.Err() != nil {
			return reply{}, executor{}, set.Err()
		}
		if !hasCode(settle.Err(), "NOSCRIPT") {
			answer, err = readReply(c.keys[0], &settle.Cmd)
			return answer, settle.by, err
		}
	}
	answer, sent, _, err := s.runBuilt(ctx, c.keys[0], func(byText bool) *request { return c.request(ctx, byText) })
	if err != nil {
		return reply{}, executor{}, err
	}
	return answer, sent.by, nil
}
