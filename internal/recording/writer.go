package recording

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// Writer writes a response to one client, at that client's pace. A client that takes nothing for too long is
// disconnected when others need its room.
type Writer struct {
	// Client is the response writer that it writes to.
	Client  http.ResponseWriter
	control http.ResponseController
	// Flushes reports whether each piece is to reach the client at once.
	Flushes bool
	limit   WriteLimit
	conn    net.Conn // nil if it is unknown
	sent    int
	// unsentLimited reports whether [limitUnsent] was called.
	unsentLimited bool

	// budget is where room is taken for what is held; nil if no room depends on the client.
	budget   *budget.Budget
	held     budget.Held
	leads    *Recording // of which the client is the run's own; nil for any other
	progress *progress  // nil until a write may block
}

// WriteLimit is how long a client may take nothing if others need its room.
type WriteLimit struct {
	Idle time.Duration // 0 for no limit
	// Shared reports whether the connection carries other requests too, as in HTTP/2.
	Shared bool
	// Within is the execution ID of the run that is the client, "" for none.
	Within string
}

var errIdle = errors.New("the client took nothing for client_idle, and others needed its room")

// NewWriter returns a writer to a client. conn is the client's connection, nil if it is unknown.
func NewWriter(w http.ResponseWriter, conn net.Conn, limit WriteLimit) Writer {
	return Writer{Client: w, control: *http.NewResponseController(w), conn: conn, limit: limit}
}

// Lead makes the client the run's own, which holds the room of the run's recording.
func (d *Writer) Lead(b *budget.Budget, r *Recording) {
	d.Hold(b, r)
	d.leads, r.Patience = r, d.limit.Idle
}

// Hold sets what the client holds, until [Writer.Close]: the room of that depends on the client.
func (d *Writer) Hold(b *budget.Budget, held budget.Held) { d.budget, d.held = b, held }

// Close ends [Writer.Hold] and [Writer.Lead]. The handler calls it before it returns.
func (d *Writer) Close() {
	if d.progress != nil {
		d.budget.RemoveClient(d.progress, d.held)
		d.progress = nil
	}
}

// maxWrite is how much is written at a time, in bytes.
const maxWrite = 32 << 10

// maxUnwatched is how much is written that cannot block, in bytes: no more than Go's server buffers until
// the handler returns.
const maxUnwatched = 2 << 10

// Send writes p. It returns an error if the client has disconnected, or was disconnected.
func (d *Writer) Send(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxWrite)
		d.sent += n
		err := d.write(d.Flushes || d.sent > maxUnwatched, func() error {
			_, err := d.Client.Write(p[:n])
			return err
		})
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
	return d.write(true, func() error {
		if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return nil
	})
}

// Inform sends an informational response at once. The caller may change the header afterwards. Over
// HTTP/2, Go's server may then still be reading it, for a stream that was reset; a Content-Length
// makes the server copy the header, to leave that field out.
func (d *Writer) Inform(status int) {
	if d.limit.Shared {
		d.Client.Header()["Content-Length"] = []string{"0"}
	}
	if d.limit.Idle > 0 { // the run waits for it
		p := newProgress(d.Client, d.conn, d.limit)
		_ = p.startWrite()
		defer p.endWrite()
		for _, after := range []time.Duration{d.limit.Idle, d.limit.Idle + resetTimeout} {
			defer time.AfterFunc(after, func() { p.Disconnect(time.Now()) }).Stop()
		}
	}
	d.Client.WriteHeader(status)
}

// write writes to the client. blocks reports whether that may take as long as the client likes.
func (d *Writer) write(blocks bool, write func() error) error {
	if !blocks || d.limit.Idle == 0 || d.held == nil {
		return write()
	}
	if d.progress == nil {
		d.progress = newProgress(d.Client, d.conn, d.limit)
		d.progress.leads = d.leads
		d.budget.AddClient(d.progress, d.held)
	}
	if d.sent >= maxWrite && d.conn != nil && !d.unsentLimited { // a small response saves the call
		d.unsentLimited = true
		limitUnsent(d.conn)
	}
	if err := d.progress.startWrite(); err != nil {
		return err
	}
	defer d.progress.endWrite()
	return write()
}

// Follow writes a recording from its first byte to its end. It returns [Whole] if the client has got all of
// it, else [Cut].
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
