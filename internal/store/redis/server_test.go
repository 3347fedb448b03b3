package redis

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// named are the names in Redis of a store without a prefix of its own.
var named = names{DefaultPrefix}

// generous is a timeout that a busy machine does not run into.
const generous = 10 * time.Second

func openAt(t testing.TB, address string) *Store {
	t.Helper()
	return openWith(t, Options{Addresses: []string{address}, Timeout: generous})
}

func openWith(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// command sends a command of the test's own and returns its reply.
func command(t testing.TB, server *redistest.Server, args ...any) any {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	reply, err := c.Do(context.Background(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// calls returns how often the server executed each command, those in scripts
// included.
func calls(t testing.TB, server *redistest.Server) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for line := range strings.Lines(command(t, server, "INFO", "commandstats").(string)) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		number, _, _ := strings.Cut(rest, ",")
		if n, err := strconv.Atoi(number); err == nil {
			counts[name] = n
		}
	}
	return counts
}

// writable are the parts of a value, for tests that look at one or change it.
type writable struct {
	form, state, revision, lease, expiry, token, channels, earlier, record, response string
}

// valueOf returns what Redis has of a key.
func valueOf(t testing.TB, server *redistest.Server, key idempotency.Key) writable {
	t.Helper()
	return readWritable(t, command(t, server, "GET", named.record(key)).(string))
}

func readWritable(t testing.TB, v string) writable {
	t.Helper()
	p := writable{form: v[:2], state: v[2:3], revision: v[3:13], lease: v[13:26], expiry: v[26:39]}
	rest := v[56:]
	for _, part := range []struct {
		to     *string
		length string
	}{{&p.token, v[39:42]}, {&p.channels, v[42:47]}, {&p.earlier, v[47:50]}, {&p.record, v[50:56]}} {
		n, err := strconv.Atoi(part.length)
		if err != nil || n > len(rest) {
			t.Fatalf("a value %q", v)
		}
		*part.to, rest = rest[:n], rest[n:]
	}
	p.response = rest
	return p
}

func (p writable) String() string {
	return p.form + p.state + p.revision + p.lease + p.expiry +
		fmt.Sprintf("%03d%05d%03d%06d", len(p.token), len(p.channels), len(p.earlier), len(p.record)) +
		p.token + p.channels + p.earlier + p.record + p.response
}

// rewrite changes what Redis has of a key.
func rewrite(t testing.TB, server *redistest.Server, key idempotency.Key, change func(*writable)) {
	t.Helper()
	p := valueOf(t, server, key)
	change(&p)
	command(t, server, "SET", named.record(key), p.String(), "KEEPTTL")
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30s: %s", what)
		}
	}
}

func keyOf(name string) idempotency.Key { return sha256.Sum256([]byte(name)) }

func claimOf(name, token string) idempotency.Claim {
	return idempotency.Claim{
		Key: keyOf(name), Token: token, ExecutionID: "execution of " + token,
		Terms: idempotency.Terms{Lease: time.Hour, Retention: 24 * time.Hour},
	}
}

func mustClaim(t testing.TB, s *Store, c idempotency.Claim, want idempotency.Verdict) idempotency.Claimed {
	t.Helper()
	claimed, err := s.Claim(context.Background(), c)
	if err != nil {
		t.Fatalf("claim %s: %v", c.Token, err)
	}
	if claimed.Verdict != want {
		t.Fatalf("claim %s: verdict %v, want %v", c.Token, claimed.Verdict, want)
	}
	return claimed
}

func mustSettle(t testing.TB, s *Store, c idempotency.Claim, claimed *idempotency.Record, settlement idempotency.Settlement) {
	t.Helper()
	if err := s.Settle(context.Background(), c.Key, claimed, settlement); err != nil {
		t.Fatalf("settle %s: %v", c.Token, err)
	}
}

func mustBeWoken(t testing.TB, woken <-chan idempotency.Key, want idempotency.Key) {
	t.Helper()
	select {
	case got := <-woken:
		if got != want {
			t.Fatalf("woken for %s, want %s", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("not woken within 30s")
	}
}

// kept is a settlement with a body of n bytes; more than 8 KiB lie beside the
// record.
func kept(n int) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: 24 * time.Hour,
		Response: &idempotency.Response{Status: 201, Body: fmt.Appendf(nil, "%0*d", n, n)},
	}
}

const (
	small = 100
	large = 64 << 10
)

func released() idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Released, Counted: true, Retention: 24 * time.Hour, AnswerFor: time.Hour,
		Response: &idempotency.Response{Status: 503, Body: []byte("busy")},
	}
}
