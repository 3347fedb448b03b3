package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Some servers end a new connection at once. What they say then, or how they end it, is all
// that tells the reason. go-redis takes the first thing that a server says for the reply to
// its HELLO, goes on without HELLO, and then has nothing to tell but a connection that is
// gone.

// refusals begin what Redis says before it hangs up on whoever has connected: it has as many
// clients as it may have, or it is in protected mode.
var refusals = []string{"-ERR max number of clients", "-DENIED "}

// longestRefusal is how much of it is told: protected mode explains at length what to do.
const longestRefusal = 160

// refusal returns an error if a server says first that it takes no connection. No command
// was executed.
func refusal(said []byte) error {
	isOne := func(begin string) bool { return bytes.HasPrefix(said, []byte(begin)) }
	if !slices.ContainsFunc(refusals, isOne) {
		return nil
	}
	line, _, _ := strings.Cut(string(said[1:min(len(said), longestRefusal)]), "\r\n")
	// Twice, as in [contact.DialHook].
	return &dialError{&dialError{fmt.Errorf("the server takes no connection: %s", line)}}
}

// hungUp returns the error for a connection in the clear that ended before the server has said
// anything. Also here go-redis takes one off.
func hungUp(err error) error {
	if isTimeout(err) {
		return err
	}
	return fmt.Errorf("%w", fmt.Errorf("the server hung up before it said anything; if it wants TLS, set tls or rediss://: %w", err))
}

// unshaken returns the error for a TLS handshake that has failed. A server in the clear waits
// for the end of a line, which does not come.
func unshaken(err error) error {
	if !isTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("the server does not answer the TLS handshake; it may have no TLS at this port: %w", err)
}
