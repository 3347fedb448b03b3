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
	// conn is the client's connection, nil where nobody says.
	conn net.Conn
	// patience is how long a write may take before the connection is closed; 0 for ever.
	patience time.Duration
	sent     int
	// unsent says that what waits in the kernel is limited, and limited that the connection
	// has a deadline of ours.
	unsent, limited bool
	// Budget counts what the client is sent; nil if nobody does. HeldAs is the identity of what
	// it counts once for several clients; nil if this one has it for itself.
	Budget *Budget
	HeldAs any
	// borrower is the client while it is sent much; nil if it is not.
	borrower *borrower
}

// NewClientWriter returns a writer to a client, which may take nothing for as long as
// idle; 0 leaves that to the server's own timeouts. conn is the client's connection, nil
// where nobody says.
func NewClientWriter(w http.ResponseWriter, conn net.Conn, idle time.Duration) ClientWriter {
	return ClientWriter{Client: w, control: *http.NewResponseController(w), idle: idle, conn: conn}
}

// lastWords is how long a connection of HTTP/2 may take, after the client has taken nothing
// of a stream for too long, to tell it that the stream has ended.
const lastWords = 5 * time.Second

// Shared says that the connection carries other requests too, as with HTTP/2, and that the
// client may take nothing of one for as long as idle. A deadline only ends a stream there,
// by a frame to the client: while the whole connection takes nothing, that is not sent, and
// a write does not return. Then the connection is closed.
func (d *ClientWriter) Shared(idle time.Duration) { d.patience = idle + lastWords }

// watch closes the connection unless the write that follows is over in time.
func (d *ClientWriter) watch() (over func()) {
	if d.patience == 0 || d.conn == nil {
		return func() {}
	}
	conn := d.conn
	stuck := time.AfterFunc(d.patience, func() { _ = conn.Close() }) // whoever writes is told
	return func() { stuck.Stop() }
}

// piece is how much is written at a time: what the client has to take within idle.
const piece = 32 << 10

// mostUnlimited is how much is written without a deadline, in bytes: no more than Go's
// server holds back until the handler has returned.
const mostUnlimited = 2 << 10

// Send writes a whole response. The error says that the client is gone, or took nothing for
// too long.
func (d *ClientWriter) Send(p []byte) error {
	if d.Budget != nil && len(p) > smallReplay {
		d.borrower = new(borrower)
		defer d.Budget.end(d.borrower)
		d.Budget.write(d.borrower, d)
		if d.HeldAs == nil {
			d.HeldAs = d.borrower
		}
		d.Budget.lend(d.HeldAs, len(p), d.borrower)
	}
	return d.send(p)
}

func (d *ClientWriter) send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if d.sent += n; d.sent >= piece && d.conn != nil && !d.unsent { // a small response is spared the call
			d.unsent = true
			limitUnsent(d.conn)
		}
		if err := d.write(p[:n]); err != nil {
			return err
		}
		if d.borrower != nil {
			d.Budget.move(d.borrower)
		}
		p = p[n:]
	}
	if d.Flushes {
		return d.Flush()
	}
	return nil
}

func (d *ClientWriter) write(p []byte) error {
	if d.Flushes || d.sent > mostUnlimited {
		d.SetDeadline()
		defer d.watch()()
	}
	_, err := d.Client.Write(p)
	return err
}

// Flush has the client get what was written. The error says that it is gone.
func (d *ClientWriter) Flush() error {
	d.SetDeadline()
	defer d.watch()()
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Inform writes an informational response, which is sent at once. The header may be changed
// after that: over HTTP/2, Go's server may still be reading it where it has given a stream up
// that was reset, unless it has a length to leave out, for which it makes a copy.
func (d *ClientWriter) Inform(status int) {
	if d.patience > 0 {
		d.Client.Header()["Content-Length"] = []string{"0"}
	}
	d.SetDeadline()
	defer d.watch()()
	d.Client.WriteHeader(status)
	d.Done()
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
	if d.Budget != nil {
		if d.borrower = rd.borrow(d); d.borrower != nil {
			defer d.borrower.stop()
		}
	}
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.send(shown); err != nil {
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
