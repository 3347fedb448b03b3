package redis

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// fake is a server in this process. In a bubble of synctest, it and its stores have one clock, which moves when
// all wait.
type fake struct{ *miniredis.Miniredis }

// inBubble runs a test with a fake server.
func inBubble(t *testing.T, test func(t *testing.T, server fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake{miniredis.NewMiniRedis()}
		server.ClockTTL(true)
		t.Cleanup(func() {
			time.Sleep(time.Minute) // for what is under way when a store is closed
			synctest.Wait()
			server.Close()
		})
		for _, s := range []*script{claimScript, renewScript, settleScript, lookupScript, forgetScript, changeScript} {
			server.do("script", "load", s.source)
		}
		test(t, server)
	})
}

// open opens a store over a link of its own. Its connections are idle, and it has learned the time. With TLS in its
// options, nothing shows that an idle connection was closed.
func (f fake) open(t *testing.T, o Options) (*Store, *link) {
	t.Helper()
	l := &link{dialServer: dialMini(f.Miniredis), tls: o.TLS != nil}
	t.Cleanup(l.cut)
	o.Addresses, o.dial = []string{"pipe:1"}, l.dial
	s := openWith(t, o)
	warm(t, s)
	f.Del(named.record(keyOf("warm")))
	return s, l
}

// on has the server ask a function about each command and its arguments: what to answer instead, and whether to hang
// up then.
func (f fake) on(ask func(command string, args ...string) (reply string, answers, hangsUp bool)) {
	f.Server().SetPreHook(func(peer *miniserver.Peer, command string, args ...string) bool {
		reply, answers, hangsUp := ask(strings.ToLower(command), args...)
		if !answers {
			return false
		}
		peer.WriteRaw(reply)
		if hangsUp {
			peer.Flush()
			peer.Close()
		}
		return true
	})
}

// answer has the server answer commands with something else, a reply as it is sent, until the returned function is
// called.
func (f fake) answer(reply string, commands ...string) (stop func()) {
	f.on(func(command string, _ ...string) (string, bool, bool) {
		return reply, slices.Contains(commands, command), false
	})
	return func() { f.Server().SetPreHook(nil) }
}

// fault is what happens to a write, which has the commands of one flush.
type fault int

const (
	noFault   fault = iota
	loseReply       // the server executes it, and the connection is closed before its reply
	hang            // the server gets it when it resumes
	reset           // the server closes the connection
)

// link is the network between a store and its server.
type link struct {
	dialServer dialFunc
	// at says what happens to a write. It may do something before that.
	at    atomic.Pointer[func(sent string) fault]
	down  atomic.Bool  // connections are refused
	tls   bool         // nothing shows that an idle connection was closed
	delay atomic.Int64 // of each reply, in ns
	dials atomic.Int64
	// dialed is called after a dial; nil for nothing.
	dialed func()
	// cutting closes connections within replies; nil for none.
	cutting atomic.Pointer[cutting]

	mu    sync.Mutex
	conns []*linkConn
	held  []func() // what the server gets when it resumes
}

// linkTo returns a link to a server of its own process.
func linkTo(t testing.TB, server *redistest.Server) *link {
	l := new(link)
	l.leadTo(server)
	t.Cleanup(l.cut)
	return l
}

// leadTo makes new connections lead to another server, as a virtual address or a name may do. Existing ones stay.
func (l *link) leadTo(server *redistest.Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dialServer = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTCP(ctx, "tcp", server.Addr) }
}

// set sets what happens to each write; nil is nothing.
func (l *link) set(at func(sent string) fault) {
	if at == nil {
		at = func(string) fault { return noFault }
	}
	l.at.Store(&at)
}

// setFor sets what happens to a write with a command, or with the hash of a script, the first n times.
func (l *link) setFor(command string, n int, at func() fault) { l.setAfter(0, command, n, at) }

// setAfter is setFor, without the first writes.
func (l *link) setAfter(skipped int, command string, n int, at func() fault) {
	var seen atomic.Int64
	l.set(func(sent string) fault {
		if !strings.Contains(sent, "\r\n"+command+"\r\n") {
			return noFault
		}
		if i := int(seen.Add(1)) - skipped; i < 1 || n >= 0 && i > n {
			return noFault
		}
		return at()
	})
}

// pause has the server hang.
func (l *link) pause() { l.set(func(string) fault { return hang }) }

// resume ends all faults. The server gets what was written meanwhile.
func (l *link) resume() {
	l.set(nil)
	l.down.Store(false)
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, deliver := range held {
		deliver()
	}
}

// refuse closes all connections and refuses new ones.
func (l *link) refuse() {
	l.down.Store(true)
	l.cut()
}

// cut closes all connections, as the server does.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.closed.Store(true)
		_ = c.Conn.Close()
	}
	l.conns = nil
}

// vanish makes all connections silent, without closing them.
func (l *link) vanish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.silent.Store(true)
	}
}

func (l *link) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.dials.Add(1)
	if l.dialed != nil {
		defer l.dialed()
	}
	if l.down.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	l.mu.Lock()
	dial := l.dialServer
	l.mu.Unlock()
	conn, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: conn, link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if l.tls {
		return struct{ net.Conn }{c}, nil
	}
	return c, nil
}

