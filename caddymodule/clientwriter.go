package caddymodule

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// clientWriter writes a recording to one client, at that client's pace.
type clientWriter struct {
	client  http.ResponseWriter
	control *http.ResponseController
	// idle is how long the client may take nothing; 0 leaves that to the server's own
	// timeouts.
	idle time.Duration
	// flushes says that each piece is to reach the client at once.
	flushes bool
	// conn is the client's connection, nil where nobody says, or when it was seen to.
	conn net.Conn
	sent int
	// limited says that the connection has a deadline of ours.
	limited bool
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// keepConns has a server tell the handlers of its requests which connection they came on.
func keepConns(ctx context.Context) {
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return
	}
	server.RegisterConnContext(func(ctx context.Context, conn net.Conn) context.Context {
		if ctx.Value(connKey{}) != nil { // by another handler
			return ctx
		}
		return context.WithValue(ctx, connKey{}, conn)
	})
}

// newClientWriter returns a delivery to a client. Where the server has a limit of its own for
// writing, that one counts.
func newClientWriter(w http.ResponseWriter, r *http.Request, idle time.Duration) *clientWriter {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		idle = 0
	}
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	return &clientWriter{client: w, control: http.NewResponseController(w), idle: idle, conn: conn}
}

// piece is how much is written at a time: what the client has to take within idle.
const piece = 32 << 10

// mostUnlimited is how much is written without a deadline, in bytes: no more than Go's
// server holds back until the handler has returned.
const mostUnlimited = 2 << 10

// write writes bytes. The error says that the client is gone, or took nothing for too
// long.
func (d *clientWriter) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		if d.sent += n; d.sent >= piece && d.conn != nil { // a small response is spared the call
			limitUnsent(d.conn)
			d.conn = nil
		}
		if d.flushes || d.sent > mostUnlimited {
			d.setDeadline()
		}
		if _, err := d.client.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	if d.flushes {
		return d.flush()
	}
	return nil
}

func (d *clientWriter) flush() error {
	d.setDeadline()
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// setDeadline limits the next write. Where none can be set the server's own timeouts
// apply.
func (d *clientWriter) setDeadline() {
	if d.idle > 0 {
		d.limited = true
		_ = d.control.SetWriteDeadline(time.Now().Add(d.idle))
	}
}

// done leaves the connection without a deadline of ours, for the next request on it.
func (d *clientWriter) done() {
	if d.limited {
		d.limited = false
		_ = d.control.SetWriteDeadline(time.Time{})
	}
}

// follow writes a recording from its first byte to its end. It reports how that was:
// whole, or cut for whatever reason.
func (d *clientWriter) follow(ctx context.Context, rd *reader) recordingState {
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.write(shown); err != nil {
				return cut
			}
			rd.took(len(shown))
			continue
		}
		if state == whole || state == cut {
			return state
		}
		d.done() // HTTP/2 resets a stream whose deadline passes, even if nothing is written
		select {
		case <-changed:
		case <-ctx.Done():
			return cut
		}
	}
}
