package redis

import (
	"context"
	"errors"
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
	keys := []string{s.names.record(c.Key)}
	var answer reply
	err := try(ctx, func() (err error) {
		answer, err = s.runScript(ctx, renewScript, keys, c.Token, toMillis(c.Lease), toMillis(c.Life()), c.Follows)
		return err
	})
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
	ctx, master := withExecutor(ctx)
	call := newSettleCall(s, key, claimed, settlement)
	var answer reply
	err := try(ctx, func() (err error) {
		answer, err = call.run(ctx)
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
	if s.replicas.wanted > 0 && settlement.State == idempotency.Complete {
		s.awaitReplicas(ctx, *master, key, claimed)
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
	args  []any
	// beside is the response in a key of its own, nil if there is none.
	beside []byte
}

func newSettleCall(s *Store, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) *settleCall {
	c := &settleCall{store: s, keys: []string{s.names.record(key)}}
	settled := claimed.Settled(settlement, processTime())
	var inside []byte
	life := settlement.ResponseFor()
	if settlement.Response != nil && life > 0 {
		stored := idempotency.AppendResponse(nil, key, claimed.Token, settlement.Response)
		switch {
		case settlement.State != idempotency.Complete:
			c.beside = stored
		case len(stored) > smallResponse:
			c.beside, life = stored, life+responseMargin
		default:
			inside = stored
		}
	}
	if c.beside != nil {
		c.keys = append(c.keys, s.names.response(key, claimed.Token), s.names.unsettled(key, claimed.Token))
	}
	c.args = []any{
		claimed.Token, encodeRecord(key, settled), toMillis(settlement.Retention), toMillis(life), inside,
		settled.Token, settled.Expires.UnixMilli(), claimed.Follows,
	}
	return c
}

// run settles, without a retry. A response beside the record is written first, in the
// same round trip. The script then gives it its name, or removes it.
func (c *settleCall) run(ctx context.Context) (reply, error) {
	s := c.store
	if c.beside == nil {
		return s.runScript(ctx, settleScript, c.keys, c.args...)
	}
	pipeline := s.client.Pipeline()
	set := pipeline.Set(ctx, c.keys[2], c.beside, unsettledLife)
	script := settleScript.EvalSha(ctx, pipeline, c.keys, c.args...)
	if _, err := pipeline.Exec(ctx); err != nil && !answered(err) {
		return reply{}, err
	}
	if set.Err() != nil {
		return reply{}, set.Err()
	}
	if hasCode(script.Err(), "NOSCRIPT") {
		return s.runScript(ctx, settleScript, c.keys, c.args...)
	}
	return readReply(c.keys[0], script)
}
