package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// replicaStep is a step of a replica, or one that asks it something.
func (s *stage) replicaStep(r *replica, verb string, args []string) {
	ctx, key := context.Background(), s.request(nil).Key
	switch verb {
	// A request comes, and is decided on: it runs, is a replay of a run, or one that has waited (shares), or
	// is refused for a reason, and because of a run ("-" for none).
	case "runs":
		s.wantRun(s.claim(r, args[1:]), args[0], args[1:])
	case "replays", "shares":
		s.wantReplay(s.claim(r, args[1:]), args[0], verb == "shares")
	case "refuses":
		s.wantRefusal(s.claim(r, args[2:]), args[0], args[1])
	case "asks": // requests come whose decision is seen later
		for range max(1, s.number(option(args, "n"))) {
			s.waiters[args[0]] = append(s.waiters[args[0]], r.claimLater(ctx, s.request(args[1:])))
		}

	case "awaits": // a request comes that only waits
		s.waiters[args[0]] = append(s.waiters[args[0]], r.later(ctx, s.request(args[1:]), func(ctx context.Context, req engine.Request) (engine.Decision, error) {
			return r.Await(ctx, req.Key)
		}))
	case "misses": // one that waits finds nothing to wait for
		if _, err := r.Await(ctx, key); !errors.Is(err, engine.ErrNoRecord) {
			s.t.Errorf("%v, want %v", err, engine.ErrNoRecord)
		}

	// The link to the store.
	case "store": // from now on operations, or all, fail in this way
		s.breakLink(r.link, args[0], args[1:])
	case "deaf":
		r.link.dropWakeUps()
	case "pauses": // an operation, or the replies to one: "reply-to-claim"
		resume := r.link.pause(strings.ReplaceAll(args[0], "-", " "))
		s.gates[args[0]] = resume
	case "resumes":
		s.gates[args[0]]()
		delete(s.gates, args[0])
	case "asked": // the store, this often since the last such step
		name := fmt.Sprintf("%p %s", r.link, args[0])
		n := r.link.count(args[0]) - s.asked[name]
		s.asked[name] += n
		s.wantNumber(n, args[1], "calls of "+args[0])
	case "times": // since the beginning at which an operation was called, the first ones
		calls := r.link.times(args[0])
		for i, want := range args[1:] {
			if i >= len(calls) || calls[i].Sub(s.start).Round(time.Millisecond) != s.duration(want) {
				s.t.Errorf("%s: called at %v, want call %d after %s", args[0], calls, i+1, want)
			}
		}
	case "paused": // between the calls of an operation, each time for half of this or longer, up to this
		calls := r.link.times(args[0])
		for i, want := range args[1:] {
			longest := s.duration(want)
			if i+1 >= len(calls) {
				s.t.Fatalf("%s: called at %v, want %d pauses", args[0], calls, len(args)-1)
			}
			if d := calls[i+1].Sub(calls[i]); d < longest/2 || d > longest {
				s.t.Errorf("%s: pause %d took %v, want between half of %v and that", args[0], i+1, d, want)
			}
		}
	case "has": // a state with this attempt in the store, or nothing
		if args[0] != "nothing" {
			r.wantState(s.request(args[2:]), states[args[0]], s.number(args[1]))
		} else if record := r.stored(s.request(args[1:])); record != nil {
			s.t.Errorf("the store has %+v", record)
		}

	case "reason": // is in the record
		if reason := r.stored(s.request(nil)).Reason; !strings.Contains(reason, strings.Join(args, " ")) {
			s.t.Errorf("the record says %q", reason)
		}

	// The engine.
	case "logs": // this often, lines with these words and values; that of execution_id is a run
		var text []string
		lines := r.logged
		for _, word := range args[1:] {
			if name, value, isField := strings.Cut(word, "="); isField {
				if name == "execution_id" {
					value = s.runs[value].ExecutionID()
				}
				lines = lines.Filter(func(e observer.LoggedEntry) bool { return fmt.Sprint(e.ContextMap()[name]) == value })
			} else {
				text = append(text, word)
			}
		}
		s.wantNumber(lines.FilterMessageSnippet(strings.Join(text, " ")).Len(), args[0], "lines")
	case "closes":
		s.wantError(r.Close(), nil)
	case "drains":
		r.drain()
	case "draining":
		s.begin(r, func() error { return r.Drain(ctx) })
	case "finishing":
		s.begin(r, func() error { return r.Finish(ctx) })
	case "abandoning":
		s.begin(r, r.Abandon)
	case "done", "undone", "failed": // what has begun
		select {
		case err := <-s.tasks[r]:
			if verb == "undone" || errors.Is(err, context.DeadlineExceeded) != (verb == "failed") {
				s.t.Errorf("it ended with %v, want it %s", err, verb)
			}
		default:
			if verb != "undone" {
				s.t.Errorf("it goes on, want it %s", verb)
			}
		}
	case "drops": // bodies that are not stored
		r.DropBodies()
	case "gives-up": // this many runs
		s.wantNumber(r.GiveUp(errors.New("nothing uses the store")), args[0], "runs given up")
	case "failing": // the store, since so long after the beginning, or never
		if since, fails := r.FailingSince(); fails != (args[0] != "never") || fails && since.Sub(s.start) != s.duration(args[0]) {
			s.t.Errorf("failing since %v, %v; want %s", since, fails, args[0])
		}
	case "dropped": // bodies, this many
		s.wantNumber(r.observer.of("bodies dropped")["bodies dropped"], args[0], "bodies dropped")
	case "failures": // of an operation of the store
		s.wantNumber(r.observer.of(args[0] + " failed")[args[0]+" failed"], args[1], "failures")
	case "idle", "busy":
		if r.Idle() != (verb == "idle") {
			s.t.Errorf("it is not %s", verb)
		}
	case "progress": // this many runs, and requests that wait
		if runs, waiting := r.InProgress(); runs != s.number(args[0]) || waiting != s.number(args[1]) {
			s.t.Errorf("%d runs are in progress, and %d requests wait, want %v", runs, waiting, args)
		}
	case "counts":
		wantCounts(s.t, r.observer.runs(), s.counts("run ", args))
	case "overloads":
		wantCounts(s.t, r.observer.overloads(), s.counts("limit ", args))
	case "limits":
		r.Configure(engine.Settings{Limits: engine.Limits{
			Waiters: s.number(option(args, "waiters")), WaitersPerKey: s.number(option(args, "per_key")), InFlight: s.number(option(args, "in_flight")),
		}})
	case "room":
		r.setRoom(map[string]error{"full": errNoRoom}[args[0]])
	case "keys": // it encrypts with these keys; "-" for none
		r.Configure(engine.Settings{Sealer: sealing(s.t, strings.Trim(args[0], "-"))})
	case "copies": // none or some
		if none := r.copies.Bytes() == 0; none != (args[0] == "none") {
			s.t.Errorf("the copies take %d bytes", r.copies.Bytes())
		}

	case "refused": // writes, for this reason, or nothing
		want := strings.Join(args, " ")
		if got := r.WritesRefused(); (got == "") != (want == "nothing") || got != "" && !strings.Contains(got, want) {
			s.t.Errorf("refused writes: %q, want %q", got, want)
		}

	// An operator.
	case "reads":
		if record, _, err := r.Lookup(ctx, key); err != nil || record.DeliveryID != args[0] {
			s.t.Errorf("an operator reads %+v, %v", record, err)
		}
	case "blind": // an operator does not read it
		_, _, err := r.Lookup(ctx, key)
		page, _, listErr := r.List(ctx, "", 10)
		if !isUnreadable(err) || listErr != nil || len(page) != 1 || page[0].Record != nil || !isUnreadable(page[0].Unreadable) {
			s.t.Errorf("an operator reads %v, and lists %+v, %v", err, page, listErr)
		}
	case "releases":
		before := r.stored(s.request(nil))
		if s.wantError(r.Release(ctx, key, idempotency.Precondition{}), args); len(args) > 0 {
			return
		}
		if after := r.stored(s.request(nil)); after.ExecutionID != before.ExecutionID || after.Token == before.Token {
			s.t.Errorf("it left %+v of %+v", after, before)
		}
	case "completes": // a run, which has the second name from now on
		s.runs[args[1]], s.answers[args[1]] = s.runs[args[0]], created("by hand")
		s.wantError(r.Complete(ctx, key, s.answers[args[1]], idempotency.Precondition{}), args[2:])
	case "forgets":
		s.wantError(r.Forget(ctx, key, idempotency.Precondition{}), args)
	default:
		s.t.Fatalf("what does a replica do that %s?", verb)
	}
}

