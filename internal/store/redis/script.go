package redis

import (
	"context"
	"crypto/sha1" // Redis names scripts by it
	_ "embed"     // for the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

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
	//go:embed free.lua
	freeSource string

	claimScript = scriptOf(headSource + claimSource)
	renewScript = scriptOf(headSource + renewSource)
	// renewFullScript does the same on a server without room: a renewal takes none. Not
	// every server that speaks the protocol of Redis knows the first line.
	renewFullScript = scriptOf("#!lua flags=allow-oom\n" + headSource + renewSource)
	settleScript    = scriptOf(settleSource)
	lookupScript    = scriptOf(headSource + lookupSource)
	forgetScript    = scriptOf(headSource + forgetSource)
	freeScript      = scriptOf(headSource + freeSource)
)

// script is the text of a script and its SHA-1 in hex, by which the server knows it. The
// argument is the hash.
type script struct {
	source, hash string
	argument     any
}

func scriptOf(source string) *script {
	sum := sha1.Sum([]byte(source))
	hash := hex.EncodeToString(sum[:])
	return &script{source: source, hash: hash, argument: hash}
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

// reply is what a script returns: a word, the server's time in ms, and the rest. The
// reply to settle.lua is the word alone.
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
	if connectionFailed(err) && idempotency.EndOf(ctx) == nil {
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

// send has a command on a record executed, in a flush together with others, without a
// retry. doubt is that of [flushes.send]. With doubt or an error of the context, the
// command itself must not be looked at.
//
// Where the server says that it is not the one, the command that again makes goes by
// go-redis's own way, which finds the right one.
func (s *Store) send(ctx context.Context, name string, c *request, again func() *request) (sent *request, doubt bool, err error) {
	server, err := s.serverOf(ctx, name)
	if err != nil {
		return c, false, err
	}
	doubt, err = s.flushes.send(ctx, server, c)
	if again == nil || !s.elsewhere(err) {
		return c, doubt, err
	}
	c = again()
	err = s.client.Process(ctx, c)
	return c, doubt || c.doubt, err
}

// serverOf returns the client for the server that has the record of this name.
func (s *Store) serverOf(ctx context.Context, name string) (*goredis.Client, error) {
	switch c := s.client.(type) {
	case *goredis.Client:
		return c, nil
	case *goredis.ClusterClient:
		return c.MasterForKey(ctx, name)
	default:
		return nil, fmt.Errorf("a client of the type %T", c)
	}
}

// elsewhere reports whether another server may take a command that got this error.
//
// One that is read-only now was a master when it was dialed. In a pipeline, go-redis
// keeps the connection to it; with a single command it drops it and dials again.
func (s *Store) elsewhere(err error) bool {
	if hasCode(err, "READONLY") {
		return true
	}
	if !s.options.clustered() {
		return false
	}
	// Where a node leaves the cluster, go-redis closes the client of that node.
	return hasCode(err, "MOVED") || hasCode(err, "ASK") || hasCode(err, "CLUSTERDOWN") || errors.Is(err, goredis.ErrClosed)
}

// runScript runs a script on a record, without a retry. arm, if it is not nil, gets
// each command before it is sent.
func (s *Store) runScript(ctx context.Context, run *script, keys []string, arm func(*request), args ...any) (answer reply, sent *request, doubt bool, err error) {
	return s.runBuilt(ctx, keys[0], func(byText bool) *request {
		c := newScript(ctx, run, byText, keys, args...)
		if arm != nil {
			arm(c)
		}
		return c
	})
}

// runBuilt is runScript for commands that the caller builds, each for one attempt.
func (s *Store) runBuilt(ctx context.Context, name string, build func(byText bool) *request) (answer reply, sent *request, doubt bool, err error) {
	for _, byText := range []bool{false, true} {
		var doubted bool
		again := func() *request { return build(byText) }
		sent, doubted, err = s.send(ctx, name, again(), again)
		doubt = doubt || doubted
		if !hasCode(err, "NOSCRIPT") {
			break
		}
		// The server restarted, failed over, or was told to forget its scripts.
	}
	if err != nil {
		return reply{}, sent, doubt, readError(name, err)
	}
	answer, err = readReply(name, &sent.Cmd)
	return answer, sent, doubt, err
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

// readError returns the error for one that a command on a record got.
func readError(key string, err error) error {
	if hasCode(err, "WRONGTYPE") {
		return unreadable(key, "it is no string, so it was not written by caddy-dedup")
	}
	return err
}

// scriptReply reads what our scripts return. It is not ok for other replies.
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

// value returns the value in the reply, whose rest must have that many parts.
func (r reply) value(parts int) ([]byte, bool) {
	if len(r.rest) != parts {
		return nil, false
	}
	value, ok := r.rest[0].(string)
	return []byte(value), ok
}
