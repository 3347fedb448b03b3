package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps records and responses. It applies the rules of this package in atomic
// steps, for all processes that share it. All methods may be called concurrently.
// An error that is not named here means that the store could not be asked.
type Store interface {
	// Claim applies [Decide] to the key's record and, if it returns [Proceed],
	// writes [Claim.Record], in one atomic step. A store that one process alone can have
	// open may forget a claim with its process, unless [Terms.Hold] or
	// [Terms.MaxAttempts] makes it count. Then the claim of a dead process has
	// lapsed, regardless of its lease.
	//
	// With an error, Claimed.Record is the record that may have been written although
	// the call failed: the claim is in doubt. It is nil if nothing was written. A command
	// that timed out may still be executed. With [Terms.Hold], [Terms.MaxAttempts] or
	// Force, and over any record, that is never later than [ClaimTimeout] after the call.
	// Otherwise it may be later, but the lease counts from the call: other requests get the
	// key when it lapses at the latest, and a settlement that withdraws the claim also
	// prevents that. Errors: an
	// [*UnreadableError] for a record that cannot be read, [ErrFull] if the store takes
	// no more records.
	Claim(ctx context.Context, c Claim) (Claimed, error)

	// Renew lets the lease of the claim, and the life of its record, begin again now.
	// If a settlement with the same token is stored already, it does nothing and
	// returns nil. Errors: those of [Record.Owned].
	Renew(ctx context.Context, c Claim) error

	// Settle ends the claim that wrote the given record. It changes record and
	// response in one atomic step, and wakes the processes that wait for the key. A
	// second settlement with the same token does nothing. With [Settlement.Withdraws]
	// and without a record, a store in which the claim may still be executed makes sure
	// that it finds itself withdrawn: [Decide] then returns [WaitForRun]. Errors: those of
	// Renew; of a store with a limit also [ErrFull] while it has no room for the response,
	// and [ErrTooLarge] if it will never have room.
	Settle(ctx context.Context, key Key, claimed *Record, s Settlement) error

	// Ready returns an error while requests cannot claim keys, although the store may still
	// return what it has in memory. A store that has reached its own limit
	// ([ErrFull]) is ready: what it keeps is replayed.
	Ready(ctx context.Context) error

	// Lookup returns the record of the key that counts now ([Record.Effective]), nil
	// if there is none, and the time by the clock of the store.
	Lookup(ctx context.Context, key Key) (*Record, time.Time, error)

	// Response returns the answer of the run with this token, nil if no answer is
	// kept, or not any more.
	Response(ctx context.Context, key Key, token string) (*Response, error)

	// Release applies [Record.Release] to the record of the key, for an operator. It does so
	// in one atomic step, wakes the processes that wait for the key, and returns the record
	// that it found. Errors: those of [Record.Release], and an [*UnreadableError].
	Release(ctx context.Context, key Key, token string, pre Precondition) (*Record, error)

	// Forget removes the record of the key and its responses, for an operator. It
	// does so in one atomic step, and wakes the processes that wait for the key. A
	// record that cannot be read is removed too: otherwise its key could never be
	// used again. Errors: those of [Record.CheckChange], and of [Precondition.CheckUnreadable].
	Forget(ctx context.Context, key Key, pre Precondition) error

	// List returns a page of up to limit records; a store without an order of its own may
	// return somewhat more. The page begins at the cursor; "" is the beginning. With the page
	// comes the cursor of the next one; "" is the end. A page may be empty although another
	// one follows: the work for one page is bounded. Within a page the records are in the
	// order of their keys; the order of the pages is up to the store. A record that cannot be
	// read is listed with Unreadable set. Errors: [ErrCursor].
	List(ctx context.Context, cursor string, limit int) ([]Listed, string, error)

	// Find returns pages as List does, but only of the records whose key has one of these
	// prefixes. It does not go through all records if the store has them in order.
	Find(ctx context.Context, prefixes []KeyPrefix, cursor string, limit int) ([]Listed, string, error)

	// Subscribe has the store call wake whenever a run ends for which this process
	// waits ([Claim.Waits]), and whenever copies of a kept response become invalid, because an
	// operator has released or forgotten its key or a forced run has replaced it. The call is
	// a hint: it may be lost, and it may come for other keys, too. wake must not block. The
	// returned function ends the subscription.
	Subscribe(wake func(Key)) (stop func())

	// Close closes the store. No method may be called afterwards.
	Close() error
}

// ClaimTimeout is how long after the call a claim whose caller has given up may still
// be executed so that it matters ([Store.Claim]). After that time, a claim in doubt can
// be withdrawn for good.
const ClaimTimeout = 2 * time.Second

// Claimed is what a store answers to a claim.
type Claimed struct {
	Verdict Verdict
	// Record is the record that was written, if the verdict is [Proceed]; else the
	// record that was found.
	Record *Record
	// Previous is set with Proceed only: the record that was found; nil if there was
	// none.
	Previous *Record
	// Response comes with [ReplayKept], unless its body is large ([Record.LargeBody]).
	Response *Response
	// Now is the time by the clock of the store.
	Now time.Time
}

// Listed is one record of a page.
type Listed struct {
	Key    Key
	Record *Record
	// Unreadable is why the record could not be read; Record is then nil.
	Unreadable error
	// Now is the time by the clock of the store when the record was read.
	Now time.Time
}

var (
	// ErrFenced: another claim owns the key now.
	ErrFenced = errors.New("the claim was taken over by another owner")
	// ErrGone: the store has no record of the key, or of the claim: it has lost it.
	ErrGone = errors.New("the claim's record is gone")
	// ErrInFlight: a run is in flight and its lease has not lapsed, so that an
	// operator may neither release nor forget the key.
	ErrInFlight = errors.New("a run is in flight under the key; wait until it has ended, or its lease has lapsed")
	// ErrCursor: the cursor is not one that a page came with.
	ErrCursor = errors.New("the cursor is not one that a page came with")
	// ErrFull: the store takes no more records.
	ErrFull = errors.New("the store is full")
	// ErrTooLarge: the store has no room for the response, which is too large to wait for
	// some. It takes one with less in it ([Response.Reduced]).
	ErrTooLarge = errors.New("the response is larger than the store has room for")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// UnreadableError is the error for a stored record or response that cannot be read: it is
// damaged, or was written by another version or by another program.
type UnreadableError struct {
	// Where is its location, in the terms of the store, for operators.
	Where string
	Err   error
}

// Error implements error.
func (e *UnreadableError) Error() string { return fmt.Sprintf("%s cannot be read: %v", e.Where, e.Err) }

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.Err }

// ErrResponseMissing is why a complete record whose response is gone is an [UnreadableError].
var ErrResponseMissing = errors.New("it is complete, but its response is missing")