// begin starts a task of a replica in the background.
func (s *stage) begin(r *replica, task func() error) {
	done := make(chan error, 1)
	s.tasks[r] = done
	go func() { done <- task() }()
}

// runStep is a step of a run. It ends in a way (see stage.end) and with a result, at once, or in the
// background (ending, then ended).
func (s *stage) runStep(run *engine.Run, name, verb string, args []string) {
	switch verb {
	case "ends", "ending":
		end, calls, done := s.end(name, args[0]), new(int), make(chan result, 1)
		s.answers[name], s.stored[name], s.endings[name] = end.Response, calls, done
		go func() { done <- resultOf(run.Settle(end, func() { *calls++ })) }()
		if verb == "ends" {
			s.wantResult(name, args[1])
		}
	case "ended":
		s.wantResult(name, args[0])
	case "stored": // onStored was called this often
		if n := *s.stored[name]; n != s.number(args[0]) {
			s.t.Errorf("onStored was called %d times, want %s", n, args[0])
		}
	case "loses": // its response has no body, or neither that nor a header
		header := s.answers[name].Header
		if args[0] == "all" {
			header = nil
		}
		s.answers[name] = &idempotency.Response{Status: 201, Header: header, Omitted: true}
	case "keeps": // its response
	case "fails": // its response is gone
		s.answers[name] = failed(s.answers[name].Status)
	case "streams":
		run.Stream("the stream")
	case "again": // the store executes the claim of the run once more
		got, err := s.store.Claim(context.Background(), idempotency.Claim{
			Key: s.request(nil).Key, Token: run.Record().Token, ExecutionID: run.ExecutionID(),
			Fingerprints: []string{"body:one"}, Terms: s.request(nil).Policy.Terms, Force: true,
		})
		if err != nil || got.Verdict != idempotency.ReplayKept {
			s.t.Errorf("it got %v, %v", got.Verdict, err)
		}
	default:
		s.t.Fatalf("what does a run do that %s?", verb)
	}
}

