package recording

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// begun returns a recording without any bytes.
func begun(allowance *budget.Allowance) *Recording {
	r := new(Recording)
	r.Init(allowance)
	return r
}

// readAll reads what a reader can have now, and returns how far the recording is.
func (rd *Reader) readAll(t *testing.T) (string, State) {
	t.Helper()
	var got strings.Builder
	for {
		shown, state, _ := rd.next()
		if len(shown) == 0 {
			return got.String(), state
		}
		got.Write(shown)
		rd.took(len(shown))
	}
}

func passed(t *testing.T, r *Recording, n int) {
	t.Helper()
	if err := r.Pass(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// A body that is larger than is kept reaches all who keep up with the run's client, and what
// they have read is dropped. A slow reader is cut, and delays no other.
func TestPassingBodyReachesAllItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 30)
		r := begun(next())
		readers := []*Reader{r.NewReader(), r.NewReader(), r.NewReader()}
		const own, fast, slow = 1, 0, 2
		r.own = readers[own]
		took := time.Now()
		r.Allowance.Count(100)
		r.Add(make([]byte, 100))
		const pieces = 50
		total := 100 + pieces*window/2
		got := make([]int, len(readers))
		var done sync.WaitGroup
		for n, rd := range readers {
			done.Go(func() {
				for {
					shown, state, changed := rd.next()
					if len(shown) == 0 && state != Growing && state != Passing {
						return
					}
					if len(shown) == 0 {
						<-changed
						continue
					}
					time.Sleep(time.Duration(n*n) * time.Second) // each at its own pace
					taken := min(len(shown), maxWrite)
					got[n] += taken
					rd.took(taken)
				}
			})
		}
		for range pieces {
			passed(t, r, window/2)
			if held, _ := r.Held(); held > 2*window {
				t.Fatalf("%d bytes are held", held)
			}
		}
		if r.NewReader() != nil {
			t.Error("a reader can begin although the first bytes are gone")
		}
		r.Close(Whole)
		done.Wait()
		if got[own] != total || got[fast] != total || got[slow] >= total {
			t.Errorf("of %d bytes, the run's client got %d, a fast reader %d, a slow one %d", total, got[own], got[fast], got[slow])
		}
		if took := time.Since(took); took > (pieces+4)*time.Second+maxDelay {
			t.Errorf("the run's client got them within %v: the slow one held it back", took)
		}
		for _, rd := range readers {
			rd.Leave()
			rd.Leave()
		}
		wantUsed(t, b, 0)
	})
}

// A follower that is fast enough is not cut for what a slow one has delayed.
func TestSlowFollowerCutsNoFastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, next := budgetOf(1 << 30)
		r := begun(next())
		own, fast, slow := r.NewReader(), r.NewReader(), r.NewReader()
		r.own = own
		for rd, took := range map[*Reader]time.Duration{own: time.Millisecond, fast: time.Millisecond} {
			go func() {
				for {
					shown, state, changed := rd.next()
					if len(shown) == 0 && state == Cut {
						return
					}
					if len(shown) == 0 {
						<-changed
						continue
					}
					time.Sleep(took)
					rd.took(len(shown))
				}
			}()
		}
		for range 10 {
			passed(t, r, window)
		}
		defer time.Sleep(time.Second) // the readers end
		defer r.Close(Cut)
		if _, state, _ := slow.next(); state != Cut {
			t.Error("the slow one was not cut")
		}
		if _, state, _ := fast.next(); state == Cut {
			t.Error("the fast one was cut")
		}
	})
}

// Followers delay the run's client by a second in all, however many they are and whenever they stop.
func TestFollowersDelayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, next := budgetOf(1 << 30)
		r := begun(next())
		own := r.NewReader()
		r.own = own
		var followers []*Reader
		for range 25 {
			followers = append(followers, r.NewReader())
		}
		began := time.Now()
		for n := range 30 { // after each window, one more stops
			passed(t, r, window)
			for i, rd := range append([]*Reader{own}, followers[min(n, len(followers)):]...) {
				for {
					shown, state, _ := rd.next()
					if len(shown) == 0 {
						if i == 0 && state == Cut {
							t.Fatal("the run's client was cut")
						}
						break
					}
					rd.took(len(shown))
				}
			}
		}
		if took := time.Since(began); took > maxDelay {
			t.Errorf("the client was delayed for %v", took)
		}
		r.Close(Cut)
	})
}

// A body that outgrew what is kept takes no room, however much of it is written at once, and however
// slowly it is read.
func TestPassingBodyTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 30)
		r := begun(next())
		rd := r.NewReader()
		r.Allowance.Count(100)
		r.Add(make([]byte, 100))
		done := make(chan error)
		go func() { done <- r.Pass(make([]byte, 30<<20)) }()
		for range 2 {
			synctest.Wait()
			shown, _, _ := rd.next()
			rd.took(len(shown))
			wantUsed(t, b, 0)
			if held, _ := r.Held(); held > 2*window {
				t.Errorf("%d bytes are held", held)
			}
		}
		rd.Leave()
		if err := <-done; !errors.Is(err, errNoReaders) {
			t.Errorf("without readers: %v", err)
		}
	})
}

// The rest of a passing body is not needed when its last reader has left.
func TestPassingBodyWithoutReadersIsAbandoned(t *testing.T) {
	_, next := budgetOf(1 << 30)
	r := begun(next())
	abandoned := 0
	first, second := r.NewReader(), r.NewReader()
	r.WhenAbandoned(func() { abandoned++ })
	passed(t, r, 1)
	first.Leave()
	if abandoned != 0 {
		t.Error("it was abandoned with a reader")
	}
	second.Leave()
	if abandoned != 1 {
		t.Errorf("it was abandoned %d times", abandoned)
	}
	if err := r.Pass([]byte("more")); !errors.Is(err, errNoReaders) {
		t.Errorf("more was allowance: %v", err)
	}
}

