package recording

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// stuckClient takes nothing until its connection is closed.
type stuckClient struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (s stuckClient) Write([]byte) (int, error) { return 0, s.wait() }
func (s stuckClient) FlushError() error         { return s.wait() }
func (s stuckClient) WriteHeader(int)           { _ = s.wait() }

func (s stuckClient) wait() error {
	_, err := s.conn.Read(make([]byte, 1))
	return err
}

// held is what the clients of a test hold. Something waits for its room until the test ends.
func held(t *testing.T) (*budget.Budget, *budget.Allowance) {
	const room = 100 << 10
	b := budget.New(room)
	a := &budget.Allowance{Budget: b}
	a.Count(room)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = (&budget.Allowance{Budget: b}).TakeReplay(ctx, 1) }()
	return b, a
}

// A connection that carries several requests is closed when it takes nothing at all.
func TestSharedConnectionThatIsStuckIsClosed(t *testing.T) {
	for name, write := range map[string]func(*Writer) error{
		"a large response":          func(d *Writer) error { return d.Send(make([]byte, 64<<10)) },
		"a flush":                   (*Writer).Flush,
		"an informational response": func(d *Writer) error { d.Inform(http.StatusEarlyHints); return net.ErrClosed },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				defer time.AfterFunc(time.Hour, func() { ours.Close() }).Stop() // so that the test ends
				d := NewWriter(stuckClient{httptest.NewRecorder(), ours}, ours, WriteLimit{Idle: time.Minute, Shared: true})
				d.Hold(held(t))
				began := time.Now()
				if err := write(&d); err == nil {
					t.Error("it was written")
				}
				d.Close()
				if took := time.Since(began); took != time.Minute+resetTimeout {
					t.Errorf("the connection was closed after %s", took)
				}
			})
		})
	}
}

// One that takes what is written stays, however long all of it takes.
func TestSharedConnectionThatTakesAllStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		recorder := httptest.NewRecorder()
		d := NewWriter(recorder, ours, WriteLimit{Idle: time.Second, Shared: true})
		d.Hold(held(t))
		defer d.Close()
		for range 10 {
			if err := d.Send(make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		if err := ours.SetDeadline(time.Now()); err != nil {
			t.Errorf("the connection is closed: %v", err)
		}
	})
}

// A client is disconnected when it has taken nothing for client_idle and its room is needed. A slow and steady
// client stays, and so does one whose room is not needed.
func TestClientThatTakesNothingIsDisconnected(t *testing.T) {
	const idle = 10 * time.Second
	steady := slices.Repeat([]time.Duration{9 * time.Second}, 32)
	for name, c := range map[string]struct {
		pieces []time.Duration // how long each takes; 0 for at once
		needed bool
		want   time.Duration // until it is cut, 0 for never
	}{
		"nothing at all":      {[]time.Duration{time.Hour}, true, idle},
		"much, and no more":   {slices.Concat(make([]time.Duration, 99), []time.Duration{time.Hour}), true, idle},
		"slow and steady":     {steady, true, 0},
		"the end of a steady": {append(slices.Clone(steady), time.Hour), true, 32*9*time.Second + idle},
		"without need":        {[]time.Duration{time.Hour}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newSlowClient(c.pieces...)
				d := NewWriter(client, nil, WriteLimit{Idle: idle})
				if c.needed {
					d.Hold(held(t))
				} else {
					b := budget.New(100 << 10)
					d.Hold(b, &budget.Allowance{Budget: b})
				}
				began := time.Now()
				err := d.Send(make([]byte, len(c.pieces)*maxWrite))
				if took := time.Since(began); (err != nil) != (c.want != 0) || err != nil && took != c.want {
					t.Errorf("it ended after %v with %v, want %v", took, err, c.want)
				}
				if err := d.Send(make([]byte, 1)); (err != nil) != (c.want != 0) {
					t.Errorf("the next write returned %v", err)
				}
				d.Close()
				time.Sleep(time.Hour)
				if client.isCut() && c.want == 0 {
					t.Error("it was cut after its end")
				}
			})
		})
	}
}

// wrapped is a writer around another one, as handlers in front have.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter    { return w.ResponseWriter }
func (wrapped) SetWriteDeadline(time.Time) error { panic("the deadline of an outer writer is set") }

// The deadline is that of the innermost writer: one around it may be in use.
func TestDeadlineOfTheInnermostWriter(t *testing.T) {
	client := newSlowClient()
	p := newProgress(wrapped{wrapped{client}}, nil, WriteLimit{})
	if err := p.startWrite(); err != nil {
		t.Fatal(err)
	}
	if p.Disconnect(time.Now()); !client.isCut() {
		t.Error("the write is not ended")
	}
}