func (s *stage) wantResult(run, want string) {
	if got := <-s.endings[run]; got != result(want) {
		s.t.Errorf("it ended %q, want %q", got, want)
	}
}

// end returns an end of a run: unknown, unsent (each with an error for the client), silent (unsent,
// without one), omitted (a response without its body), headed (one with a large header), or a status, which may have a retention that
// the upstream asks for, and a size, then also a header: 201/1m, 201x2000000. The body is the name of the run.
func (s *stage) end(run, how string) idempotency.End {
	switch how {
	case "unknown":
		return idempotency.End{How: idempotency.Unknown, Response: failed(502)}
	case "unsent":
		return idempotency.End{How: idempotency.NotSent, Response: failed(502)}
	case "silent":
		return idempotency.End{How: idempotency.NotSent}
	case "headed":
		return idempotency.End{How: idempotency.Answered, Response: &idempotency.Response{
			Status: 201, Header: map[string][]string{"Etag": {strings.Repeat("x", 2<<20)}}, Body: []byte("one"),
		}}
	case "omitted":
		return idempotency.End{How: idempotency.Answered, Response: &idempotency.Response{Status: 201, Omitted: true}}
	}
	status, retention, asked := strings.Cut(how, "/")
	status, size, sized := strings.Cut(status, "x")
	end := idempotency.End{How: idempotency.Answered, Response: &idempotency.Response{
		Status: s.number(status), Body: []byte(run + strings.Repeat(".", s.number(size))),
	}}
	if sized {
		end.Response.Header = map[string][]string{"Etag": {"1"}}
	}
	if asked {
		end.Retention = new(s.duration(retention))
	}
	return end
}

// waiterStep is a step of requests that were asked together.
func (s *stage) waiterStep(name, verb string, args []string) {
	all := s.waiters[name]
	var decided []*waiter
	for _, w := range all {
		if w.decided() {
			decided = append(decided, w)
		}
	}
	switch verb {
	case "wait":
		if len(decided) > 0 {
			s.t.Errorf("decided %+v", decided[0].d)
		}
		return
	case "disconnect", "leave": // leave: and get no decision
		for _, w := range all {
			w.leave(errLeft)
			if verb == "leave" {
				if <-w.done; !errors.Is(w.err, errLeft) || w.d != nil {
					s.t.Errorf("decided %v with %v, want nothing with %v", w.d, w.err, errLeft)
				}
			}
		}
		return
	case "run-once": // one of them, while the others wait
		if len(decided) != 1 {
			s.t.Fatalf("%d of %d are decided on, want one", len(decided), len(all))
		}
		s.wantRun(decided[0].decision(), args[0], args[1:])
		s.waiters[name] = slices.DeleteFunc(all, func(w *waiter) bool { return w == decided[0] })
		s.wantAfter(decided[0].took, args[1:])
		return
	case "refused-some": // this many of them, while the others wait
		if len(decided) != s.number(args[0]) {
			s.t.Errorf("%d of %d were refused, want %s", len(decided), len(all), args[0])
		}
		s.waiters[name] = slices.DeleteFunc(all, func(w *waiter) bool { return slices.Contains(decided, w) })
		all, verb, args = decided, "refused", args[1:]
	}
	for _, w := range all {
		switch d := w.decision(); verb {
		case "runs":
			s.wantRun(d, args[0], args[1:])
		case "replays", "shares":
			s.wantReplay(d, args[0], verb == "shares")
		case "refused":
			s.wantRefusal(d, args[0], args[1])
		default:
			s.t.Fatalf("what do requests do that %s?", verb)
		}
		if option(args, "after") != "" {
			s.wantAfter(w.took, args)
		}
	}
}
