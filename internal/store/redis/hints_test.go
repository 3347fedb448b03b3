package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// answerError is an error that a server answers.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

// An error of a server becomes one that says what to do, and whether the server refuses this write alone. One that
// refuses every command, or does not answer, refuses no write.
func TestHints(t *testing.T) {
	server := Options{Addresses: []string{"a:1"}}
	cluster, sentinel := Options{Addresses: []string{"a:1"}, Cluster: true}, Options{Addresses: []string{"a:1"}, Sentinel: "main"}
	other := server
	other.Prefix = "other:"
	const needs, renamed = "needs the rules ~dedup:* &dedup:* +evalsha", "rename-command must leave evalsha eval set "
	for _, test := range []struct {
		o       Options
		err     error
		hint    string
		refused bool
	}{
		{server, answerError("OOM command not allowed when used memory > 'maxmemory'."), "maxmemory is reached", true},
		{server, answerError("NOPERM User u has no permissions to run the 'set' command"), needs, true},
		{other, answerError("NOPERM User u has no permissions to run the 'set' command"), "needs the rules ~other:* &other:* ", true},
		{server, answerError("ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:1."), needs, true},
		{server, answerError("ERR ACL failure in script: User u has no permissions to run the 'set' command"), needs, true},
		{server, answerError("READONLY You can't write against a read only replica."), "set the address of the master", true},
		{server, errReplica, "set the address of the master", false},
		{sentinel, errReplica, "a failover is under way", false},
		{cluster, answerError("READONLY You can't write against a read only replica."), "a failover is under way", true},
		{server, answerError("MOVED 1 127.0.0.1:7000"), "set cluster", false},
		{server, answerError("ASK 1 127.0.0.1:7000"), "set cluster", false},
		{cluster, answerError("CLUSTERDOWN The cluster is down"), "no master for this key", false},
		{cluster, answerError("ERR This instance has cluster support disabled"), "without cluster", true},
		{server, answerError("ERR syntax error"), "needs Redis 7.0 or newer, or Valkey", true},
		{server, answerError("ERR unknown command 'SET', with args beginning with: 'a'"), "may be a sentinel", true},
		{server, answerError("ERR unknown command 'evalsha', with args beginning with: 'a'"), renamed, true},
		{server, answerError("ERR Unknown Redis command called from script script: f_1, on @user_script:1."), renamed, true},
		{server, answerError("NOAUTH Authentication required."), "set password", false},
		{server, answerError("WRONGPASS invalid username-password pair or user is disabled."), "does not accept the username and password", false},
		{sentinel, &dialError{answerError("WRONGPASS invalid username-password pair or user is disabled.")}, "set sentinel_password", false},
		{sentinel, &dialError{answerError("ERR unknown command 'sentinel'")}, "is not a sentinel", false},
		{server, answerError("ERR max request size exceeded"), "", true},
		{server, answerError("LOADING Redis is loading the dataset in memory"), "", false},
		{server, &dialError{err: answerError("OOM")}, "", false},
		{server, io.EOF, "may require TLS (set tls or rediss://), be in protected mode, or have reached maxclients", false},
		{server, context.DeadlineExceeded, "", false},
		{server, unreadable("dedup:one", "it is cut off"), "", false},
	} {
		s := openWith(t, test.o)
		err := s.fail("claim", test.err)
		_, refused := errors.AsType[*idempotency.RefusedError](err)
		if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.hint) || refused != test.refused {
			t.Errorf("%v becomes %v, a refused write: %v; want %q, %v", test.err, err, refused, test.hint, test.refused)
		}
		if damage := errors.As(test.err, new(*idempotency.UnreadableError)); !damage && !strings.Contains(err.Error(), "a:1") {
			t.Errorf("%v does not have the address", err)
		}
	}
}

// info is a reply to INFO.
func info(fields ...string) string {
	text := strings.Join(fields, "\r\n") + "\r\n"
	return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
}

