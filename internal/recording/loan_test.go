package recording

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// pipeClient is a client that takes what is read from the other end of its connection.
type pipeClient struct {
	header http.Header
	conn   net.Conn
}

func (p pipeClient) Header() http.Header         { return p.header }
func (p pipeClient) WriteHeader(int)             {}
func (p pipeClient) Write(b []byte) (int, error) { return p.conn.Write(b) }
func (p pipeClient) SetWriteDeadline(deadline time.Time) error {
	return p.conn.SetWriteDeadline(deadline)
}

const bodySize = 2 * piece

// answer records a whole response of bodySize bytes, and gives it to a client.
func answer(b *Budget, client http.ResponseWriter, taken *Allowance) (got State) {
	var r Recording
	var own Reader
	r.Init(taken)
	own.Begin(&r)
	defer own.Leave()
	r.Add(make([]byte, bodySize))
	r.End(Whole)
	to := NewClientWriter(client, nil, time.Minute)
	to.Budget = b
	return to.Follow(context.Background(), &own)
}

// Clients that read nothing hold no more than the limit and one response beyond it, however
// many of them there are: those that have stalled are let go when others need the room.
func TestStalledClientsAreLetGoForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs, limit = 58, 4 * bodySize
		b, next := budgetOf(limit)
		begun, ended := time.Now(), make(chan State, runs)
		var haveRoom sync.WaitGroup
		for range runs {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			haveRoom.Add(1)
			go func() {
				taken := next()
				if !taken.TryTake(bodySize) {
					taken.Take(bodySize)
				}
				if taken.impatient {
					t.Error("a run has had to wait for so long that it went over the limit")
				}
				if used := b.Used(); used > limit+bodySize {
					t.Errorf("%d bytes are in use; the limit is %d, and one response goes beyond it", used, limit)
				}
				haveRoom.Done()
				ended <- answer(b, pipeClient{http.Header{}, ours}, taken)
			}()
		}
		haveRoom.Wait()
		if took := time.Since(begun); took > RoomPatience {
			t.Errorf("the last run had its room after %s", took)
		}
		time.Sleep(2 * stalledFor)
		letGo := len(ended)
		if left := int(b.Used() / bodySize); letGo != runs-left || left < limit/bodySize {
			t.Errorf("%d clients of %d were let go, and %d are left: too many, for nobody needed that room", letGo, runs, left)
		}
		for range runs { // those that are left after their own time
			if got := <-ended; got != Cut {
				t.Errorf("a client that reads nothing is at %v", got)
			}
		}
		if b.Used() != 0 || len(b.lent) != 0 {
			t.Errorf("%d bytes are in use, and %d loans are left", b.Used(), len(b.lent))
		}
	})
}

// A client that goes on reading is not let go while another one has stalled, and none is
// while nobody needs the room.
func TestClientsThatReadAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(2 * bodySize)
		read, stalled := make(chan State, 1), make(chan State, 1)
		start := func(ended chan State) (theirs net.Conn) {
			ours, theirs := net.Pipe()
			taken := next()
			if !taken.TryTake(bodySize) {
				t.Fatal("there is no room")
			}
			go func() { ended <- answer(b, pipeClient{http.Header{}, ours}, taken) }()
			return theirs
		}
		slow := start(read)
		go func() {
			for range bodySize / piece {
				time.Sleep(stalledFor - time.Millisecond)
				_, _ = io.CopyN(io.Discard, slow, piece)
			}
		}()
		start(stalled)
		time.Sleep(stalledFor / 2)
		if len(read)+len(stalled) > 0 {
			t.Error("a client was let go before anybody needed the room")
		}
		b.replays++ // somebody else's
		begun := time.Now()
		if err := next().TakeReplay(context.Background(), bodySize/2); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > stalledFor {
			t.Errorf("the replay had its room after %s", took)
		}
		if got := <-stalled; got != Cut {
			t.Errorf("the client that has stalled is at %v", got)
		}
		if got := <-read; got != Whole {
			t.Errorf("the client that reads is at %v", got)
		}
	})
}

// Who waits for a replay's room leaves with the client.
func TestReplayWaitsForNoLongerThanItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(bodySize)
		b.replays = 1 // somebody else's
		next().Count(bodySize)
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		if err := next().TakeReplay(ctx, bodySize); err == nil || b.wantedForReplays != 0 {
			t.Errorf("got %v; %d bytes are still wanted", err, b.wantedForReplays)
		}
	})
}

