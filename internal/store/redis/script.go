package redis

import (
	"crypto/sha1" // Redis names scripts by it
	_ "embed"     // for the scripts
	"encoding/hex"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
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
	//go:embed free.lua
	freeSource string

	claimScript = newScript(headSource + claimSource)
	renewScript = newScript(headSource + renewSource)
	// renewFullScript is renewScript for a server without memory: a renewal takes none. Not
	// every server that speaks the protocol of Redis knows its first line.
	renewFullScript = newScript("#!lua flags=allow-oom\n" + headSource + renewSource)
	settleScript    = newScript(settleSource)
	lookupScript    = newScript(headSource + lookupSource)
	forgetScript    = newScript(headSource + forgetSource)
	freeScript      = newScript(headSource + freeSource)
)

// script is the source of a script, and its SHA-1 in hex, by which the server knows it.
type script struct{ source, hash string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, hash: hex.EncodeToString(sum[:])}
}

// The words with which the replies of the scripts begin.
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
	replyInFlight   = "in flight"
	replyNotOurs    = "not ours"
	replyOverdue    = "overdue"
)

// reply is what a script returns: a word, the server's time in ms, and the rest. The reply of
// settle.lua is only the word.
type reply struct {
	word string
	now  int64
	rest []any
}

// readReply takes a script's reply.
func readReply(key string, command *goredis.Cmd) (reply, error) {
	value, err := command.Result()
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
	return answer, nil
}

// scriptReply reads what the scripts return. It is not ok for other replies.
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

// value returns the value in the reply, whose rest must have that many parts.
func (r reply) value(parts int) ([]byte, bool) {
	if len(r.rest) != parts {
		return nil, false
	}
	value, ok := r.rest[0].(string)
	return []byte(value), ok
}

// unexpectedReply returns the error for a reply that none of the scripts makes.
func unexpectedReply(key string, value any) error {
	text := fmt.Sprintf("%v", value)
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return unreadable(key, "the server answers %q, which no script of caddy-dedup does", text)
}

func (r reply) unexpected(key string) error {
	return unexpectedReply(key, append([]any{r.word, r.now}, r.rest...))
}
