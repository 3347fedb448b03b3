package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var ctx = context.Background()

func closeAtEnd(t testing.TB, s *Store) *Store {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func mustBeAbsent(t *testing.T, s *Store, key idempotency.Key) {
	t.Helper()
	record, _, err := s.Lookup(ctx, key)
	if err != nil || record != nil {
		t.Fatalf("lookup: %+v, %v; want nothing", record, err)
	}
}

// TestHungServer stops the server before a claim. The claim waits in its socket
// and is executed when the server goes on, unless it has a deadline.
func TestHungServer(t *testing.T) {
	for _, test := range []struct {
		name     string
		hold     bool
		patience time.Duration
		executed bool
	}{
		{"within its patience a claim under hold is executed late", true, time.Hour, true},
		{"past its patience a claim under hold is refused", true, 50 * time.Millisecond, false},
		{"any other claim is executed late", false, 50 * time.Millisecond, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := redistest.Start(t)
			s := closeAtEnd(t, openWith(t, Options{Addresses: []string{server.Addr}}))
			s.patience = test.patience
			eventually(t, "a first claim", func() bool {
				warm := claimOf("warm", "warm")
				warm.Hold = test.hold
				_, err := s.Claim(ctx, warm)
				return err == nil
			})
			c := claimOf("a", "ghost")
			c.Hold = test.hold
			by := map[bool]string{true: "evalsha", false: "set"}[test.hold]
			before := calls(t, server)

			server.Pause()
			claimed, err := s.Claim(ctx, c)
			if err == nil || claimed.Verdict != 0 {
				t.Fatalf("a claim of a hung server: %v, %v; want an error", claimed.Verdict, err)
			}
			if claimed.Record == nil || claimed.Record.Token != c.Token {
				t.Fatalf("the claim may be executed, but its record is %+v", claimed.Record)
			}
			server.Resume()
			eventually(t, "the server executes the claim", func() bool {
				now := calls(t, server)
				return now[by] > before[by]
			})

			var found *idempotency.Record
			eventually(t, "the server answers", func() bool {
				found, _, err = s.Lookup(ctx, c.Key)
				return err == nil
			})
			if (found != nil) != test.executed {
				t.Fatalf("the record is %+v; want one: %v", found, test.executed)
			}
			if !test.executed {
				return
			}
			// What the engine does with a claim in doubt.
			mustSettle(t, s, c, claimed.Record, idempotency.Settlement{State: idempotency.Released, Retention: time.Hour, AnswerFor: time.Hour})
			if next := mustClaim(t, s, claimOf("a", "next"), idempotency.Proceed); next.Record.Attempt != 1 {
				t.Errorf("after a withdrawn claim it is attempt %d, want 1", next.Record.Attempt)
			}
		})
	}
}

// TestHungServerAnswersAllCallers has more callers than connections.
func TestHungServerAnswersAllCallers(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{server.Addr}, Timeout: 200 * time.Millisecond}))
	server.Pause()
	var callers sync.WaitGroup
	for range 4 * poolSize {
		callers.Go(func() {
			if _, _, err := s.Lookup(ctx, keyOf("a")); err == nil {
				t.Error("a hung server answered")
			}
		})
	}
	callers.Wait()
	server.Resume()
	eventually(t, "the store recovers", func() bool {
		_, _, err := s.Lookup(ctx, keyOf("a"))
		return err == nil
	})
}

func TestRefusedServer(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{server.Addr}}))
	mustClaim(t, s, claimOf("a", "first"), idempotency.Proceed)
	server.Kill()
	for range 2 * poolSize {
		claimed, err := s.Claim(ctx, claimOf("b", "second"))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("claim: %v, want a refused connection", err)
		}
		if claimed.Record != nil {
			t.Fatal("a claim that was never sent may have been executed")
		}
	}
	server.Restart()
	// At once: a store that stays away for longer than the server loses leases.
	mustClaim(t, s, claimOf("b", "third"), idempotency.Proceed)
}

