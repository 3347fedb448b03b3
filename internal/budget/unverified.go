package budget

import (
	"errors"
	"slices"
)

// Bodies whose signature is not verified yet take at most half of a budget, so that senders of forged
// requests cannot keep out the others. When that half is full, the body that has been read for the
// longest ends: a genuine sender sends all at once.

// ErrCut ends a body that others need the room of.
var ErrCut = errors.New("the body was not sent in time: bodies that are not verified yet have taken half of limits { buffered }")

// unverified is an allowance for a body whose signature is not verified yet.
type unverified struct {
	interrupt func() // ends the reading of the body; nil when it is read
	err       error  // why the reading was ended
}

// BeginUnverified marks what the allowance takes as a body that is not verified yet. interrupt ends a
// read of it that blocks. It is called with the budget locked.
func (a *Allowance) BeginUnverified(interrupt func()) {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.unverified = &unverified{interrupt: interrupt}
	b.unread = append(b.unread, a)
}

// EndReading takes the body, which was read or could not be read, out of those that are being read. It returns an
// error if its reading was ended.
func (a *Allowance) EndReading() error {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.leaveLocked()
	return a.unverified.err
}

// EndUnverified marks the body as verified.
func (a *Allowance) EndUnverified() {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.unverified = nil
	b.unverified -= a.bytes
	b.changed.Broadcast()
}

// leaveLocked takes the body out of those that are being read.
func (a *Allowance) leaveLocked() {
	if a.unverified.interrupt != nil {
		a.unverified.interrupt = nil
		a.Budget.unread = slices.DeleteFunc(a.Budget.unread, func(other *Allowance) bool { return other == a })
		a.Budget.changed.Broadcast()
	}
}

// awaitShareLocked waits until n more bytes of a body that is not verified fit into the half of those
// that are being read.
func (a *Allowance) awaitShareLocked(n int64) error {
	b := a.Budget
	for a.unverified.interrupt != nil && a.bytes+n > SmallBody && b.unverified+n > b.limit/2 {
		if a.bytes+n > b.limit/2 {
			return &LargeError{a.bytes + n, b.limit, "half"}
		}
		var read int64
		for _, other := range b.unread {
			read += other.bytes
		}
		if b.unverified > read { // some is about to be released: of a body that was ended, or is being verified
			b.changed.Wait()
			continue
		}
		oldest := b.unread[0]
		oldest.unverified.err = ErrCut
		oldest.unverified.interrupt()
		oldest.leaveLocked()
	}
	return a.unverified.err
}