// cutting closes a connection after so many bytes of replies, so many times.
type cutting struct {
	bytes       int64
	left, times atomic.Int64
}

// cutAfter closes a connection after so many bytes of replies, so many times. The server has executed the command.
func (l *link) cutAfter(bytes, times int64) *cutting {
	c := &cutting{bytes: bytes}
	c.left.Store(bytes)
	c.times.Store(times)
	l.cutting.Store(c)
	return c
}

type linkConn struct {
	net.Conn
	link *link
	// lost reports whether its next reply is lost, held whether the server still has to get something, gone whether the
	// store has closed it meanwhile, and closed whether the server has closed it.
	lost, held, gone, closed atomic.Bool
	silent                   atomic.Bool // nothing gets through
	// wrote is the time of the last write, and readBy the deadline of reads, in ns; 0 for none.
	wrote, readBy atomic.Int64
	// buffer is the size of the send buffer, 0 for that of the kernel, largest the size of the largest write, and taken
	// how many bytes of a closed connection the kernel has taken.
	buffer, largest, taken atomic.Int64
}

func (c *linkConn) SetWriteBuffer(bytes int) error {
	c.buffer.Store(int64(bytes))
	return nil
}

func (c *linkConn) Write(b []byte) (int, error) {
	c.wrote.Store(time.Now().UnixNano())
	c.largest.Store(max(c.largest.Load(), int64(len(b))))
	what := noFault
	if c.silent.Load() {
		return len(b), nil
	}
	if at := c.link.at.Load(); at != nil && !c.closed.Load() {
		what = (*at)(string(b))
	}
	if what == reset {
		c.closed.Store(true)
		_ = c.Conn.Close()
	}
	if c.closed.Load() {
		if c.taken.Add(int64(len(b))) > sendBuffer {
			return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}
		}
		return len(b), nil
	}
	if what == noFault && c.held.Load() {
		what = hang // as what was written before
	}
	switch what {
	case loseReply:
		c.lost.Store(true)
	case hang:
		sent := bytes.Clone(b)
		c.held.Store(true)
		c.link.mu.Lock()
		defer c.link.mu.Unlock()
		c.link.held = append(c.link.held, func() { c.deliver(sent) })
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *linkConn) Read(b []byte) (int, error) {
	cut := c.link.cutting.Load()
	if cut != nil && cut.times.Load() > 0 {
		b = b[:min(int64(len(b)), max(1, cut.left.Load()))]
	} else {
		cut = nil
	}
	n, err := c.Conn.Read(b)
	for err == nil && c.silent.Load() {
		n, err = c.Conn.Read(b)
	}
	arrives, deadline := c.wrote.Load()+c.link.delay.Load(), c.readBy.Load()
	if deadline > 0 && arrives > deadline {
		n, err, arrives = 0, os.ErrDeadlineExceeded, deadline
	}
	time.Sleep(time.Until(time.Unix(0, arrives)))
	if err != nil && (c.closed.Load() || errors.Is(err, io.ErrClosedPipe)) {
		err = io.EOF
	}
	if err != nil {
		return n, err
	}
	isCut := cut != nil && cut.left.Add(-int64(n)) < 0
	if isCut {
		cut.left.Store(cut.bytes)
		cut.times.Add(-1)
	}
	if isCut || c.lost.Load() {
		time.Sleep(time.Millisecond) // until the server has executed the whole flush, of which this may be the first reply
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, nil
}

// SetDeadline, SetReadDeadline and SetWriteDeadline fail only for a pipe that the other end has closed, which a socket
// does not notice by them.
func (c *linkConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *linkConn) SetReadDeadline(t time.Time) error {
	c.readBy.Store(max(0, t.UnixNano()))
	_ = c.Conn.SetReadDeadline(t)
	return nil
}

func (c *linkConn) SetWriteDeadline(t time.Time) error {
	_ = c.Conn.SetWriteDeadline(t)
	return nil
}

// SyscallConn implements [syscall.Conn]. By it, go-redis sees that an idle connection was closed.
func (c *linkConn) SyscallConn() (syscall.RawConn, error) {
	if c.closed.Load() || c.gone.Load() {
		return nil, io.EOF
	}
	return openConn{}, nil
}

type openConn struct{ syscall.RawConn }

func (openConn) Read(func(fd uintptr) bool) error { return nil }

// Close leaves the connection to a server that hangs open: it reads what was sent when it resumes. With TLS, it fails
// if the server has closed the connection: it cannot send its close_notify.
func (c *linkConn) Close() error {
	c.gone.Store(true)
	if c.link.tls && c.closed.Load() {
		return &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	}
	if c.held.Load() {
		return c.Conn.SetReadDeadline(time.Now())
	}
	return c.Conn.Close()
}

// deliver sends what the server gets late.
func (c *linkConn) deliver(sent []byte) {
	if c.gone.CompareAndSwap(true, false) { // the replies are not read
		_ = c.Conn.SetReadDeadline(time.Time{})
		go func() { _, _ = io.Copy(io.Discard, c.Conn) }()
	}
	c.held.Store(false)
	_, _ = c.Conn.Write(sent)
}

// do sends a command, and waits for its reply.
func (f fake) do(words ...string) {
	conn, err := f.Dial()
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write(appendCommand(nil, words...))
	_, _ = conn.Read(make([]byte, 100))
}