// TestForgottenScripts has the server forget the scripts before every
// operation, as a restart or a failover does.
func TestForgottenScripts(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	forget := func() { command(t, server, "SCRIPT", "FLUSH") }
	for name, settlement := range map[string]idempotency.Settlement{
		"small": kept(small), "large": kept(large), "released": released(),
	} {
		c := claimOf(name, "token-of-"+name)
		forget()
		claimed := mustClaim(t, s, c, idempotency.Proceed)
		forget()
		if err := s.Renew(ctx, c); err != nil {
			t.Fatalf("%s: renew: %v", name, err)
		}
		forget()
		mustSettle(t, s, c, claimed.Record, settlement)
		forget()
		if record, _, err := s.Lookup(ctx, c.Key); err != nil || record == nil || record.State != settlement.State {
			t.Fatalf("%s: lookup: %+v, %v", name, record, err)
		}
		response, err := s.Response(ctx, c.Key, c.Token)
		if err != nil || response == nil || string(response.Body) != string(settlement.Response.Body) {
			t.Fatalf("%s: the response came back as %v, %v", name, response, err)
		}
	}
	forget()
	page, _, err := s.List(ctx, "", 10)
	if err != nil || len(page) != 3 {
		t.Fatalf("list: %d records, %v; want 3", len(page), err)
	}
	forget()
	if found, err := s.Free(ctx, keyOf("large"), "operator"); err != nil || found.State != idempotency.Complete {
		t.Fatalf("free: %+v, %v", found, err)
	}
	forget()
	if err := s.Forget(ctx, keyOf("large")); err != nil {
		t.Fatalf("forget: %v", err)
	}
	if left := command(t, server, "DBSIZE"); left != int64(3) {
		t.Errorf("%v keys left; want 2 records and 1 response", left)
	}
}

func TestFullServer(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	s := closeAtEnd(t, openAt(t, server.Addr))
	done := claimOf("complete", "done")
	mustSettle(t, s, done, mustClaim(t, s, done, idempotency.Proceed).Record, kept(large))
	running := claimOf("in flight", "running")
	record := mustClaim(t, s, running, idempotency.Proceed).Record
	command(t, server, "CONFIG", "SET", "maxmemory", "1")

	full := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, idempotency.ErrFull) || !strings.Contains(err.Error(), "maxmemory") {
			t.Fatalf("%s: %v, want an error that names maxmemory: a full server is one that fails", what, err)
		}
	}
	claimed, err := s.Claim(ctx, claimOf("fresh", "fresh"))
	full("claim", err)
	if claimed.Record != nil {
		t.Error("a claim that the server refused may have been executed")
	}
	if err := s.Renew(ctx, running); err != nil { // it takes no room
		t.Fatalf("renew: %v", err)
	}
	full("settle small", s.Settle(ctx, running.Key, record, kept(small)))
	full("settle large", s.Settle(ctx, running.Key, record, kept(large)))
	if replayed := mustClaim(t, s, claimOf("complete", "again"), idempotency.ReplayKept); len(replayed.Response.Body) != large {
		t.Error("the replay lacks its body")
	}
	waiting := claimOf("in flight", "waiting")
	waiting.Waits = true
	mustClaim(t, s, waiting, idempotency.WaitForRun)
	if err := s.Forget(ctx, done.Key); err != nil {
		t.Fatalf("forget: %v", err)
	}

	command(t, server, "CONFIG", "SET", "maxmemory", "0")
	mustSettle(t, s, running, record, kept(large))
	mustClaim(t, s, claimOf("in flight", "later"), idempotency.ReplayKept)
}

