package file

import "fmt"

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
