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

// begun returns a recording without any bytes, which has a large budget.
func begun() *Recording {
	r := new(Recording)
	r.Init(&budget.Allowance{Budget: budget.New(1 << 30)})
	return r
}

func wantUsed(t *testing.T, r *Recording, want int64) {
	t.Helper()
	if got := r.Allowance.Budget.Used(); got != want {
		t.Errorf("%d bytes are in use, want %d", got, want)
	}
}

// readUntilEnd reads to the end of the recording. Each read takes some time. It returns how many bytes it has read.
func (rd *Reader) readUntilEnd(takes time.Duration) (n int) {
	for {
		shown, state, changed := rd.next()
		switch {
		case len(shown) > 0:
			time.Sleep(takes)
			n += len(shown)
			rd.took(len(shown))
		case state == Whole || state == Cut:
			return n
		default:
			<-changed
		}
	}
}

// readAll reads what a reader can have now, and returns how far the recording is.
func (rd *Reader) readAll() (string, State) {
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
		r := begun()
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
			done.Go(func() { got[n] = rd.readUntilEnd(time.Duration(n*n) * time.Second) }) // each at its own pace
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
		wantUsed(t, r, 0)
	})
}

// A follower that is fast enough is not cut for what a slow one has delayed.
func TestSlowFollowerCutsNoFastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begun()
		own, fast, slow := r.NewReader(), r.NewReader(), r.NewReader()
		r.own = own
		for _, rd := range []*Reader{own, fast} {
			go rd.readUntilEnd(time.Millisecond)
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
		r := begun()
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
				if _, state := rd.readAll(); i == 0 && state == Cut {
					t.Fatal("the run's client was cut")
				}
			}
		}
		held, _ := r.Held()
		if took := time.Since(began); took > maxDelay || held > maxLag+window {
			t.Errorf("the client was delayed for %v, and %d bytes are held", took, held)
		}
		r.Close(Cut)
	})
}

// A body that outgrew what is kept takes no room, however much of it is written at once, and however
// slowly it is read.
func TestPassingBodyTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begun()
		rd := r.NewReader()
		r.Allowance.Count(100)
		r.Add(make([]byte, 100))
		done := make(chan error)
		go func() { done <- r.Pass(make([]byte, 30<<20)) }()
		for range 2 {
			synctest.Wait()
			shown, _, _ := rd.next()
			rd.took(len(shown))
			wantUsed(t, r, 0)
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
	r := begun()
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
		t.Errorf("more was taken: %v", err)
	}
}

// A body that is kept goes on without readers, and is held until it is stored.
func TestKeptBodyNeedsNoReaders(t *testing.T) {
	r := begun()
	r.NewReader().Leave()
	r.Allowance.Count(4)
	r.Add([]byte("body"))
	r.Keep()
	late := r.NewReader()
	r.Close(Whole)
	if got, state := late.readAll(); got != "body" || state != Whole {
		t.Errorf("a late reader got %q, state %d", got, state)
	}
	late.Leave()
	wantUsed(t, r, 4)
	r.Unkeep()
	wantUsed(t, r, 0)
	if r.NewReader() != nil {
		t.Error("a reader can begin although the bytes are gone")
	}
}

// A recording whose first bytes were dropped takes no reader, also while the engine still tries to store that the
// response is not kept.
func TestNoReaderBehindDroppedBytes(t *testing.T) {
	r := begun()
	own := r.NewReader()
	r.Add([]byte("begun"))
	r.Keep() // the store is down: the settlement is still to be stored
	passed(t, r, 10)
	own.Leave()
	r.Close(Whole)
	if rd := r.NewReader(); rd != nil {
		got, state := rd.readAll()
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
		passing        int64 // bytes that are taken when the body begins to pass
	}{
		"declared":          {100, 1000, []int{30, 30, 40}, []int{100, 0, 0}, 100},
		"at once":           {100, 1000, []int{100}, []int{100}, 100},
		"nothing first":     {100, 1000, []int{0, 40, 60}, []int{0, 100, 0}, 100},
		"not declared":      {-1, 1000, []int{30, 30}, []int{30, 30}, 60},
		"larger than kept":  {5000, 1000, []int{300, 700}, []int{1000, 0}, 1000},
		"not all of it":     {5000, 1000, []int{300}, []int{1000}, 300},
		"more than it says": {100, 1000, []int{60, 60}, []int{100, 60}, 160},
	} {
		t.Run(name, func(t *testing.T) {
			r := begun()
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
			wantUsed(t, r, c.passing)
			own.readAll()
			own.Leave()
			wantUsed(t, r, 0)
		})
	}
}

// A body that is cut when all its bytes have come does not look whole: they are as many as
// were declared, and nothing else would tell its client.
func TestCutBodyLacksItsLastByte(t *testing.T) {
	for end, rest := range map[State]string{Whole: "e", Cut: ""} {
		r := begun()
		r.Declared = 5
		rd := r.NewReader()
		r.Add([]byte("whole"))
		if got, _ := rd.readAll(); got != "whol" {
			t.Errorf("before its end it shows %q", got)
		}
		r.Close(end)
		if got, state := rd.readAll(); got != rest || state != end {
			t.Errorf("at the end %v it shows %q, %v; want %q", end, got, state, rest)
		}
	}
}

// What may be the response of a call does not wait for the run's client; what comes before it does, until the
// client has taken nothing for Patience since it had to. It may have had nothing to take before.
func TestBodyWaitsForItsClientOnlyBeforeTheLastBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begun()
		r.Patience = 10 * time.Second
		own := r.NewReader()
		r.own = own
		pass := func(n int) {
			r.Allowance.Count(n)
			r.PassAhead(make([]byte, n))
		}
		pass(10 * window)
		r.AwaitClient(9*window + 1) // at once
		wantUsed(t, r, 10*window)
		time.Sleep(time.Hour) // the client has had all that it could wait for
		start := time.Now()
		time.AfterFunc(9*time.Second, func() { own.readAll() })
		r.AwaitClient(0)
		synctest.Wait() // the client has read the window, too
		if waited := time.Since(start); waited != 9*time.Second {
			t.Errorf("waited for %v", waited)
		}
		wantUsed(t, r, 0)
		start = time.Now()
		pass(2 * window)
		if r.AwaitClient(0); time.Since(start) != 10*time.Second {
			t.Errorf("waited for %v", time.Since(start))
		}
		if _, state := own.readAll(); state != Cut {
			t.Errorf("the client is %v", state)
		}
		wantUsed(t, r, 0)
	})
}
