package budget

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// budgetOf returns a budget and a function that makes allowances of it.
func budgetOf(limit int64) (*Budget, func() *Allowance) {
	b := New(limit)
	return b, func() *Allowance { return &Allowance{Budget: b} }
}

func wantUsed(t *testing.T, b *Budget, want int64) {
	t.Helper()
	if got := b.Used(); got != want {
		t.Errorf("%d bytes are in use, want %d", got, want)
	}
}

// keepBusy has others take and release room until stop is called, so that no run may exceed the limit.
func keepBusy(others *Allowance) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(stallTimeout / 2):
				others.Count(1)
				others.Release(1)
			}
		}
	}()
	return func() { close(done) }
}

const (
	unit  = 100 << 10
	limit = 10 * unit // nine tenths are 9 units
)

// Each step is one of a holder, in units: a run or a replay takes room, or a holder releases some. The holder
// "-" is the stallTimeout in which nothing happens. want has the units in use after the step, and waits the
// holders that wait then.
func TestBudget(t *testing.T) {
	type step struct {
		of     string // a run begins with r, a replay with p, a request with q; r1+ is another allowance of r1
		units  int    // negative: releases
		want   int
		waits  string
		refuse bool
	}
	for name, steps := range map[string][]step{
		"runs get the whole limit":          {{of: "r1", units: 10, want: 10}},
		"requests get nine tenths":          {{of: "q1", units: 9, want: 9}, {of: "q2", units: 1, want: 9, refuse: true}},
		"replays get nine tenths":           {{of: "p1", units: 9, want: 9}, {of: "p2", units: 1, want: 9, waits: "p2"}, {of: "-", want: 9, waits: "p2"}, {of: "p1", units: -1, want: 9}},
		"a replay waits for runs":           {{of: "r1", units: 9, want: 9}, {of: "p1", units: 2, want: 9, waits: "p1"}, {of: "-", want: 9, waits: "p1"}, {of: "r1", units: -9, want: 2}},
		"a replay that never fits":          {{of: "r1", units: 1, want: 1}, {of: "p1", units: 12, want: 1, waits: "p1"}, {of: "p2", units: 12, want: 1, waits: "p1 p2"}, {of: "-", want: 13, waits: "p2"}, {of: "-", want: 13, waits: "p2"}, {of: "p1", units: -12, want: 1, waits: "p2"}, {of: "-", want: 13}},
		"replays in the order they came":    {{of: "p1", units: 9, want: 9}, {of: "p2", units: 5, want: 9, waits: "p2"}, {of: "p3", units: 1, want: 9, waits: "p2 p3"}, {of: "p1", units: -2, want: 7, waits: "p2 p3"}, {of: "p1", units: -7, want: 6}},
		"a run waits":                       {{of: "r1", units: 10, want: 10}, {of: "r2", units: 1, want: 10, waits: "r2"}, {of: "r1", units: -1, want: 10}},
		"the oldest that waits exceeds":     {{of: "r1", units: 5, want: 5}, {of: "r2", units: 5, want: 10}, {of: "r2", units: 1, want: 10, waits: "r2"}, {of: "r1", units: 3, want: 10, waits: "r1 r2"}, {of: "-", want: 13, waits: "r2"}, {of: "r1", units: 2, want: 15, waits: "r2"}, {of: "r1", units: -10, want: 6}},
		"and then the next":                 {{of: "r1", units: 10, want: 10}, {of: "r2", units: 1, want: 10, waits: "r2"}, {of: "r3", units: 1, want: 10, waits: "r2 r3"}, {of: "-", want: 11, waits: "r3"}, {of: "-", want: 12}},
		"not while there is progress":       {{of: "r1", units: 12, want: 0, waits: "r1"}, {of: "-", want: 12}, {of: "r2", units: 1, want: 12, waits: "r2"}, {of: "r1", units: -1, want: 11, waits: "r2"}, {of: "r1", units: -1, want: 10, waits: "r2"}, {of: "-", want: 11}},
		"two allowances exceed as one":      {{of: "r1", units: 11, want: 0, waits: "r1"}, {of: "-", want: 11}, {of: "r1+", units: 3, want: 14}, {of: "r2", units: 1, want: 14, waits: "r2"}, {of: "r1", units: -11, want: 4}},
		"two allowances wait as one":        {{of: "r1", units: 1, want: 1}, {of: "r2", units: 9, want: 10}, {of: "r3", units: 1, want: 10, waits: "r3"}, {of: "r1+", units: 1, want: 10, waits: "r3 r1+"}, {of: "-", want: 11, waits: "r3"}, {of: "r2", units: -9, want: 3}},
		"two parts of a run wait":           {{of: "r1", units: 10, want: 10}, {of: "r2", units: 5, want: 10, waits: "r2"}, {of: "r2+", units: 5, want: 10, waits: "r2 r2+"}, {of: "-", want: 20}},
		"a stall begins with the wait":      {{of: "r1", units: 10, want: 10}, {of: "r2", units: 5, want: 10, waits: "r2"}, {of: "r1", units: -10, want: 5}, {of: "-", want: 5}, {of: "r3", units: 5, want: 10}, {of: "r4", units: 1, want: 10, waits: "r4"}, {of: "-", want: 11}},
		"runs before replays":               {{of: "r1", units: 10, want: 10}, {of: "p1", units: 1, want: 10, waits: "p1"}, {of: "r3", units: 5, want: 10, waits: "r3 p1"}, {of: "r1", units: -5, want: 10, waits: "p1"}, {of: "r3", units: -5, want: 6}},
		"a request beside a run that waits": {{of: "r1", units: 10, want: 10}, {of: "q1", units: 1, want: 10, refuse: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, next := budgetOf(limit)
				holders, waiting := make(map[string]*Allowance), make(map[string]bool)
				var all []string
				for _, s := range steps {
					a := holders[s.of]
					if a == nil {
						a = next()
						if of, is := strings.CutSuffix(s.of, "+"); is {
							*a = holders[of].Part()
						}
						holders[s.of] = a
						all = append(all, s.of)
					}
					switch {
					case s.of == "-":
						time.Sleep(stallTimeout)
					case s.units < 0:
						a.Release(int64(-s.units) * unit)
					case s.of[0] == 'q':
						if err := a.Admit(s.units * unit); (err != nil) != s.refuse {
							t.Fatalf("%s: %v", s.of, err)
						}
					default:
						waiting[s.of] = true
						go func() {
							if s.of[0] == 'r' {
								a.Take(s.units * unit)
							} else if err := a.TakeReplay(t.Context(), s.units*unit); err != nil {
								t.Error(err)
							}
							b.mu.Lock()
							defer b.mu.Unlock()
							delete(waiting, s.of)
						}()
					}
					synctest.Wait()
					var waits string
					for _, kind := range []byte("rp") {
						for _, name := range all {
							if name[0] == kind && waiting[name] {
								waits += " " + name
							}
						}
					}
					if got := fmt.Sprint(b.Used()/unit, waits); got != fmt.Sprint(s.want, map[bool]string{true: " " + s.waits}[s.waits != ""]) {
						t.Errorf("after %s %+d: %s; want %d %s", s.of, s.units, got, s.want, s.waits)
					}
				}
				b.SetLimit(1 << 40) // so that none waits
				synctest.Wait()
				for _, a := range holders {
					a.ReleaseAll()
				}
				wantUsed(t, b, 0)
			})
		})
	}
}

