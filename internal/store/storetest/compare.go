package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// recordDifference describes how two records differ; "" if they are equal.
func recordDifference(got, want *idempotency.Record) string {
	if got == nil || want == nil {
		if got == want {
			return ""
		}
		return fmt.Sprintf("got %+v, want %+v", got, want)
	}
	a, b := *got, *want
	a.LargeBody, b.LargeBody = 0, 0 // sealing changes it
	for _, at := range []struct {
		name string
		a, b *time.Time
	}{
		{"claimed", &a.Claimed, &b.Claimed}, {"ended", &a.Ended, &b.Ended},
		{"lease until", &a.LeaseUntil, &b.LeaseUntil}, {"expires", &a.Expires, &b.Expires},
	} {
		if !at.a.Equal(*at.b) {
			return fmt.Sprintf("%s: got %v, want %v", at.name, *at.a, *at.b)
		}
		*at.a, *at.b = time.Time{}, time.Time{} // times can be equal and yet differ in their time zone
	}
	if difference := recordDifference(a.Previous, b.Previous); difference != "" {
		return "the record that it replaces: " + difference
	}
	a.Previous, b.Previous = nil, nil
	if !reflect.DeepEqual(a, b) {
		return fmt.Sprintf("got %+v, want %+v", a, b)
	}
	return ""
}

// responseDifference describes how two responses differ; "" if they are equal.
func responseDifference(got, want *idempotency.Response) string {
	switch {
	case got == nil || want == nil:
		if got != want {
			return fmt.Sprintf("got %v, want %v", got, want)
		}
	case got.Status != want.Status:
		return fmt.Sprintf("status %d, want %d", got.Status, want.Status)
	case got.Omitted != want.Omitted || got.Failed != want.Failed:
		return fmt.Sprintf("omitted %v failed %v, want %v %v", got.Omitted, got.Failed, want.Omitted, want.Failed)
	case !maps.EqualFunc(got.Header, want.Header, slices.Equal):
		return fmt.Sprintf("header %q, want %q", got.Header, want.Header)
	case !bytes.Equal(got.Body, want.Body):
		return fmt.Sprintf("a body of %d bytes that is not the one of %d bytes", len(got.Body), len(want.Body))
	}
	return ""
}

func (f *fixture) sameRecord(what string, got, want *idempotency.Record) {
	f.Helper()
	if d := recordDifference(got, want); d != "" {
		f.Fatalf("%s: %s", what, d)
	}
}

func (f *fixture) sameResponse(what string, got, want *idempotency.Response) {
	f.Helper()
	if d := responseDifference(got, want); d != "" {
		f.Fatalf("%s: %s", what, d)
	}
}

// between fails the test if a time is before from or after to. Stores keep times in milliseconds, so a
// difference of one millisecond is allowed. The estimate of a server's clock may be behind by the time of
// the fastest reply, which is less than the slowest call.
func (f *fixture) between(what string, at, from, to time.Time) {
	f.Helper()
	if at.Before(from.Add(-time.Millisecond-time.Duration(f.slowest.Load()))) || at.After(to.Add(time.Millisecond)) {
		f.Fatalf("%s is %v, not between %v and %v", what, at, from, to)
	}
}
