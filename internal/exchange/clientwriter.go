package exchange

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// clientWriter writes a recording to one client, at that client's pace. A client that accepts no
// bytes for too long is disconnected.
type clientWriter struct {
	// Client is what it writes to.
	Client  http.ResponseWriter
	control http.ResponseController
	// Flushes reports whether each piece is to reach the client at once.
	Flushes bool
	// limit is how long the client may accept nothing, and conn its connection, nil if it is unknown.
	limit writeLimit
	conn  net.Conn
	sent  int
	// progress is that of the client; nil until something is written that is watched.
	progress *progress
	// unsentLimited reports whether [limitUnsent] was called.
	unsentLimited bool
}

// writeLimit says how long a client may accept nothing.
type writeLimit struct {
	idle time.Duration
	// byServer reports whether that is the server's own limit, which ends the write by itself.
	byServer bool
	// shared reports whether the connection carries other requests too, as with HTTP/2. The end of a
	// write only ends a stream there, by a frame to the client: while the whole connection accepts
	// nothing, that is not sent, and the write does not return. Then the connection is closed.
	shared bool
}

// newClientWriter returns a writer to a client. conn is the client's connection, nil if it is
// unknown.
func newClientWriter(w http.ResponseWriter, conn net.Conn, limit writeLimit) clientWriter {
	return clientWriter{Client: w, control: *http.NewResponseController(w), conn: conn, limit: limit}
}

// piece is how much is written at a time.
const piece = 32 << 10

// maxUnlimited is how much is written without a limit, in bytes: no more than Go's
// server holds back until the handler has returned.
const maxUnlimited = 2 << 10

// Send writes a whole response. The error says that the client has disconnected, or accepted
// nothing for too long.
func (d *clientWriter) Send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if d.sent += n; d.sent >= piece && d.conn != nil && !d.unsentLimited { // a small response is spared the call
			d.unsentLimited = true
			limitUnsent(d.conn)
		}
		if d.Flushes || d.sent > maxUnlimited {
			d.startWrite()
		}
		_, err := d.Client.Write(p[:n])
		d.endWrite(n)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	if d.Flushes {
		return d.Flush()
	}
	return nil
}

// Flush sends the client what was written. The error says that it has disconnected.
func (d *clientWriter) Flush() error {
	d.startWrite()
	defer d.endWrite(0)
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Inform writes an informational response, which is sent at once. The header may be changed
// after that: over HTTP/2, Go's server may still be reading it if it has given up a stream
// that was reset, unless it has a length to leave out, for which it makes a copy.
func (d *clientWriter) Inform(status int) {
	if d.limit.shared {
		d.Client.Header()["Content-Length"] = []string{"0"}
	}
	d.startWrite()
	defer d.endWrite(0)
	d.Client.WriteHeader(status)
}

// begin watches the client during a write, until end.
func (d *clientWriter) startWrite() {
	if d.limit.idle == 0 || d.limit.byServer && !d.limit.shared {
		return
	}
	if d.progress == nil {
		d.progress = &progress{limit: d.limit, conn: d.conn, control: d.control}
	}
	d.progress.startWrite()
}

// end ends the write of n bytes.
func (d *clientWriter) endWrite(n int) {
	if d.progress != nil {
		d.progress.endWrite(n)
	}
}

// Follow writes a recording from its first byte to its end. It returns stateWhole, or stateCut for
// whatever reason.
func (d *clientWriter) Follow(ctx context.Context, rd *recordingReader) recordingState {
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.Send(shown); err != nil {
				return stateCut
			}
			rd.took(len(shown))
			continue
		}
		if state == stateWhole || state == stateCut {
			return state
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return stateCut
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
