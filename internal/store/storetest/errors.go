package storetest

import (
	"errors"
	"fmt"
	"testing"
)

// Must stops a test on an error.
func Must(t testing.TB, err error, context ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(append(context, err)...)
	}
}

// WantErr compares an error by [errors.Is]; want may be nil.
func WantErr(t testing.TB, err, want error, context ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Error(append(context, fmt.Sprintf("%v, want %v", err, want))...)
	}
}

// Equal compares a value, which is named what.
func Equal[T comparable](t testing.TB, got, want T, what string, context ...any) {
	t.Helper()
	if got != want {
		t.Error(append(context, fmt.Sprintf("%s: %v, want %v", what, got, want))...)
	}
}

// ErrOf returns the error of a call with a result.
func ErrOf[T any](_ T, err error) error { return err }