// A server that cannot be used gets no command of the store: nothing is in doubt, and nothing is damaged.
func TestServersThatCannotBeUsed(t *testing.T) {
	protected := "-DENIED Redis is running in protected mode because protected mode is enabled. " + strings.Repeat("What to do. ", 60) + "\r\n"
	secret := Options{Username: "u", Password: "s3cret"}
	for name, test := range map[string]struct {
		o               Options
		answer, command string // to what of the handshake it answers what
		want            string // in the error
		hangsUp         bool   // after that
	}{
		"an old version":              {command: "info", answer: info("redis_version:6.2.14"), want: "the server is Redis 6.2.14; caddy-dedup needs Redis 7.0 or newer, or Valkey"},
		"a replica":                   {command: "info", answer: info("redis_version:7.0.1", "role:slave", "run_id:1"), want: "set the address of the master, or use sentinel"},
		"another password":            {o: secret, command: "auth", answer: "-WRONGPASS invalid username-password pair or user is disabled.\r\n", want: "log in: WRONGPASS"},
		"no such database":            {o: Options{DB: 99}, command: "select", answer: "-ERR DB index is out of range\r\n", want: "select the database: ERR DB index is out of range"},
		"no Redis":                    {command: "info", answer: "HTTP/1.1 400 Bad Request\r\n", want: "so it is no Redis"},
		"too many clients":            {command: "info", answer: "-ERR max number of clients reached\r\n", want: "reached", hangsUp: true},
		"too many clients, password":  {o: secret, command: "auth", answer: "-ERR max number of clients reached\r\n", want: "log in: ERR max number of clients reached", hangsUp: true},
		"protected mode":              {command: "info", answer: protected, want: "protected mode", hangsUp: true},
		"protected mode, password":    {o: secret, command: "auth", answer: protected, want: "protected mode", hangsUp: true},
		"it loads its data":           {command: "info", answer: "-LOADING Redis is loading the dataset in memory\r\n", want: "LOADING"}, // it may be a replica
		"it is busy":                  {command: "info", answer: "-BUSY Redis is busy running a script.\r\n", want: "BUSY"},
		"it hangs up without a reply": {command: "info", want: "may require TLS", hangsUp: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				l := &link{dialServer: dialMini(server.Miniredis)}
				test.o.Addresses, test.o.dial = []string{"pipe:1"}, l.dial
				s := openWith(t, test.o)
				sets := 0
				server.on(func(command string, _ ...string) (reply string, answers, hangsUp bool) {
					if command == "set" || command == "evalsha" || command == "get" {
						sets++
					}
					return test.answer, command == test.command, test.hangsUp
				})
				claimed, err := s.Claim(ctx, claimOf("a", "token"))
				_, responseErr := s.Response(ctx, keyOf("a"), "token")
				_, _, listErr := s.List(ctx, "", 10)
				for what, err := range map[string]error{"claim": err, "response": responseErr, "list": listErr} {
					if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "pipe:1") || errors.As(err, new(*idempotency.UnreadableError)) {
						t.Errorf("%s: %v; want %q, the address, and nothing that cannot be read", what, err, test.want)
					}
					if err != nil && strings.Contains(err.Error(), "s3cret") {
						t.Errorf("the error shows the password: %v", err)
					}
				}
				if claimed.Record != nil || !test.hangsUp && sets > 0 {
					t.Errorf("in doubt: %+v; %d commands were sent", claimed.Record, sets)
				}
			})
		})
	}
}

// What INFO says of a server decides how it is used, and what is logged of it, once.
func TestInfoOfAServer(t *testing.T) {
	for text, compares := range map[string]bool{
		"redis_version:8.4.0":                                                true,
		"redis_version:10.0.1":                                               true,
		"redis_version:7.0.15":                                               false,
		"redis_version:8.2.1":                                                false,
		"redis_version:7.2.4\r\nvalkey_version:8.1.0":                        true,
		"redis_version:7.2.4\r\nvalkey_version:9.0.0":                        true,
		"redis_version:7.2.4\r\nvalkey_version:8.0.3":                        false,
		"redis_version:6.0.0\r\ndragonfly_version:df-v1.30.0":                false,
		"redis_version:unstable":                                             false,
		"maxmemory:100\r\nmaxmemory_policy:allkeys-lru":                      false,
		"maxmemory:100\r\nmaxmemory_policy:noeviction":                       false,
		"maxmemory:0\r\nmaxmemory_policy:allkeys-lru":                        false, // without a limit nothing is evicted
		"-NOPERM this user has no permissions to run the 'info' command\r\n": false,
		"-ERR unknown command 'info', with args beginning with: \r\n":        false,
	} {
		t.Run(text, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				core, logs := observer.New(zap.WarnLevel)
				answer := info(text, "run_id:1")
				if text[0] == '-' {
					answer = text
				}
				server.answer(answer, "info")
				s, l := server.open(t, Options{Logger: zap.New(core)})
				l.cut()
				mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
				storetest.Equal(t, s.dialer.comparesValues.Load(), compares, "compares values")
				warnings := 0
				if strings.HasSuffix(text, "allkeys-lru") && !strings.Contains(text, ":0\r") {
					warnings = 1
				}
				storetest.Equal(t, logs.FilterMessageSnippet("may evict").Len(), warnings, "warnings")
			})
		})
	}
}

