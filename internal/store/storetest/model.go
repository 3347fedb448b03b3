package storetest

import (
	"maps"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// model is the simplest store that fulfils the contract: maps, and a clock that only the test moves.
type model struct {
	now       time.Time
	records   map[idempotency.Key]*idempotency.Record
	responses map[string]keptResponse
	// durable has the records that survive a crash: all but those of claims that need not.
	durable map[idempotency.Key]*idempotency.Record
}

func newModel() model {
	return model{
		records:   make(map[idempotency.Key]*idempotency.Record),
		responses: make(map[string]keptResponse),
		durable:   make(map[idempotency.Key]*idempotency.Record),
	}
}

// put writes a record; if it is durable, it survives a crash.
func (m *model) put(k idempotency.Key, r *idempotency.Record, durable bool) {
	m.records[k] = r
	if durable {
		m.durable[k] = r
	}
}

func (m *model) clone() model {
	return model{m.now, maps.Clone(m.records), maps.Clone(m.responses), maps.Clone(m.durable)}
}

// crash ends the store's process, and with it all runs.
func (m *model) crash() {
	clear(m.records)
	for k, r := range m.durable {
		if r.State == idempotency.InFlight && r.LeaseUntil.After(m.now) {
			lapsed := *r
			lapsed.LeaseUntil = m.now
			m.durable[k] = &lapsed
		}
		m.records[k] = m.durable[k]
	}
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
		m.put(c.Key, claimed.Record, c.Hold || c.MaxAttempts > 0)
	case idempotency.ReplayKept:
		if found.LargeBody > 0 {
			break
		}
		claimed.Response = m.response(c.Key, found.Token)
	}
	return claimed
}

func (m *model) renew(c idempotency.Claim) error {
	found := m.lookup(c.Key)
	if open, err := found.Owned(c.Token, c.PrevToken, ""); !open {
		return err
	}
	next := *found
	next.LeaseUntil, next.Expires = m.now.Add(c.Lease), m.now.Add(c.Life())
	stored := m.durable[c.Key]
	m.put(c.Key, &next, stored != nil && stored.Token == c.Token)
	return nil
}

func (m *model) settle(k idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	found := m.lookup(k)
	if open, err := found.Owned(claimed.Token, claimed.PrevToken, ""); !open {
		return err
	}
	m.put(k, found.WithAttempts(claimed).Settled(s, m.now), true)
	if s.Response != nil {
		m.responses[responseName(k, claimed.Token)] = keptResponse{s.Response, m.now.Add(s.ResponseRetention())}
	}
	return nil
}

func (m *model) change(k idempotency.Key, c idempotency.Change) error {
	changed, err := m.lookup(k).Changed(c, m.now)
	if err == nil {
		m.put(k, changed, true)
		if c.Response != nil {
			m.responses[responseName(k, c.Token)] = keptResponse{c.Response, changed.Expires}
		}
	}
	return err
}

func (m *model) forget(k idempotency.Key, pre idempotency.Precondition) error {
	if err := m.lookup(k).CheckChange(pre, m.now); err != nil {
		return err
	}
	delete(m.records, k)
	delete(m.durable, k)
	for name := range m.responses {
		if name[:len(k)] == string(k[:]) {
			delete(m.responses, name)
		}
	}
	return nil
}
