package exchange

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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

// A connection that carries several requests is closed when it takes nothing at all.
func TestSharedConnectionThatIsStuckIsClosed(t *testing.T) {
	for name, write := range map[string]func(*ClientWriter) error{
		"a large response":          func(d *ClientWriter) error { return d.Send(make([]byte, 64<<10)) },
		"a flush":                   (*ClientWriter).Flush,
		"an informational response": func(d *ClientWriter) error { d.Inform(http.StatusEarlyHints); return net.ErrClosed },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				d := NewClientWriter(stuckClient{httptest.NewRecorder(), ours}, ours, time.Minute)
				d.Shared(time.Minute)
				began := time.Now()
				if err := write(&d); err == nil {
					t.Error("it was written")
				}
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
		d := NewClientWriter(recorder, ours, time.Second)
		d.Shared(time.Second)
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

// Each piece of a large response has a deadline, and the next response on the connection has none
// of this one.
func TestWritesHaveADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &limited{ResponseRecorder: httptest.NewRecorder()}
		d := NewClientWriter(client, nil, time.Minute)
		if err := d.Send(make([]byte, 3*piece)); err != nil {
			t.Fatal(err)
		}
		if len(client.left) != 3 {
			t.Fatalf("there were %d deadlines, want one for each of 3 pieces", len(client.left))
		}
		for _, left := range client.left {
			if left != time.Minute {
				t.Errorf("a piece may take %v", left)
			}
		}
		d.Done()
		if !client.deadline.IsZero() {
			t.Errorf("the connection is left with the deadline %v", client.deadline)
		}
	})
}

// limited notes the deadlines that it gets, and takes a second for each write.
type limited struct {
	*httptest.ResponseRecorder
	deadline time.Time
	left     []time.Duration // until the deadline, when it was set
}

func (l *limited) SetWriteDeadline(deadline time.Time) error {
	l.deadline = deadline
	if !deadline.IsZero() {
		l.left = append(l.left, time.Until(deadline))
	}
	return nil
}

func (l *limited) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	return l.ResponseRecorder.Write(p)
}

// Over HTTP/2 the server makes a copy of a header with a length, which it leaves out: the
// header is changed as soon as the informational response is written, and the server may
// still be reading the one that it was given.
func TestHeadersOfInformationalResponsesAreNotShared(t *testing.T) {
	client := &informed{ResponseRecorder: httptest.NewRecorder()}
	d := NewClientWriter(client, nil, time.Minute)
	d.Inform(http.StatusEarlyHints)
	d.Shared(time.Minute)
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
