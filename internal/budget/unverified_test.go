package budget

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// Bodies that are not verified take at most half of a budget. The one that has been read for the
// longest makes room, and others wait until it has given its room back.
func TestUnverifiedBodiesTakeHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100 << 10)
		var interrupted []int
		var bodies [4]*Allowance
		for i := range bodies {
			bodies[i] = &Allowance{Budget: b}
			bodies[i].BeginUnverified(func() { interrupted = append(interrupted, i) })
		}
		for i := range 2 {
			if err := bodies[i].Admit(20 << 10); err != nil {
				t.Fatal(err)
			}
		}
		admitted := make(chan error, 1)
		go func() { admitted <- bodies[2].Admit(20 << 10) }()
		synctest.Wait()
		if len(interrupted) != 1 || interrupted[0] != 0 || len(admitted) > 0 {
			t.Fatalf("%v are interrupted, and %d is admitted before there is room", interrupted, len(admitted))
		}
		if err := bodies[0].Admit(1); !errors.Is(err, ErrCut) {
			t.Errorf("the first body goes on with %v", err)
		}
		if err := bodies[0].EndReading(); !errors.Is(err, ErrCut) {
			t.Errorf("the first body ends with %v", err)
		}
		bodies[0].ReleaseAll()
		if err := <-admitted; err != nil {
			t.Errorf("the third body got %v", err)
		}
		// One that is read is no longer ended, and counts until it is verified.
		if err := bodies[1].EndReading(); err != nil {
			t.Fatal(err)
		}
		go func() { admitted <- bodies[3].Admit(20 << 10) }()
		synctest.Wait()
		if len(interrupted) != 1 || len(admitted) > 0 {
			t.Fatalf("%v are interrupted while a body is being verified", interrupted)
		}
		bodies[1].EndUnverified()
		if err := <-admitted; err != nil {
			t.Errorf("the fourth body got %v", err)
		}
		wantUsed(t, b, 60<<10)
		if err := bodies[3].Admit(40 << 10); !errors.As(err, new(*LargeError)) || !strings.Contains(err.Error(), "more than half") {
			t.Errorf("a body larger than the half got %v", err)
		}
		for _, body := range bodies[1:] {
			body.ReleaseAll()
		}
		if wantUsed(t, b, 0); b.unverified != 0 {
			t.Errorf("%d bytes count as not verified", b.unverified)
		}
	})
}

// The body that has read for the longest ends if it is the one that needs more.
func TestOldestUnverifiedBodyEndsItself(t *testing.T) {
	b := New(100 << 10)
	first, second := &Allowance{Budget: b}, &Allowance{Budget: b}
	for _, body := range []*Allowance{first, second} {
		body.BeginUnverified(func() {})
		if err := body.Admit(25 << 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Admit(1); !errors.Is(err, ErrCut) {
		t.Errorf("it goes on with %v", err)
	}
}