// Another server behind the same name, as sentinels or a DNS record may cause, is asked like the first.
func TestNextServer(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		core, logs := observer.New(zap.InfoLevel)
		server.answer(info("run_id:1", "maxmemory:100", "maxmemory_policy:allkeys-lru"), "info")
		s, l := server.open(t, Options{Logger: zap.New(core)})
		server.answer(info("run_id:2", "maxmemory:100", "maxmemory_policy:volatile-lru"), "info")
		l.cut()
		for _, name := range []string{"b", "c", "d"} {
			mustClaim(t, s, claimOf(name, "token"), idempotency.Proceed)
		}
		var warned []any
		for _, entry := range logs.FilterMessageSnippet("may evict").All() {
			warned = append(warned, entry.ContextMap()["maxmemory_policy"])
		}
		storetest.Equal(t, fmt.Sprint(warned), "[allkeys-lru volatile-lru]", "warned of")
		storetest.Equal(t, logs.FilterMessageSnippet("another redis server than before").Len(), 1, "log lines of another server")
	})
}

// A store whose password the server refuses uses that of the newest store of the same server. Credentials that the
// server has never accepted are wrong, and the store of another handler does not hide that.
func TestNewestCredentials(t *testing.T) {
	for name, wasAccepted := range map[string]bool{"accepted before": true, "never accepted": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				server.RequireAuth("old")
				s, l := server.open(t, Options{Password: "old"})
				c := claimOf("a", "token")
				s.credentials.accepted.Store(wasAccepted)
				server.RequireAuth("new")
				l.cut()
				for range 2 {
					if err := s.Renew(ctx, c); !hasCode(err, "WRONGPASS") {
						t.Fatalf("with the old password alone: %v; want it refused", err)
					}
				}
				server.open(t, Options{Password: "new"})
				if err := s.Renew(ctx, c); wasAccepted {
					wantErr(t, err, idempotency.ErrGone)
				} else if !hasCode(err, "WRONGPASS") {
					t.Errorf("with a wrong password: %v; want it refused", err)
				}
			})
		})
	}
}

// The timeout of an operation and the number of replicas that are waited for can change.
func TestTune(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, l := server.open(t, Options{Timeout: time.Second})
		l.delay.Store(int64(3 * time.Second / 2))
		for i, step := range []struct {
			timeout time.Duration
			fails   bool
		}{{time.Second, true}, {time.Minute, false}, {time.Second, true}} {
			s.Tune(step.timeout, 0)
			start := time.Now()
			claimed, err := s.Claim(ctx, claimOf(fmt.Sprint(i), "token"))
			if (err != nil) != step.fails || err == nil && claimed.Verdict != idempotency.Proceed {
				t.Errorf("with %s: %v, %v", step.timeout, claimed.Verdict, err)
			}
			if took := time.Since(start); took > step.timeout+tickInterval {
				t.Errorf("with %s it took %s", step.timeout, took)
			}
		}
		l.delay.Store(0)
		server.on(func(command string, _ ...string) (reply string, answers, hangsUp bool) {
			return ":1\r\n", command == "wait", false
		})
		for i, replicas := range []int{0, 1, 0} {
			s.Tune(time.Second, replicas)
			sent := count(only(s))
			ends(kept(small))(t, s, claimOf(fmt.Sprint("replicated ", i), "token"))
			storetest.Equal(t, sent.waits.Load(), int64(replicas), "flushes waited for replicas", replicas)
		}
		storetest.Equal(t, s.Unreplicated(), 0, "responses are on no replica")
	})
}