// stuckPipe is a client that no deadline reaches, as of HTTP/2 where the whole connection takes
// nothing.
type stuckPipe struct{ pipeClient }

func (stuckPipe) SetWriteDeadline(time.Time) error { return nil }

// Clients that cannot be let go do not stand in the way of those that can, and when nothing
// comes back any more a run goes over the limit, as it does beside clients that read.
func TestStuckClientsHoldUpNobody(t *testing.T) {
	for name, c := range map[string]struct{ stuck, stalled int }{
		"some": {3, 7}, "all": {10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, next := budgetOf(10 * bodySize)
				ended := make(chan State, 10)
				for n := range c.stuck + c.stalled {
					ours, theirs := net.Pipe()
					defer theirs.Close()
					var client http.ResponseWriter = pipeClient{http.Header{}, ours}
					if n < c.stuck {
						client = stuckPipe{pipeClient{http.Header{}, ours}}
					}
					taken := next()
					taken.TryTake(bodySize)
					go func() { ended <- answer(b, client, taken) }()
					time.Sleep(time.Millisecond) // they have stopped in this order
				}
				next().Count(bodySize)
				begun, run := time.Now(), next()
				run.Take(bodySize)
				if took := time.Since(begun); took > RoomPatience/2 || run.impatient {
					t.Errorf("the run had its room after %s", took)
				}
				if c.stalled > 0 && len(ended) == 0 {
					t.Error("nobody was let go")
				}
			})
		})
	}
}

// A response that many hold is held once: it comes back when all of them are let go, and they
// are let go together.
func TestHoldersOfOneResponseAreLetGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const holders = 50
		b, next := budgetOf(2 * bodySize)
		response := &idempotency.Response{Body: make([]byte, bodySize)}
		ended := make(chan error, holders)
		for range holders {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			done := b.Share(response)
			go func() {
				defer done()
				to := NewClientWriter(pipeClient{http.Header{}, ours}, nil, time.Minute)
				to.Budget, to.HeldAs = b, response
				ended <- to.Send(response.Body)
			}()
		}
		synctest.Wait()
		b.overdrawing = next() // somebody else
		next().Count(bodySize)
		begun := time.Now()
		next().Take(bodySize)
		if took := time.Since(begun); took > 2*stalledFor {
			t.Errorf("the room came back after %s", took)
		}
		synctest.Wait()
		if len(ended) != holders || len(b.lent) != 0 {
			t.Errorf("%d of %d holders were let go, and %d loans are left", len(ended), holders, len(b.lent))
		}
	})
}

// What is larger than is kept cannot be had again, and nobody's need cuts it.
func TestBodiesThatPassAreNotCalledIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(bodySize)
		ours, theirs := net.Pipe()
		taken, got := next(), make(chan State)
		var r Recording
		var own Reader
		r.Init(taken)
		own.Begin(&r)
		to := NewClientWriter(pipeClient{http.Header{}, ours}, nil, time.Minute)
		to.Budget = b
		go func() { got <- to.Follow(context.Background(), &own) }()
		if err := r.Pass(make([]byte, window-1)); err != nil {
			t.Fatal(err)
		}
		r.End(Whole)
		synctest.Wait()
		if len(b.lent) != 0 {
			t.Errorf("%d loans of it", len(b.lent))
		}
		next().Count(bodySize)
		next().Take(bodySize)
		time.Sleep(2 * stalledFor)
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		if state := <-got; state != Whole {
			t.Errorf("the client is at %v", state)
		}
		own.Leave()
		ours.Close()
	})
}

// What is lent to a reader that was left behind is given back, too.
func TestReaderThatWasLeftBehindGivesBack(t *testing.T) {
	b, next := budgetOf(10 * bodySize)
	var r Recording
	r.Init(next())
	r.Add(make([]byte, bodySize))
	late, other := r.NewReader(), r.NewReader()
	r.readers = []*Reader{other} // as awaitReadersLocked does
	r.End(Whole)
	d := NewClientWriter(pipeClient{http.Header{}, nil}, nil, time.Minute)
	d.Budget = b
	if state := d.Follow(context.Background(), late); state != Cut {
		t.Errorf("it is at %v", state)
	}
	other.Leave()
	late.Leave()
	if len(b.lent) != 0 || b.Used() != 0 {
		t.Errorf("%d loans are left, and %d bytes", len(b.lent), b.Used())
	}
}
