package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps records and responses, and makes the claim table atomic over all
// processes that share it. All methods may be called concurrently. Errors other
// than those named here mean that the store could not be asked.
type Store interface {
	// Claim applies [Decide] to the key's record and, where it says [Proceed],
	// writes [Claim.Record], in one atomic step.
	//
	// With an error, Claimed.Record is the record that may have been written
	// all the same, or nil if none was: a command that timed out may still be
	// executed. It is never executed later than [ClaimPatience] after the call.
	// A record that cannot be read is an [*UnreadableError]; a store with no
	// room is [ErrFull].
	Claim(ctx context.Context, c Claim) (Claimed, error)

	// Renew prolongs the lease of the claim, and its record's life, from now
	// on. It returns nil also where the same token has settled already,
	// [ErrFenced] where another owns the key, [ErrGone] where there is no
	// record.
	Renew(ctx context.Context, c Claim) error

	// Settle ends the claim whose record this is. Record and response change
	// in one atomic step, and those who wait for the key are woken. Settling
	// again with the same token does nothing. Errors as with Renew.
	Settle(ctx context.Context, key Key, claimed *Record, s Settlement) error

	// Lookup returns the key's record and the time of the store's clock; the
	// record is nil if there is none.
	Lookup(ctx context.Context, key Key) (*Record, time.Time, error)

	// Response returns what the run with this token was answered, nil if that
	// is not kept (any more).
	Response(ctx context.Context, key Key, token string) (*Response, error)

	// Free applies [Record.Freed] to the key's record, on an operator's behalf,
	// in one atomic step, and returns the record that it found. Those who wait for
	// the key are woken. Errors: those of Freed, and an [*UnreadableError].
	Free(ctx context.Context, key Key, token string) (*Record, error)

	// Forget removes the key's record with its responses, in one atomic step, and
	// wakes those who wait for the key. What cannot be read is removed, too: it is
	// the operator's way out. Errors: [ErrGone] where there is nothing,
	// [ErrInFlight] beside a run that is alive.
	Forget(ctx context.Context, key Key) error

	// List returns up to limit records in an order of the store's own, starting
	// at a cursor ("" is the beginning), and the cursor of the next page (""
	// is the end). A page may be empty and have a next one. A record that
	// cannot be read is listed with Unreadable set.
	List(ctx context.Context, cursor string, limit int) ([]Listed, string, error)

	// Subscribe has wake called whenever a run ends for which a claim of this
	// process waits (Claim.Waits). It is a hint that may be lost or come in
	// vain. wake must not block. The returned function ends it.
	Subscribe(wake func(Key)) (stop func())

	// Close ends the store. Nothing may be called after it.
	Close() error
}

// ClaimPatience is how long after the call a store may still execute a claim
// whose caller has given up.
const ClaimPatience = 2 * time.Second

// Claimed is what a store says to a claim.
type Claimed struct {
	Verdict Verdict
	// Record is the one written ([Proceed]) or the one found.
	Record *Record
	// Previous is, with Proceed, the record that was found; nil if there was none.
	Previous *Record
	// Response comes with [ReplayKept].
	Response *Response
	// Now is the time of the store's clock.
	Now time.Time
}

// Listed is one record of a page.
type Listed struct {
	Key    Key
	Record *Record
	// Unreadable says why the record could not be read; Record is then nil.
	Unreadable error
}

var (
	// ErrFenced: another claim owns the key now.
	ErrFenced = errors.New("the claim was taken over by another owner")
	// ErrGone: the store has no record of the key.
	ErrGone = errors.New("the claim's record is gone")
	// ErrInFlight: a run that is alive holds the key, which an operator cannot take.
	ErrInFlight = errors.New("a run is in flight under the key; wait until it has ended, or its lease has lapsed")
	// ErrFull: the store takes no more records.
	ErrFull = errors.New("the store is full")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// UnreadableError says that a stored record or response is not what this
// version wrote: damaged, from another version, or somebody else's.
type UnreadableError struct {
	// Where names it to the one who has to look: the store's own key.
	Where string
	Err   error
}

// Error implements error.
func (e *UnreadableError) Error() string { return fmt.Sprintf("%s cannot be read: %v", e.Where, e.Err) }

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.Err }
