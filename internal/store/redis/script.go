package redis

import (
	"context"
	_ "embed" // for the scripts
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

var (
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

	claimScript  = goredis.NewScript(claimSource)
	renewScript  = goredis.NewScript(renewSource)
	settleScript = goredis.NewScript(settleSource)
	lookupScript = goredis.NewScript(lookupSource)
	forgetScript = goredis.NewScript(forgetSource)
	freeScript   = goredis.NewScript(freeSource)
)

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
	replyOverdue    = "overdue"
)

// reply is what a script returns: a word, the server's time in ms, and the rest.
type reply struct {
	word string
	now  int64
	rest []any
}

// tryAgainPause is the time between two attempts while the slot of the keys moves to
// another node of a cluster.
const tryAgainPause = 10 * time.Millisecond

// try makes an attempt. If that got no reply and there is time left, it makes a second
// one, on another connection. So the command must be one that may be executed twice.
//
// While a slot moves from one node to another, a node executes a script only if it has
// all of its keys. Where neither has, the attempts go on until the slot has moved.
func try(ctx context.Context, attempt func() error) error {
	err := attempt()
	if connectionFailed(err) && ctx.Err() == nil {
		err = attempt()
	}
	for hasCode(err, "TRYAGAIN") {
		select {
		case <-time.After(tryAgainPause):
			err = attempt()
		case <-ctx.Done():
			return err
		}
	}
	return err
}

// runScript runs a script on a record, without a retry.
func (s *Store) runScript(ctx context.Context, script *goredis.Script, keys []string, args ...any) (reply, error) {
	command := script.EvalSha(ctx, s.client, keys, args...)
	if hasCode(command.Err(), "NOSCRIPT") {
		// The server restarted, failed over, or was told to forget its scripts.
		command = script.Eval(ctx, s.client, keys, args...)
	}
	return readReply(keys[0], command)
}

// readReply takes a script's reply.
func readReply(key string, command *goredis.Cmd) (reply, error) {
	value, err := command.Result()
	if hasCode(err, "WRONGTYPE") {
		return reply{}, unreadable(key, "it is no hash, so it was not written by caddy-dedup")
	}
	if err != nil {
		return reply{}, err
	}
	word, now, ok := scriptReply(value)
	if !ok {
		return reply{}, unexpectedReply(key, value)
	}
	if word == replyForeign {
		return reply{}, unreadable(key, "%w", errNotOurs)
	}
	return reply{word: word, now: now, rest: value.([]any)[2:]}, nil
}

// scriptReply reads what all replies of our scripts begin with. It is not ok for
// other replies.
func scriptReply(value any) (word string, now int64, ok bool) {
	values, _ := value.([]any)
	if len(values) < 2 {
		return "", 0, false
	}
	word, isWord := values[0].(string)
	now, isTime := values[1].(int64)
	return word, now, isWord && isTime
}

// unexpectedReply returns the error for a reply that none of our scripts makes.
func unexpectedReply(key string, value any) error {
	text := fmt.Sprintf("%v", value)
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return unreadable(key, "the server answers %q, which no script of caddy-dedup does", text)
}

func (r reply) unexpectedReply(key string) error {
	return unexpectedReply(key, append([]any{r.word, r.now}, r.rest...))
}
