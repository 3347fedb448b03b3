package recording

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Writer writes a recording to one client, at that client's pace. A client that accepts no
// bytes for too long is disconnected.
type Writer struct {
	// Client is the response writer that it writes to.
	Client  http.ResponseWriter
	control http.ResponseController
	// Flushes reports whether each piece is to reach the client at once.
	Flushes bool
	// limit is how long the client may accept nothing. conn is its connection, nil if it is unknown.
	limit WriteLimit
	conn  net.Conn
	sent  int
	// progress watches the client; nil until the first write that is watched.
	progress *progress
	// unsentLimited reports whether [limitUnsent] was called.
	unsentLimited bool
}

// WriteLimit is how long a client may accept nothing.
type WriteLimit struct {
	Idle time.Duration
	// ByServer reports whether Idle is the server's own write timeout, so that the server ends the
	// write.
	ByServer bool
	// Shared reports whether the connection carries other requests too, as in HTTP/2. There a write
	// deadline only resets a stream, which sends a frame to the client. While the whole connection
	// accepts nothing, the frame is not sent, and the write does not return: the connection is closed.
	Shared bool
}

// NewWriter returns a writer to a client. conn is the client's connection, nil if it is
// unknown.
func NewWriter(w http.ResponseWriter, conn net.Conn, limit WriteLimit) Writer {
	return Writer{Client: w, control: *http.NewResponseController(w), conn: conn, limit: limit}
}

// maxWrite is how much is written at a time, in bytes.
const maxWrite = 32 << 10

// maxUnlimited is how much is written without a limit, in bytes: no more than Go's server buffers
// until the handler returns.
const maxUnlimited = 2 << 10

// Send writes p. It returns an error if the client has disconnected, or accepted nothing for too
// long.
func (d *Writer) Send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxWrite)
		if d.sent += n; d.sent >= maxWrite && d.conn != nil && !d.unsentLimited { // a small response saves the call
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

// Flush sends the client what was written. It returns an error if the client has disconnected.
func (d *Writer) Flush() error {
	d.startWrite()
	defer d.endWrite(0)
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Inform sends an informational response at once. The caller may change the header afterwards. Over
// HTTP/2, Go's server may then still be reading it, for a stream that was reset; a Content-Length
// makes the server copy the header, to leave that field out.
func (d *Writer) Inform(status int) {
	if d.limit.Shared {
		d.Client.Header()["Content-Length"] = []string{"0"}
	}
	d.startWrite()
	defer d.endWrite(0)
	d.Client.WriteHeader(status)
}

// startWrite watches the client during a write, until endWrite.
func (d *Writer) startWrite() {
	if d.limit.Idle == 0 || d.limit.ByServer && !d.limit.Shared {
		return
	}
	if d.progress == nil {
		d.progress = &progress{limit: d.limit, conn: d.conn, control: d.control}
	}
	d.progress.startWrite()
}

// endWrite ends the write of n bytes.
func (d *Writer) endWrite(n int) {
	if d.progress != nil {
		d.progress.endWrite(n)
	}
}

// Follow writes a recording from its first byte to its end. It returns [Whole] if the client has got
// all of it, else [Cut].
func (d *Writer) Follow(ctx context.Context, rd *Reader) State {
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), maxWrite)]
			if err := d.Send(shown); err != nil {
				return Cut
			}
			rd.took(len(shown))
			continue
		}
		if state == Whole || state == Cut {
			return state
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Cut
		}
	}
}

// underlying returns the kernel's connection within wrappers such as [crypto/tls.Conn] and that of
// Caddy's listener wrapper proxy_protocol.
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