// A body that is kept goes on without readers, and is held until it is stored.
func TestKeptBodyNeedsNoReaders(t *testing.T) {
	b, next := budgetOf(1 << 30)
	r := begun(next())
	r.NewReader().Leave()
	r.Allowance.Count(4)
	r.Add([]byte("body"))
	r.Keep()
	late := r.NewReader()
	r.Close(Whole)
	if got, state := late.readAll(t); got != "body" || state != Whole {
		t.Errorf("a late reader got %q, state %d", got, state)
	}
	late.Leave()
	wantUsed(t, b, 4)
	r.Unkeep()
	wantUsed(t, b, 0)
	if r.NewReader() != nil {
		t.Error("a reader can begin although the bytes are gone")
	}
}

// Whose first bytes are gone nobody can begin to follow, also while the engine still
// tries to store that the response is not kept.
func TestNobodyBeginsBehindDroppedBytes(t *testing.T) {
	r := begun(room())
	own := r.NewReader()
	r.Add([]byte("begun"))
	r.Keep() // the store is down: the settlement is still to be stored
	passed(t, r, 10)
	own.Leave()
	r.Close(Whole)
	if rd := r.NewReader(); rd != nil {
		got, state := rd.readAll(t)
		t.Errorf("a reader gets %q, and takes it for whole: %v", got, state == Whole)
	}
}

// What a response declares is taken of the budget before it is allocated, and what was
// taken too much is given back.
func TestDeclaredResponsesAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		declared, most int64
		pieces         []int
		takes          []int
	}{
		"declared":          {100, 1000, []int{30, 30, 40}, []int{100, 0, 0}},
		"at once":           {100, 1000, []int{100}, []int{100}},
		"nothing first":     {100, 1000, []int{0, 40, 60}, []int{0, 100, 0}},
		"not declared":      {-1, 1000, []int{30, 30}, []int{30, 30}},
		"larger than kept":  {5000, 1000, []int{300, 700}, []int{1000, 0}},
		"more than it says": {100, 1000, []int{60, 60}, []int{100, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			r := begun(room())
			r.Declared = c.declared
			var written int64
			for i, n := range c.pieces {
				written += int64(n)
				if got := r.Needs(n, written, c.most); got != c.takes[i] {
					t.Errorf("piece %d needs %d bytes, want %d", i, got, c.takes[i])
				}
				r.Allowance.Count(c.takes[i])
				r.Add(make([]byte, n))
			}
			own := r.NewReader()
			if err := r.Pass([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if held := int64(r.body.Len()); r.Allowance.Taken() > held+int64(c.takes[len(c.takes)-1]) {
				t.Errorf("%d bytes are held, %d counted", held, r.Allowance.Taken())
			}
			own.readAll(t)
			own.Leave()
			wantUsed(t, r.Allowance.Budget, 0)
		})
	}
}

// A body that is cut when all its bytes have come does not look whole: they are as many as
// were declared, and nothing else would tell its client.
func TestCutBodyLacksItsLastByte(t *testing.T) {
	for end, rest := range map[State]string{Whole: "e", Cut: ""} {
		_, next := budgetOf(1 << 30)
		r := begun(next())
		r.Declared = 5
		rd := r.NewReader()
		r.Add([]byte("whole"))
		if got, _ := rd.readAll(t); got != "whol" {
			t.Errorf("before its end it shows %q", got)
		}
		r.Close(end)
		if got, state := rd.readAll(t); got != rest || state != end {
			t.Errorf("at the end %v it shows %q, %v; want %q", end, got, state, rest)
		}
	}
}

// budgetOf returns a budget and a function that makes allowances of it.
func budgetOf(limit int64) (*budget.Budget, func() *budget.Allowance) {
	b := budget.New(limit)
	return b, func() *budget.Allowance { return &budget.Allowance{Budget: b} }
}

func room() *budget.Allowance { return &budget.Allowance{Budget: budget.New(1 << 30)} }

func wantUsed(t *testing.T, b *budget.Budget, want int64) {
	t.Helper()
	if got := b.Used(); got != want {
		t.Errorf("%d bytes are in use, want %d", got, want)
	}
}

// What may be the response of a call does not wait for the run's client; what comes before it does, until the
// client has taken nothing for Patience since it had to. It may have had nothing to take before.
func TestBodyWaitsForItsClientOnlyBeforeTheLastBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 30)
		r := begun(next())
		r.Patience = 10 * time.Second
		own := r.NewReader()
		r.own = own
		pass := func(n int) {
			r.Allowance.Count(n)
			r.PassAhead(make([]byte, n))
		}
		pass(10 * window)
		if r.AwaitClient(9*window + 1); b.Used() != 10*window { // at once
			t.Errorf("%d bytes are taken", b.Used())
		}
		time.Sleep(time.Hour) // the client has had all that it could wait for
		start := time.Now()
		time.AfterFunc(9*time.Second, func() { own.readAll(t) })
		r.AwaitClient(0)
		synctest.Wait() // the client has read the window, too
		if waited := time.Since(start); waited != 9*time.Second || b.Used() != 0 {
			t.Errorf("waited for %v, and %d bytes are taken", waited, b.Used())
		}
		start = time.Now()
		pass(2 * window)
		if r.AwaitClient(0); time.Since(start) != 10*time.Second {
			t.Errorf("waited for %v", time.Since(start))
		}
		if _, state := own.readAll(t); state != Cut || b.Used() != 0 {
			t.Errorf("the client is %v, and %d bytes are taken", state, b.Used())
		}
	})
}
