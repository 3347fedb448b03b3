package exchange

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// ClientWriter writes a recording to one client, at that client's pace. A client that accepts no
// bytes for too long is disconnected, by a deadline for each write.
type ClientWriter struct {
	// Client is what it writes to.
	Client  http.ResponseWriter
	control http.ResponseController
	// idle is how long the client may accept nothing; 0 leaves that to the server's own
	// timeouts.
	idle time.Duration
	// Flushes reports whether each piece is to reach the client at once.
	Flushes bool
	// conn is the client's connection, nil if it is unknown.
	conn net.Conn
	// closeAfter is how long a write may take before the connection is closed; 0 for no limit.
	closeAfter time.Duration
	sent       int
	// unsentLimited reports whether [limitUnsent] was called, and limited whether the connection
	// has a deadline of ours.
	unsentLimited, limited bool
}

// NewClientWriter returns a writer to a client that may accept nothing for as long as idle; 0
// leaves that to the server's own timeouts. conn is the client's connection, nil if it is
// unknown.
func NewClientWriter(w http.ResponseWriter, conn net.Conn, idle time.Duration) ClientWriter {
	return ClientWriter{Client: w, control: *http.NewResponseController(w), idle: idle, conn: conn}
}

// resetTimeout is how long the server may take to tell the client of a reset HTTP/2 stream.
const resetTimeout = 5 * time.Second

// Shared tells the writer that the connection carries other requests too, as with HTTP/2, and that
// the client may accept nothing of one for as long as idle. A deadline only ends a stream there,
// by a frame to the client: while the whole connection accepts nothing, that is not sent, and a
// write does not return. Then the connection is closed.
func (d *ClientWriter) Shared(idle time.Duration) { d.closeAfter = idle + resetTimeout }

// watch closes the connection unless the write that follows returns in time.
func (d *ClientWriter) watch() (stop func()) {
	if d.closeAfter == 0 || d.conn == nil {
		return func() {}
	}
	conn := d.conn
	stuck := time.AfterFunc(d.closeAfter, func() { _ = conn.Close() }) // the write returns the error
	return func() { stuck.Stop() }
}

// piece is how much is written at a time: what the client has to accept within idle.
const piece = 32 << 10

// maxUnlimited is how much is written without a deadline, in bytes: no more than Go's
// server holds back until the handler has returned.
const maxUnlimited = 2 << 10

// Send writes a whole response. The error says that the client has disconnected, or accepted
// nothing for too long.
func (d *ClientWriter) Send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if d.sent += n; d.sent >= piece && d.conn != nil && !d.unsentLimited { // a small response is spared the call
			d.unsentLimited = true
			limitUnsent(d.conn)
		}
		if err := d.write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	if d.Flushes {
		return d.Flush()
	}
	return nil
}

func (d *ClientWriter) write(p []byte) error {
	if d.Flushes || d.sent > maxUnlimited {
		d.SetDeadline()
		defer d.watch()()
	}
	_, err := d.Client.Write(p)
	return err
}

// Flush sends the client what was written. The error says that it has disconnected.
func (d *ClientWriter) Flush() error {
	d.SetDeadline()
	defer d.watch()()
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Inform writes an informational response, which is sent at once. The header may be changed
// after that: over HTTP/2, Go's server may still be reading it if it has given up a stream
// that was reset, unless it has a length to leave out, for which it makes a copy.
func (d *ClientWriter) Inform(status int) {
	if d.closeAfter > 0 {
		d.Client.Header()["Content-Length"] = []string{"0"}
	}
	d.SetDeadline()
	defer d.watch()()
	d.Client.WriteHeader(status)
	d.Done()
}

// SetDeadline limits the next write. If none can be set, the server's own timeouts
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

// Follow writes a recording from its first byte to its end. It returns Whole, or Cut for
// whatever reason.
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

// underlying returns the connection of the kernel that others are around, such as a
// [crypto/tls.Conn], and the one of Caddy's listener wrapper proxy_protocol.
func underlying(conn net.Conn) net.Conn {
	for {
		switch around := conn.(type) {
		case interface{ NetConn() net.Conn }:
			conn = around.NetConn()
		case interface{ Raw() net.Conn }:
			conn = around.Raw()
		default:
			return conn
		}
	}
}
