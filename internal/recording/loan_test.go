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