// Half of it is for responses that cannot be stored.
func TestBudgetHalf(t *testing.T) {
	b, next := budgetOf(limit)
	next().Count(9 * unit) // what is taken makes no difference
	if got := b.Half(); got != 5*unit {
		t.Errorf("half of %d bytes is %d", limit, got)
	}
}

func TestBudgetRefusesNewRunsAtNineTenths(t *testing.T) {
	b, next := budgetOf(limit)
	next().Count(9 * unit)
	if err := b.Busy(); err != nil {
		t.Errorf("at nine tenths: %v", err)
	}
	over := next()
	over.Count(1)
	if err := b.Busy(); err == nil {
		t.Error("beyond nine tenths a new run has room")
	}
	over.ReleaseAll()
	if err := b.Busy(); err != nil {
		t.Errorf("back at nine tenths: %v", err)
	}
}

// A request that may be a duplicate is admitted while it is small.
func TestSmallRequestsAreAdmitted(t *testing.T) {
	_, next := budgetOf(limit)
	next().Count(limit)
	request := next()
	for range 2 {
		if err := request.Admit(SmallBody / 2); err != nil {
			t.Fatalf("a small request: %v", err)
		}
	}
	if request.Admit(1) == nil {
		t.Error("a request that is not small is admitted")
	}
}

