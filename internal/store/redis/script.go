package redis

import (
	"crypto/sha1" // Redis names scripts by it
	_ "embed"     // for the scripts
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

var (
	//go:embed head.lua
	headSource string
	//go:embed claim.lua
	claimSource string
	//go:embed renew.lua
	renewSource string
	//go:embed settle.lua
	settleSource string
	//go:embed lookup.lua
	lookupSource string
	//go:embed forget.lua
	forgetSource string
	//go:embed change.lua
	changeSource string

	claimScript = newScript(headSource + claimSource)
	renewScript = newScript(headSource + renewSource)
	// renewFullScript is renewScript for a server that is out of memory: a renewal needs none. It
	// is a separate script, because not every server that speaks the protocol of Redis knows its
	// first line.
	renewFullScript = newScript("#!lua flags=allow-oom\n" + headSource + renewSource)
	settleScript    = newScript(settleSource)
	lookupScript    = newScript(headSource + lookupSource)
	forgetScript    = newScript(headSource + forgetSource)
	changeScript    = newScript(headSource + changeSource)
)

// script is the source of a script, with its SHA-1 in hex, which identifies it on the server.
type script struct{ source, hash string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, hash: hex.EncodeToString(sum[:])}
}

// The first words of the replies of the scripts.
const (
	replyOK         = "ok"
	replyClaimed    = "claimed"
	replyFound      = "found"
	replyAbsent     = "absent"
	replySettled    = "settled"
	replyFenced     = "fenced"
	replyNoResponse = "no response"
	replyChanged    = "changed"
	replyForeign    = "foreign"
	replyOverdue    = "overdue"
)

// reply is what a script returns: a word, the server's time in ms, and the rest. The reply of
// settle.lua is only the word.
type reply struct {
	word string
	now  int64
	rest []any
	// replicas is [request.replicas].
	replicas int64
}

// readReply reads the reply of a script.
func readReply(key string, sent *request) (reply, error) {
	value, err := sent.Result()
	if err != nil {
		return reply{}, readError(key, err)
	}
	answer, ok := scriptReply(value)
	if !ok {
		return reply{}, unexpectedReply(key, value)
	}
	if answer.word == replyForeign {
		return reply{}, unreadable(key, "%w", errNotOurs)
	}
	answer.replicas = sent.replicas
	return answer, nil
}

// scriptReply reads a reply in the form that the scripts return. ok is false for other replies.
func scriptReply(value any) (answer reply, ok bool) {
	if word, ok := value.(string); ok {
		switch word {
		case replyOK, replySettled, replyFenced, replyAbsent, replyNoResponse, replyForeign:
			return reply{word: word}, true
		}
		return reply{}, false
	}
	values, _ := value.([]any)
	if len(values) < 2 {
		return reply{}, false
	}
	word, isWord := values[0].(string)
	now, isTime := values[1].(int64)
	return reply{word: word, now: now, rest: values[2:]}, isWord && isTime
}

var (
	// errNoResponse is the error if a script does not find the body that was written before it ran.
	errNoResponse = errors.New("the response, written a moment ago, is missing: the server evicts keys, or hung")
	// errOverdue is the error if a script refuses to run because its deadline has passed.
	errOverdue = errors.New("the command reached the server too late, or the server's clock jumps")
)

// err returns the error that the word of a reply means, nil if the script has done its work.
func (r reply) err(key string) error {
	switch r.word {
	case replyOK, replySettled:
		return nil
	case replyFenced:
		return idempotency.ErrFenced
	case replyAbsent:
		return idempotency.ErrGone
	case replyNoResponse:
		return errNoResponse
	case replyOverdue:
		return errOverdue
	default:
		return r.unexpected(key)
	}
}

// value returns the value in a reply that has found one.
func (r reply) value(key string) ([]byte, error) {
	if r.word == replyFound && len(r.rest) == 1 {
		if value, ok := r.rest[0].(string); ok {
			return []byte(value), nil
		}
	}
	return nil, r.unexpected(key)
}

// unexpectedReply returns the error for a reply that no script returns.
func unexpectedReply(key string, value any) error {
	text := fmt.Sprintf("%v", value)
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return unreadable(key, "the server answered %q, which no script of caddy-dedup returns", text)
}

func (r reply) unexpected(key string) error {
	return unexpectedReply(key, append([]any{r.word, r.now}, r.rest...))
}
