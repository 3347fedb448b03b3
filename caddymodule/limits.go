package caddymodule

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// Limits bound what one process holds at a time. Past one of them, requests with
// a key are refused with 503 and `overloaded`.
type Limits struct {
	// Request bodies and responses that are held, in bytes. A response that does
	// not fit is passed on and not kept. Default: 256 MiB.
	Buffered int64 `json:"buffered,omitempty"`

	// Duplicates that wait for a run. Default: 10000.
	Waiters int `json:"waiters,omitempty"`

	// Duplicates that wait for the run of one key. Default: 1000.
	WaitersPerKey int `json:"waiters_per_key,omitempty"`

	// Runs in flight, and responses that could not be stored yet. Default: 10000.
	InFlight int `json:"in_flight,omitempty"`

	// What the memory store holds, in bytes. Full, it refuses new keys; it never
	// evicts one. Default: 256 MiB.
	MemoryStore int64 `json:"memory_store,omitempty"`
}

func (l *Limits) setDefaults() {
	orElse(&l.Buffered, 256<<20)
	orElse(&l.Waiters, 10_000)
	orElse(&l.WaitersPerKey, 1000)
	orElse(&l.InFlight, 10_000)
	orElse(&l.MemoryStore, 256<<20)
}

func (l *Limits) check() error {
	return errors.Join(
		checkPositive("limits: buffered", l.Buffered),
		checkPositive("limits: waiters", int64(l.Waiters)),
		checkPositive("limits: waiters_per_key", int64(l.WaitersPerKey)),
		checkPositive("limits: in_flight", int64(l.InFlight)),
		checkPositive("limits: memory_store", l.MemoryStore),
	)
}

func (l *Limits) ofEngine() engine.Limits {
	return engine.Limits{Waiters: l.Waiters, WaitersPerKey: l.WaitersPerKey, InFlight: l.InFlight}
}

// buffer counts the bytes that are held of bodies and responses, against a
// limit.
type buffer struct {
	limit int64
	held  atomic.Int64
	// refused counts the times that there was no room.
	refused atomic.Int64
}

// errBufferFull says that bodies and responses take all the room there is.
type errBufferFull struct{ limit int64 }

// Error implements error.
func (e errBufferFull) Error() string {
	return fmt.Sprintf("the limit of %d buffered bytes is reached", e.limit)
}

// share is what one request holds of the buffer.
type share struct {
	buffer *buffer
	bytes  int64
}

// take adds to the share, or reports that there is no room.
func (s *share) take(n int) error {
	if s.buffer.held.Add(int64(n)) > s.buffer.limit {
		s.buffer.held.Add(-int64(n))
		s.buffer.refused.Add(1)
		return errBufferFull{s.buffer.limit}
	}
	s.bytes += int64(n)
	return nil
}

// giveBack ends the share.
func (s *share) giveBack() {
	s.buffer.held.Add(-s.bytes)
	s.bytes = 0
}