// What a request takes more than nine tenths of by itself never fits, however much is free.
func TestRequestsThatNeverFit(t *testing.T) {
	b, next := budgetOf(limit)
	request := next()
	if err := request.Admit(5 * unit); err != nil {
		t.Fatal(err)
	}
	if err := request.Admit(5 * unit); !errors.As(err, new(*LargeError)) || !strings.Contains(err.Error(), fmt.Sprintf("%d bytes", 10*unit)) {
		t.Errorf("all of the limit: %v", err)
	}
	next().Count(4 * unit)
	if err := request.Admit(4 * unit); !errors.As(err, new(SpentError)) {
		t.Errorf("what would fit without others: %v", err)
	}
	wantUsed(t, b, 9*unit)
}

// A run waits for RoomTimeout in all, however much goes on meanwhile, and takes nothing then.
func TestRunWaitsForRoomTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		others, run := next(), next()
		others.Count(limit)
		began := time.Now()
		defer keepBusy(others)()
		time.AfterFunc(10*time.Second, func() { others.Release(unit) })
		if !run.Take(unit) || time.Since(began) != 10*time.Second {
			t.Errorf("the run waited for %v", time.Since(began))
		}
		if run.Take(unit) || time.Since(began) != RoomTimeout {
			t.Errorf("the run waited for %v in all; want %v", time.Since(began), RoomTimeout)
		}
		wantUsed(t, b, limit)
	})
}

// A replay whose client has disconnected no longer stands before others.
func TestReplayWaitsNoLongerThanItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		next().Count(5 * unit)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the client has left")
		time.AfterFunc(time.Minute, func() { cancel(left) })
		first, second := make(chan error), make(chan error)
		go func() { first <- next().TakeReplay(ctx, 6*unit) }()
		synctest.Wait()
		go func() { second <- next().TakeReplay(t.Context(), 4*unit) }()
		if err := <-first; !errors.Is(err, left) {
			t.Errorf("the replay that is gone got %v", err)
		}
		if err := <-second; err != nil {
			t.Errorf("the one behind it got %v", err)
		}
		wantUsed(t, b, 9*unit)
	})
}

// A limit that is raised gives room to those that wait.
func TestRaisedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		next().Count(limit)
		go func() { _ = next().TakeReplay(t.Context(), unit) }()
		synctest.Wait()
		b.SetLimit(2 * limit)
		synctest.Wait()
		wantUsed(t, b, limit+unit)
	})
}

// A body with which many are answered is counted once, while any of them has it.
func TestSharedBodyCountsOnce(t *testing.T) {
	b, next := budgetOf(limit)
	body, other := make([]byte, 5*unit), make([]byte, 5*unit)
	var releases []func()
	for range 3 {
		releases = append(releases, share(next(), body, false))
		wantUsed(t, b, 5*unit)
	}
	if share(next(), other, false) != nil {
		t.Error("there is room for another one")
	}
	releases = append(releases, share(next(), other, true))
	wantUsed(t, b, 10*unit)
	if got := share(next(), body, false); got == nil {
		t.Error("a body that is held already has no room")
	} else {
		got()
	}
	releases[3]()
	wantUsed(t, b, 5*unit)
	next().Count(0)
	for _, release := range releases {
		release()
		release()
	}
	wantUsed(t, b, 0)
}

func share(a *Allowance, body []byte, held bool) (release func()) {
	_, release = a.Share(body, held)
	return release
}

// A replay that exceeds the limit is alone until its body is released: those behind it wait.
func TestReplaysOverTheLimitOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(limit)
		releases := make(chan func(), 3)
		for range 3 {
			go func() {
				taken := next()
				if err := taken.TakeReplay(t.Context(), 12*unit); err != nil {
					t.Error(err)
				}
				_, release := taken.Share(make([]byte, 12*unit), true)
				taken.ReleaseAll()
				releases <- release
			}()
		}
		for range 3 {
			time.Sleep(3 * stallTimeout)
			wantUsed(t, b, 12*unit)
			(<-releases)()
		}
		wantUsed(t, b, 0)
	})
}

// A small response never waits, whoever holds the room: it could only be lost.
func TestSmallResponsesNeedNotWait(t *testing.T) {
	b, next := budgetOf(limit)
	next().Count(limit + unit)
	run := next()
	for range 2 {
		if !run.TryTake(SmallBody / 2) {
			t.Error("a small response has to wait")
		}
	}
	wantUsed(t, b, limit+unit+SmallBody)
	if run.TryTake(1) {
		t.Error("a response that is not small has room")
	}
}