// A client that is a run is not idle while that waits for room.
func TestRunThatWaitsIsNotIdle(t *testing.T) {
	p := newProgress(newSlowClient(), nil, WriteLimit{Idle: 10 * time.Second})
	if err := p.startWrite(); err != nil {
		t.Fatal(err)
	}
	for _, waits := range []bool{true, false} {
		later := time.Now().Add(time.Hour)
		p.Sample(later, waits)
		if _, idle := p.Idle(later.Add(9 * time.Second)); idle == waits {
			t.Errorf("it waits: %v, and is idle: %v", waits, idle)
		}
		p.endWrite()
		if err := p.startWrite(); err != nil {
			t.Fatal(err)
		}
	}
}

// slowClient takes some time for each write, and fails where that is cut.
type slowClient struct {
	*httptest.ResponseRecorder
	takes []time.Duration
	cut   chan struct{}
	once  sync.Once
}

func newSlowClient(takes ...time.Duration) *slowClient {
	return &slowClient{ResponseRecorder: httptest.NewRecorder(), takes: takes, cut: make(chan struct{})}
}

func (c *slowClient) isCut() bool {
	select {
	case <-c.cut:
		return true
	default:
		return false
	}
}

func (c *slowClient) SetWriteDeadline(time.Time) error {
	c.once.Do(func() { close(c.cut) })
	return nil
}

func (c *slowClient) Write(p []byte) (int, error) {
	var takes time.Duration
	if len(c.takes) > 0 {
		takes, c.takes = c.takes[0], c.takes[1:]
	}
	select {
	case <-time.After(takes):
		return len(p), nil
	case <-c.cut:
		return 0, os.ErrDeadlineExceeded
	}
}

// Where the kernel tells, what the client's system has acknowledged counts, and not the writes.
func TestAcknowledgedBytesAreProgress(t *testing.T) {
	if _, known := ackedBytes(nil); known {
		t.Error("of no connection they are known")
	}
	for name, ends := range connections(t) {
		if _, known := ackedBytes(ends[0]); !known {
			if runtime.GOOS == "linux" {
				t.Errorf("%s: they are unknown", name)
			}
			continue
		}
		p, later := newProgress(httptest.NewRecorder(), ends[0], WriteLimit{}), time.Now().Add(time.Hour)
		if err := p.startWrite(); err != nil {
			t.Fatal(err)
		}
		p.Sample(time.Now(), false) // it notes what was acknowledged before
		if _, err := ends[0].Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(ends[1], make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if since, _ := p.Idle(later); since.Equal(later) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the client has read 1000 bytes, which is no progress", name)
			}
		}
	}
}

// Over HTTP/2 the server makes a copy of a header with a length, which it leaves out: the
// header is changed as soon as the informational response is written, and the server may
// still be reading the one that it was given.
func TestHeadersOfInformationalResponsesAreNotShared(t *testing.T) {
	client := &informed{ResponseRecorder: httptest.NewRecorder()}
	d := NewWriter(client, nil, WriteLimit{Idle: time.Minute})
	d.Inform(http.StatusEarlyHints)
	d.limit.Shared = true
	d.Inform(http.StatusEarlyHints)
	if len(client.lengths) != 2 || client.lengths[0] != "" || client.lengths[1] != "0" {
		t.Errorf("the lengths are %q; want one over HTTP/2", client.lengths)
	}
}

// informed notes the lengths in the headers of informational responses.
type informed struct {
	*httptest.ResponseRecorder
	lengths []string
}

func (i *informed) WriteHeader(int) { i.lengths = append(i.lengths, i.Header().Get("Content-Length")) }

// A connection stays when its stream was reset and the write has ended, although the handlers behind go on.
func TestConnectionStaysAfterTheReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		d := NewWriter(newSlowClient(time.Hour), ours, WriteLimit{Idle: time.Minute, Shared: true})
		d.Hold(held(t))
		if d.Send(make([]byte, 64<<10)) == nil {
			t.Fatal("written")
		}
		time.Sleep(30 * time.Second) // the run goes on without its client
		if err := ours.SetDeadline(time.Now()); err != nil {
			t.Errorf("the connection was closed though its stream was reset and the write ended: %v", err)
		}
		d.Close()
	})
}

type lateClient struct {
	*httptest.ResponseRecorder
	takes    time.Duration
	returned atomic.Bool
	late     *atomic.Int64
}

func (w *lateClient) WriteHeader(int) { time.Sleep(w.takes) }
func (w *lateClient) SetWriteDeadline(time.Time) error {
	if w.returned.Load() {
		w.late.Add(1)
	}
	return nil
}

// No deadline is set when Inform has returned: over HTTP/2 the handler may have returned, too.
func TestInformSetsNoLateDeadline(t *testing.T) {
	var late atomic.Int64
	for range 500 {
		synctest.Test(t, func(t *testing.T) {
			w := &lateClient{httptest.NewRecorder(), time.Minute, atomic.Bool{}, &late}
			d := NewWriter(w, nil, WriteLimit{Idle: time.Minute})
			d.Inform(103)
			w.returned.Store(true)
			synctest.Wait()
		})
	}
	if n := late.Load(); n > 0 {
		t.Errorf("%d of 500 deadlines were set after Inform had returned", n)
	}
}
