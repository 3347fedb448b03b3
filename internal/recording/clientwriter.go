package recording

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// ClientWriter writes a recording to one client, at that client's pace.
type ClientWriter struct {
	// Client is what it writes to.
	Client  http.ResponseWriter
	control http.ResponseController
	// idle is how long the client may take nothing; 0 leaves that to the server's own
	// timeouts.
	idle time.Duration
	// Flushes says that each piece is to reach the client at once.
	Flushes bool
	// conn is the client's connection, nil where nobody says, or when it was seen to.
	conn net.Conn
	sent int
	// limited says that the connection has a deadline of ours.
	limited bool
}

// NewClientWriter returns a writer to a client, which may take nothing for as long as
// idle; 0 leaves that to the server's own timeouts. conn is the client's connection, nil
// where nobody says.
func NewClientWriter(w http.ResponseWriter, conn net.Conn, idle time.Duration) ClientWriter {
	return ClientWriter{Client: w, control: *http.NewResponseController(w), idle: idle, conn: conn}
}

// piece is how much is written at a time: what the client has to take within idle.
const piece = 32 << 10

// mostUnlimited is how much is written without a deadline, in bytes: no more than Go's
// server holds back until the handler has returned.
const mostUnlimited = 2 << 10

// Send writes bytes. The error says that the client is gone, or took nothing for too
// long.
func (d *ClientWriter) Send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if d.sent += n; d.sent >= piece && d.conn != nil { // a small response is spared the call
			limitUnsent(d.conn)
			d.conn = nil
		}
		if d.Flushes || d.sent > mostUnlimited {
			d.SetDeadline()
		}
		if _, err := d.Client.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	if d.Flushes {
		return d.Flush()
	}
	return nil
}

// Flush has the client get what was written. The error says that it is gone.
func (d *ClientWriter) Flush() error {
	d.SetDeadline()
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// SetDeadline limits the next write. Where none can be set the server's own timeouts
// apply.
func (d *ClientWriter) SetDeadline() {
	if d.idle > 0 {
		d.limited = true
		_ = d.control.SetWriteDeadline(time.Now().Add(d.idle))
	}
}

// Done leaves the connection without a deadline of ours, for the next request on it.
func (d *ClientWriter) Done() {
	if d.limited {
		d.limited = false
		_ = d.control.SetWriteDeadline(time.Time{})
	}
}

// Follow writes a recording from its first byte to its end. It reports how that was:
// whole, or cut for whatever reason.
func (d *ClientWriter) Follow(ctx context.Context, rd *Reader) State {
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.Send(shown); err != nil {
				return Cut
			}
			rd.took(len(shown))
			continue
		}
		if state == Whole || state == Cut {
			return state
		}
		d.Done() // HTTP/2 resets a stream whose deadline passes, even if nothing is written
		select {
		case <-changed:
		case <-ctx.Done():
			return Cut
		}
	}
}
