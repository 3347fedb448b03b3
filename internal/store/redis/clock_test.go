package redis

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// TestServerClockJumps sets the server's clock, as a failover to another server may do.
func TestServerClockJumps(t *testing.T) {
	server, s := start(t)
	held := func(name string) idempotency.Claim {
		c := claimOf(name, name)
		c.Hold = true
		return c
	}
	mustClaim(t, s, held("warm"), idempotency.Proceed)
	sent := func(c idempotency.Claim) (sets, scripts int) {
		before := calls(t, server)
		claimed := mustClaim(t, s, c, idempotency.Proceed)
		after := calls(t, server)
		found, now, err := s.Lookup(ctx, c.Key)
		if err != nil || !found.LeaseUntil.Equal(claimed.Record.LeaseUntil) {
			t.Fatalf("the lease ends at %v, claimed until %v; %v", found.LeaseUntil, claimed.Record.LeaseUntil, err)
		}
		if left := found.LeaseUntil.Sub(now); left < c.Lease*3/4 || left > c.Lease*5/4 {
			t.Errorf("a lease of %v lasts %v from now on", c.Lease, left)
		}
		if claimed.Previous != nil || claimed.Record.Attempt != 1 {
			t.Errorf("claimed as attempt %d over %+v", claimed.Record.Attempt, claimed.Previous)
		}
		// A SET is counted also where a script makes it.
		scripts = after["evalsha"] - before["evalsha"]
		return after["set"] - before["set"], scripts
	}
	for name, jump := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		// Moving the estimate one way is like setting the server's clock the other way.
		estimate := &s.pipe().clock.ahead
		estimate.Add(-jump.Milliseconds())
		want := 1
		if jump > 0 {
			want = 2 // refused as overdue, then with the time learnt from that
		}
		if _, scripts := sent(held(name + ", held")); scripts != want {
			t.Errorf("%s: %d claims sent, want %d", name, scripts, want)
		}
		if _, scripts := sent(held(name + ", held again")); scripts != 1 {
			t.Errorf("%s: the next claim was not sent once", name)
		}
		// A plain SET then has wrong times, and the script writes the claim again.
		estimate.Add(-jump.Milliseconds())
		if sets, scripts := sent(claimOf(name, name)); sets != 2 || scripts != 1 {
			t.Errorf("%s: %d SET, %d of them by a script; want one and another one by the script", name, sets, scripts)
		}
		if sets, scripts := sent(claimOf(name+" again", name)); sets != 1 || scripts != 0 {
			t.Errorf("%s: the next claim took %d SET and %d scripts, want one SET", name, sets, scripts)
		}
	}
}

// If the server's clock jumps at each attempt, the server refuses every claim that has a deadline.
func TestOverdueClaim(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, l := server.open(t, Options{})
		l.delay.Store(int64(time.Millisecond)) // so that time passes
		now := time.Now()
		l.setFor(claimScript.hash, -1, func() fault {
			now = now.Add(time.Hour)
			server.SetTime(now)
			return noFault
		})
		held, counted, forced := claimOf("held", "token"), claimOf("counted", "token"), claimOf("forced", "token")
		held.Hold, counted.MaxAttempts, forced.Force = true, 1, true
		for _, c := range []idempotency.Claim{held, counted, forced} {
			claimed, err := s.Claim(ctx, c)
			if !errors.Is(err, errOverdue) || claimed.Record != nil {
				t.Fatalf("an overdue claim: %+v, %v; want %v, and nothing in doubt", claimed, err, errOverdue)
			}
			mustBeAbsent(t, s, c.Key)
		}
	})
}

// The estimate of the server's clock is as exact as the fastest reply, and follows a clock that is set.
func TestEstimateIsThatOfTheQuickestReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &serverClock{started: time.Now()}
		ahead := time.Hour // of the server's clock, before ours
		reply := func(there, back time.Duration) (behind time.Duration) {
			sent := time.Now()
			time.Sleep(there)
			now := time.Now().Add(ahead).UnixMilli()
			time.Sleep(back)
			c.learn(now, sent)
			return time.Now().Add(ahead).Sub(time.UnixMilli(c.at(time.Now())))
		}
		for i, step := range []struct {
			set                  time.Duration // the server's clock, before the reply
			there, back          time.Duration
			minBehind, maxBehind time.Duration // how far the estimate is behind then
		}{
			{0, time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond, 52 * time.Millisecond},
			{0, 300 * time.Millisecond, 3 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond},
			{0, time.Millisecond, 700 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond},
			{time.Minute, time.Millisecond, 40 * time.Millisecond, 40 * time.Millisecond, 42 * time.Millisecond},
			{-2 * time.Minute, 20 * time.Millisecond, 10 * time.Millisecond, -22 * time.Millisecond, 12 * time.Millisecond},
		} {
			ahead += step.set
			if behind := reply(step.there, step.back); behind < step.minBehind || behind > step.maxBehind {
				t.Errorf("reply %d: the estimate is behind by %v, want %v to %v", i, behind, step.minBehind, step.maxBehind)
			}
		}
	})
}

// If all replies with the server's time were slow, the estimate is behind. A lookup corrects it, so a
// record that is written after the lookup does not expire too early.
func TestLookupTellsTheTime(t *testing.T) {
	_, s := start(t)
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	s.pipe().clock.ahead.Add(-time.Minute.Milliseconds())
	_, now, err := s.Lookup(ctx, c.Key)
	must(t, err)
	settlement := kept(small)
	mustSettle(t, s, c, record, settlement)
	if expires, earliest := mustFind(t, s, c.Key).Expires, now.Add(settlement.Retention-time.Millisecond); expires.Before(earliest) {
		t.Errorf("the record ends at %v, want %v or later", expires, earliest)
	}
}
