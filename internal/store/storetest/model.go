package storetest

import (
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

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
	if open, err := found.Owned(c.Token, c.Follows, ""); !open {
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
	if open, err := found.Owned(token, "", ""); !open {
		return err
	}
	m.records[k] = found.Settled(s, m.now)
	if s.Response != nil {
		m.responses[responseName(k, token)] = keptResponse{s.Response, m.now.Add(s.ResponseFor())}
	}
	return nil
}

func (m *model) free(k idempotency.Key, token string, seen idempotency.Seen) error {
	freed, err := m.lookup(k).Freed(token, seen, m.now)
	if err == nil {
		m.records[k] = freed
	}
	return err
}

func (m *model) forget(k idempotency.Key, seen idempotency.Seen) error {
	if err := m.lookup(k).MayBeTaken(seen, m.now); err != nil {
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