// TestLostReply loses replies to commands that the server has executed.
func TestLostReply(t *testing.T) {
	server := redistest.Start(t)
	p := startProxy(t, listen(t), server.Addr)
	s := closeAtEnd(t, openAt(t, p.addr))
	mustClaim(t, s, claimOf("warm", "warm"), idempotency.Proceed)
	losing := func(replies int64, what string, operation func()) {
		t.Helper()
		p.lose.Store(replies)
		operation()
		if left := p.lose.Load(); left != 0 {
			t.Fatalf("%s: %d of %d replies were not lost", what, left, replies)
		}
	}

	a := claimOf("a", "first")
	var claimed idempotency.Claimed
	before := calls(t, server)["set"]
	losing(1, "claim", func() { claimed = mustClaim(t, s, a, idempotency.Proceed) })
	if claimed.Record.Attempt != 1 || claimed.Previous != nil {
		t.Errorf("claimed as attempt %d over %+v", claimed.Record.Attempt, claimed.Previous)
	}
	if sent := calls(t, server)["set"] - before; sent != 2 {
		t.Errorf("the server executed %d claims, want both", sent)
	}
	losing(1, "renew", func() {
		if err := s.Renew(ctx, a); err != nil {
			t.Fatalf("renew: %v", err)
		}
	})
	losing(1, "release", func() { mustSettle(t, s, a, claimed.Record, released()) })
	answer, err := s.Response(ctx, a.Key, a.Token)
	if err != nil || answer == nil || answer.Status != 503 {
		t.Fatalf("the released answer: %+v, %v", answer, err)
	}

	// Over a released record a claim takes two rounds; the reply to the second is lost.
	c := s.newClaimCall(claimOf("a", "second"))
	if _, done, err := c.lightRound(ctx); done || err != nil {
		t.Fatalf("the first round: %v, %v", done, err)
	}
	losing(1, "takeover", func() {
		var done bool
		claimed, done, err = c.round(ctx)
		if err != nil || !done || claimed.Record.Attempt != 2 || claimed.Previous.Token != a.Token {
			t.Fatalf("the second round: %+v, %v, %v", claimed, done, err)
		}
	})
	losing(1, "settle large", func() { mustSettle(t, s, c.claim, claimed.Record, kept(large)) })
	replayed := mustClaim(t, s, claimOf("a", "third"), idempotency.ReplayKept)
	if len(replayed.Response.Body) != large || replayed.Record.Attempt != 2 {
		t.Errorf("replayed %d bytes of attempt %d", len(replayed.Response.Body), replayed.Record.Attempt)
	}

	// With both replies lost, nobody knows whether the claim was written.
	b := claimOf("b", "in doubt")
	losing(2, "claim twice", func() {
		claimed, err = s.Claim(ctx, b)
		if err == nil || claimed.Record == nil || claimed.Record.Token != b.Token {
			t.Fatalf("a claim in doubt: %+v, %v; want an error and the record", claimed, err)
		}
	})
	mustSettle(t, s, b, claimed.Record, released())
	mustClaim(t, s, claimOf("b", "next"), idempotency.Proceed)
}

// TestForeignServers has servers that accept connections and are no Redis.
func TestForeignServers(t *testing.T) {
	for name, answer := range map[string]string{
		"silent":         "",
		"HTTP":           "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
		"nil":            "$-1\r\n",
		"agreeable":      "+OK\r\n",
		"a wrong number": "*2\r\n:1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			listener := listen(t)
			var conns sync.WaitGroup
			conns.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					conns.Go(func() { answerAll(conn, answer) })
				}
			})
			s := openWith(t, Options{Addresses: []string{listener.Addr().String()}, Timeout: 200 * time.Millisecond})
			claimed, err := s.Claim(ctx, claimOf("a", "token"))
			if err == nil || claimed.Verdict != 0 {
				t.Errorf("claimed with verdict %v, %v; want an error", claimed.Verdict, err)
			}
			if record, _, err := s.Lookup(ctx, keyOf("a")); err == nil {
				t.Errorf("looked up %+v; want an error", record)
			}
			if err := s.Settle(ctx, keyOf("a"), &idempotency.Record{Token: "token"}, kept(small)); err == nil {
				t.Error("settled; want an error")
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			_ = listener.Close()
			conns.Wait()
		})
	}
}

// answerAll gives the same answer to everything that comes.
func answerAll(conn net.Conn, answer string) {
	defer func() { _ = conn.Close() }()
	buffer := make([]byte, 4096)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}

func TestClosedStore(t *testing.T) {
	s := openWith(t, Options{Addresses: []string{"127.0.0.1:1"}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(ctx, claimOf("a", "token")); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("claim: %v, want ErrClosed", err)
	}
}
