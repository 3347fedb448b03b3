package redis

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// answerError is an error that a server answers.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

// A server that refuses every command, or does not answer, refuses no write.
func TestServerThatIsUnavailableRefusesNoWrite(t *testing.T) {
	s := closeAtEnd(t, openAt(t, "127.0.0.1:1"))
	for _, c := range []struct {
		err  error
		want bool
	}{
		{answerError("OOM command not allowed when used memory > 'maxmemory'."), true},
		{answerError("READONLY You can't write against a read only replica."), true},
		{answerError("NOPERM User u has no permissions to run the 'set' command"), true},
		{answerError("ERR max request size exceeded"), true},
		{answerError("LOADING Redis is loading the dataset in memory"), false},
		{answerError("CLUSTERDOWN The cluster is down"), false},
		{answerError("NOAUTH Authentication required."), false},
		{&dialError{err: answerError("OOM")}, false},
		{io.EOF, false},
		{context.DeadlineExceeded, false},
		{errReplica, false},
		{unreadable("dedup:one", "it is cut off"), false},
	} {
		if _, got := errors.AsType[*idempotency.RefusedError](s.fail("claim", c.err)); got != c.want {
			t.Errorf("%v is a refused write: %v, want %v", c.err, got, c.want)
		}
	}
}
