package file

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// storeError says which store could not be asked.
type storeError struct {
	path string
	err  error
}

// Error implements error.
func (e *storeError) Error() string { return fmt.Sprintf("store directory %s: %v", e.path, e.err) }

// Unwrap returns the reason.
func (e *storeError) Unwrap() error { return e.err }

// panicError is a panic of pebble, as an error.
type panicError struct{ reason any }

// Error implements error.
func (e *panicError) Error() string { return fmt.Sprintf("a panic: %v", e.reason) }

// Unwrap returns the error that was the reason, if it was one.
func (e *panicError) Unwrap() error {
	err, _ := e.reason.(error)
	return err
}

// lostFileError says that one of pebble's files is damaged. pebble does not know that it
// says so, and so passes it on.
type lostFileError struct{ name, reason string }

// Error implements error.
func (e *lostFileError) Error() string {
	return fmt.Sprintf("the file %s cannot be read: %s", e.name, e.reason)
}

// isDamage reports whether an error of pebble says that something is damaged, and not that
// it could not be read this time.
func isDamage(err error) bool {
	_, lost := errors.AsType[*lostFileError](err)
	_, panicked := errors.AsType[*panicError](err)
	return lost || panicked || pebble.IsCorruptionError(err)
}

// rescue makes an error of a panic of pebble, in a deferred call. What only reads holds none
// of pebble's locks, so the database goes on.
func rescue(err *error) {
	if reason := recover(); reason != nil {
		*err = &panicError{reason}
	}
}
