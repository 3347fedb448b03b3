package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// While the slot of the keys moves to another node of a cluster, the time between two attempts grows
// from minTryAgain to maxTryAgain.
const (
	minTryAgain = 10 * time.Millisecond
	maxTryAgain = 250 * time.Millisecond
)

// try makes an attempt. If it gets no reply and the context has not ended, try makes a second attempt
// over another connection, so it must be safe to execute the command twice.
//
// A server that restarts closes the idle connections in the pool, as the store does with those to a
// former master, and with TLS go-redis does not notice. Then the attempts go on until all of these
// connections are used up.
//
// While a slot moves from one node to another, a node executes a script only if it has all of the
// script's keys. If neither node has all, the attempts go on until the slot has moved.
func try(ctx context.Context, attempt func() error) error {
	err := attempt()
	for n := 0; mayRetry(err, n) && ctx.Err() == nil; n++ {
		next := attempt()
		if errors.As(next, new(*unsentError)) {
			return err // the first error is more precise
		}
		err = next
	}
	for pause := minTryAgain; hasCode(err, "TRYAGAIN"); pause = min(2*pause, maxTryAgain) {
		select {
		case <-time.After(pause):
			err = attempt()
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// mayRetry reports whether another attempt may help after an error and n retries.
func mayRetry(err error, n int) bool {
	if isPlain(err) || errors.Is(err, errAbandoned) || errors.As(err, new(*unsentError)) {
		return false // a flush may still use the value of an abandoned command
	}
	isDial := errors.As(err, new(*dialError))
	demoted := !isDial && (errors.Is(err, errReplica) || hasCode(err, "READONLY"))
	closed := isClosed(err) || errors.Is(err, net.ErrClosed) // by the server, or by closeOpen
	return n == 0 && (demoted || connectionFailed(err)) || n < poolSize && !isDial && closed
}

// connectionFailed reports whether there was no reply because the connection failed. A reply that
// violates the protocol does not count.
func connectionFailed(err error) bool {
	if isPlain(err) || answered(err) {
		return false
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// isClosed reports whether the server closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isRedirect reports whether the cluster client may find another node for a command with this error.
func (s *Store) isRedirect(err error) bool {
	if !s.options.clustered() || isPlain(err) {
		return false
	}
	// go-redis closes the client of a node that has left the cluster.
	return hasCode(err, "MOVED") || hasCode(err, "ASK") || hasCode(err, "CLUSTERDOWN") || errors.Is(err, goredis.ErrClosed)
}

// send sends a command over the pipe of its server, without a retry. See [pipe.send].
func (s *Store) send(ctx context.Context, name string, c *request) error {
	node, err := s.nodeOf(ctx, name)
	if err != nil {
		return err
	}
	return s.pipes.to(target{node: node}).send(ctx, c)
}

// runScript runs a script on a record, without a retry.
func (s *Store) runScript(ctx context.Context, script *script, keys []string, args ...any) (reply, error) {
	node, err := s.nodeOf(ctx, keys[0])
	if err != nil {
		return reply{}, err
	}
	return s.runScriptAt(ctx, target{node: node}, script, keys, nil, args...)
}

// runScriptAt runs a script by its hash, and by its text if the server does not know the hash. It
// follows redirects of a cluster. It calls prepare, unless that is nil, with each command before it sends
// the command.
func (s *Store) runScriptAt(ctx context.Context, to target, script *script, keys []string, prepare func(*request), args ...any) (reply, error) {
	p := s.pipes.to(to)
	var sent *request
	var err error
	for _, byText := range []bool{false, true} {
		build := func() *request {
			c := newScriptRequest(ctx, script, byText, keys, args...)
			if prepare != nil {
				prepare(c)
			}
			return c
		}
		sent = build()
		if err = p.send(ctx, sent); s.isRedirect(err) {
			sent = build()
			sent.setTimes(&p.clock)
			err = s.client.Process(ctx, sent)
		}
		if !hasCode(err, "NOSCRIPT") {
			break
		}
	}
	if err != nil {
		return reply{}, readError(keys[0], err)
	}
	return readReply(keys[0], sent)
}
