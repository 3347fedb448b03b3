package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps records and responses. It applies the rules of this package in atomic
// steps, for all processes that share it. All methods may be called concurrently.
// Any error that is not named here means that the store could not be asked, except a
// [*RefusedError], which any operation that writes may return.
type Store interface {
	// Claim applies [Decide] to the key's record and, if it returns [Proceed],
	// writes [Claim.Record], in one atomic step. A store that only one process can open
	// may lose a claim with its process, unless the claim has [Terms.Hold] or
	// [Terms.MaxAttempts]. After a restart, such claims have lapsed, regardless of their
	// leases.
	//
	// With an error, Claimed.Record is the record that the store may have written although
	// the call failed: the claim is in doubt. It is nil if nothing was written. The store may
	// still execute a claim that timed out. With [Terms.Hold], [Terms.MaxAttempts] or Force,
	// or over a record, it does so within [ClaimTimeout] of the call. Otherwise it may do so
	// later, but the lease counts from the call, so that other requests get the key when it
	// lapses at the latest; a settlement that withdraws the claim prevents even that.
	//
	// Errors: an [*UnreadableError] for a record that cannot be read, [ErrFull] if the store
	// takes no more records.
	Claim(ctx context.Context, c Claim) (Claimed, error)

	// Renew restarts the lease of the claim and the life of its record ([Record.Renewed]). If the
	// claim is settled already, it does nothing and returns nil. Errors: those of
	// [Record.Owned].
	Renew(ctx context.Context, c Claim) error

	// Settle settles the claim that wrote the given record. It changes record and response in
	// one atomic step, and wakes the processes that wait for the key. A second settlement
	// with the same token does nothing. With [Settlement.Withdraws] and without a record, a
	// store that may still execute the claim makes sure that [Decide] then returns
	// [WaitForRun]. Errors: those of Renew; if the store has a limit, also [ErrFull] while it
	// has no room for the response, and [ErrTooLarge] if it never will.
	Settle(ctx context.Context, key Key, claimed *Record, s Settlement) error

	// Ready returns an error while requests cannot claim keys, even if the store can still
	// return what it has in memory. A store that has reached its limit ([ErrFull]) is ready:
	// what it keeps is replayed.
	Ready(ctx context.Context) error

	// Lookup returns the effective record of the key ([Record.Effective]), nil if there is none,
	// and the time by the clock of the store.
	Lookup(ctx context.Context, key Key) (*Record, time.Time, error)

	// Response returns the response of the run with this token, nil if none is kept (any more).
	Response(ctx context.Context, key Key, token string) (*Response, error)

	// Change applies [Record.Changed] to the record of the key, and stores the response of a
	// completed key, in one atomic step. It wakes the processes that wait for the key, and returns
	// the record that it found. Errors: those of [Record.Changed], an [*UnreadableError], and for a
	// response [ErrFull] and [ErrTooLarge].
	Change(ctx context.Context, key Key, c Change) (*Record, error)

	// Forget removes the record of the key and its responses in one atomic step, and wakes the
	// processes that wait for the key. It also removes a record that cannot be read: otherwise
	// the key would be unusable. Errors: those of [Record.CheckChange] and
	// [Precondition.CheckUnreadable].
	Forget(ctx context.Context, key Key, pre Precondition) error

	// List returns the page of records at the cursor, "" for the first page, and the cursor of
	// the next page, "" after the last. A page has up to limit records; a store without an order
	// of its own may return somewhat more. It may be empty although another one follows,
	// because the work for one page is bounded. The records of a page are in the order of
	// their keys; the order of the pages is up to the store. A record that cannot be read is
	// listed with Unreadable set. Errors: [ErrCursor].
	List(ctx context.Context, cursor string, limit int) ([]Listed, string, error)

	// Find is List for the records whose key has one of these prefixes. A store that has its
	// records in order does not scan all of them.
	Find(ctx context.Context, prefixes []KeyPrefix, cursor string, limit int) ([]Listed, string, error)

	// Subscribe makes the store call wake when a run ends that this process waits for
	// ([Claim.Waits]), and when copies of a kept response become outdated, because an operator
	// has changed or forgotten its key, or a forced run has replaced it. The call is a hint:
	// it may be lost, and may come for other keys, too. wake must not block. stop ends the
	// subscription.
	Subscribe(wake func(Key)) (stop func())

	// Close closes the store. No method may be called after it.
	Close() error
}

// Impaired is implemented by a store that can detect that it is damaged although it still answers.
type Impaired interface {
	// Impairment returns what is wrong, for operators, and since when; "" for nothing.
	Impairment() (reason string, since time.Time)
}

// ClaimTimeout is how long after the call a store may execute a claim that has timed out, as far as
// that matters ([Store.Claim]). After this time, the withdrawal of a claim in doubt is final.
const ClaimTimeout = 2 * time.Second

// Claimed is the reply of a store to a claim.
type Claimed struct {
	Verdict Verdict
	// Record is the record that the store wrote, if the verdict is [Proceed]; else the one that it
	// found.
	Record *Record
	// Previous is set with Proceed only: the record that the store found, nil for none.
	Previous *Record
	// Response is set with [ReplayKept], unless its body is large ([Record.LargeBody]).
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
	// ErrGone: the store has no record of the key, or has lost that of the claim.
	ErrGone = errors.New("the claim's record is gone")
	// ErrInFlight: a run is in flight and its lease has not lapsed, so that an
	// operator may neither change nor forget the key.
	ErrInFlight = errors.New("a run is in flight under the key; wait until it has ended, or its lease has lapsed")
	// ErrComplete: the key has a response already, so that an operator may not complete it.
	ErrComplete = errors.New("the key is complete; release it first")
	// ErrCursor: no page has returned this cursor.
	ErrCursor = errors.New("the cursor is not one that a page came with")
	// ErrFull: the store takes no more records. It is a [*RefusedError].
	ErrFull error = &RefusedError{errors.New("the store is full")}
	// ErrTooLarge: the response is too large for the store ever to have room for it. The store
	// takes a smaller form ([Response.Reduced]). It is a [*RefusedError].
	ErrTooLarge error = &RefusedError{errors.New("the response is larger than the store has room for")}
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// RefusedError is the error of a store that can be read, but does not take a write: it has no room
// for it, or is read-only. A store that cannot be read either has other errors.
type RefusedError struct {
	Err error
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnreadableError is the error for a stored record or response that cannot be read: it is damaged, or
// another version or program has written it.
type UnreadableError struct {
	// Where is its place in the store, for operators.
	Where string
	Err   error
}

// Error implements error.
func (e *UnreadableError) Error() string { return fmt.Sprintf("%s cannot be read: %v", e.Where, e.Err) }

// Unwrap returns the reason.
func (e *UnreadableError) Unwrap() error { return e.Err }

// ErrResponseMissing is the Err of an [UnreadableError] for a complete record without its response.
var ErrResponseMissing = errors.New("it is complete, but its response is missing")
