package engine_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A scene is what happens around the keys of one store, in a bubble of synctest: a row of a table.
// Its script is a list of steps, separated by semicolons or line ends. After each step all goroutines
// of the bubble have come to rest, and no time passes but in a step that says so.
//
// The replicas a, b and c share the store. A script with the replica "other" is played twice: first
// other is a, and then b. Where a script or the request has {alternatives|in|braces}, the scene is
// played once for each of them; all braces of one text have equally many.
//
// Most steps are a subject and a verb (see replicaStep, runStep and waiterStep). Words at the end of a
// step change its request (see stage.request), or say more of what is expected: n=3 (requests),
// after=500ms (since the request came; without it, a decision takes no time), attempt=, parent=
// and lapsed= (of a run).
type scene struct{ name, request, script string }

func play(t *testing.T, scenes []scene) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			n := 0
			for _, request := range alternatives(sc.request) {
				for _, script := range alternatives(sc.script) {
					others := []string{"a"}
					if strings.Contains(script, "other ") {
						others = append(others, "b")
					}
					for _, other := range others {
						n++
						t.Run(strconv.Itoa(n), func(t *testing.T) {
							synctest.Test(t, func(t *testing.T) { newStage(t, request, script, other).play(script) })
						})
					}
				}
			}
		})
	}
}

var braces = regexp.MustCompile(`\{[^}]*\}`)

func alternatives(text string) (all []string) {
	n := len(strings.Split(braces.FindString(text), "|"))
	for i := range n {
		all = append(all, braces.ReplaceAllStringFunc(text, func(one string) string {
			return strings.Split(one[1:len(one)-1], "|")[i]
		}))
	}
	return all
}

// stage is a scene that is being played.
type stage struct {
	t     *testing.T
	start time.Time
	store idempotency.Store
	// behind is a stale server of the store, to which all operations go after a failover.
	behind idempotency.Store
	// words change every request. other is the replica of that name.
	words    []string
	other    string
	copies   bool
	inMemory bool // the store is one of 1 MiB in the process of a
	replicas map[string]*replica
	runs     map[string]*engine.Run
	answers  map[string]*idempotency.Response // of the runs
	stored   map[string]*int                  // how often onStored was called
	endings  map[string]chan result
	waiters  map[string][]*waiter
	gates    map[string]func()
	asked    map[string]int // how many calls "asked" has seen
	tasks    map[*replica]chan error
}

func newStage(t *testing.T, request, script, other string) *stage {
	s := &stage{
		t: t, start: time.Now(), other: other, store: newShared(t), behind: newShared(t),
		replicas: make(map[string]*replica), runs: make(map[string]*engine.Run), answers: make(map[string]*idempotency.Response),
		stored: make(map[string]*int), endings: make(map[string]chan result), waiters: make(map[string][]*waiter),
		gates: make(map[string]func()), asked: make(map[string]int), tasks: make(map[*replica]chan error),
	}
	for _, word := range strings.Fields(request) {
		switch word {
		case "copies":
			s.copies = true
		case "memory":
			s.inMemory = true
		default:
			s.words = append(s.words, word)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if strings.Contains(script, name+" ") || name == other {
			var copies *engine.Copies
			if s.copies {
				copies = engine.NewCopies(someCopies)
			}
			if s.inMemory {
				s.replicas[name] = newInMemory(t, copies)
			} else {
				s.replicas[name] = newReplicaWithCopies(t, s.store, copies)
			}
		}
	}
	s.replicas["other"] = s.replicas[other]
	t.Cleanup(func() {
		for _, resume := range s.gates {
			resume()
		}
	})
	return s
}

func (s *stage) play(script string) {
	var step string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("in the step %q, with other as %s, of\n%s", step, s.other, script)
		}
	}()
	for _, step = range strings.FieldsFunc(script, func(r rune) bool { return r == ';' || r == '\n' }) {
		if words := strings.Fields(step); len(words) > 0 {
			s.step(words[0], words[1:])
			synctest.Wait()
		}
		if s.t.Failed() {
			return
		}
	}
}

func (s *stage) step(subject string, args []string) {
	switch r, run := s.replicas[subject], s.runs[subject]; {
	case subject == "sleep":
		time.Sleep(s.duration(args[0]))
	case subject == "until": // this long after the beginning
		time.Sleep(time.Until(s.start.Add(s.duration(args[0]))))
	case subject == "elapsed": // between these two since the beginning
		if took := time.Since(s.start); took < s.duration(args[0]) || took > s.duration(args[1]) {
			s.t.Errorf("%v have passed, want %v", took, args)
		}
	case subject == "lose": // the store loses the record
		lose(s.t, s.store, s.request(args))
	case subject == "forget": // the store forgets the record
		s.wantError(s.store.Forget(context.Background(), s.request(args).Key, idempotency.Precondition{}), nil)
	case subject == "replicate":
		s.replicate(s.request(args))
	case subject == "failover":
		s.store = s.behind
		for _, r := range s.replicas {
			r.link.failover(s.behind)
		}
	case r != nil:
		s.replicaStep(r, args[0], args[1:])
	case run != nil:
		s.runStep(run, subject, args[0], args[1:])
	case s.waiters[subject] != nil:
		s.waiterStep(subject, args[0], args[1:])
	default:
		s.t.Fatalf("what is %q?", subject)
	}
}

var (
	errLeft   = errors.New("the client left")
	errNoRoom = errors.New("there is no room")
)

// request returns a request that the words of the scene and of a step have changed.
func (s *stage) request(words []string) engine.Request {
	req := someRequest()
	req.Origin.DeliveryID = "delivery-1"
	for _, word := range append(slices.Clone(s.words), words...) {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "hold":
			req.Policy.Hold = true
		case "force":
			req.Force = true
		case "reused":
			req.Fingerprint = "body:two"
		case "fingerprint":
			req.Fingerprint = value
		case "now":
			req.Wait = 0
		case "wait":
			req.Wait = s.duration(value)
		case "timeout":
			req.Timeout = s.duration(value)
		case "lease":
			req.Policy.Lease = s.duration(value)
		case "retention":
			req.Policy.Retention = s.duration(value)
		case "attempts":
			req.Policy.MaxAttempts = s.number(value)
		case "release":
			req.Policy.ReleaseOn, _ = idempotency.ParseStatuses(strings.Split(value, ",")...)
		case "observed":
			req.Observed = true
		case "key":
			req.Key = idempotency.Identity{ID: value}.Key()
		case "in": // a request that a run sends, of this process or elsewhere
			req.Within = value
			if run := s.runs[value]; run != nil {
				req.Within = run.ExecutionID()
			}
		case "n", "after", "attempt", "parent", "lapsed":
		default:
			s.t.Fatalf("what is a request that is %q?", word)
		}
	}
	return req
}

// claim returns the decision on a request.
func (s *stage) claim(r *replica, words []string) engine.Decision {
	began := time.Now()
	d := r.claim(s.request(words))
	s.wantAfter(time.Since(began), words)
	return d
}

// wantAfter checks how long a decision took: no time, unless a word says another one, at most one, or
// any.
func (s *stage) wantAfter(took time.Duration, words []string) {
	after := option(words, "after")
	want, isMax := strings.CutPrefix(after, "..")
	if after != "any" && (took > s.duration(want) || took < s.duration(want) && !isMax) {
		s.t.Errorf("it took %v, want %s", took, after)
	}
}

func (s *stage) wantRun(d engine.Decision, name string, words []string) {
	run := as[*engine.Run](s.t, d)
	s.runs[name] = run
	if n := option(words, "attempt"); n != "" && run.Attempt() != s.number(n) {
		s.t.Errorf("it is attempt %d, want %s", run.Attempt(), n)
	}
	if of := option(words, "parent"); of != "" && run.Record().ParentID != s.runs[of].ExecutionID() {
		s.t.Errorf("it has replaced %q, want %q", run.Record().ParentID, s.runs[of].ExecutionID())
	}
	if of := option(words, "lapsed"); of != "" && run.Lapsed() != s.runs[of].ExecutionID() {
		s.t.Errorf("it has taken over %q, want %q", run.Lapsed(), s.runs[of].ExecutionID())
	}
}

func (s *stage) wantReplay(d engine.Decision, run string, waited bool) {
	wantReplay(s.t, d, s.runs[run].ExecutionID(), s.answers[run], waited)
}

// wantRefusal checks that a request is refused for a reason, whose error must be that of a limit, the
// store or the record if that is the reason.
func (s *stage) wantRefusal(d engine.Decision, reason, of string) {
	want, got := refusals[reason], as[engine.Refusal](s.t, d)
	executionID, attempt := "", 0
	if run := s.runs[of]; run != nil {
		executionID, attempt = run.ExecutionID(), run.Attempt()
	}
	wantRefusal(s.t, d, want.reason, executionID)
	var unreadable *idempotency.UnreadableError
	_, gotAttempt := got.Run()
	switch {
	case reason == "overloaded" && gotAttempt != attempt:
		s.t.Errorf("refused because of attempt %d, want %d", gotAttempt, attempt)
	case want.err != nil && !errors.Is(got.Err, want.err),
		reason == "unavailable" && got.Err == nil,
		reason == "unreadable" && !errors.As(got.Err, &unreadable):
		s.t.Errorf("refused with the error %v", got.Err)
	}
}

var refusals = map[string]struct {
	reason engine.Reason
	err    error
}{
	"reused": {engine.ReasonReused, nil}, "in_flight": {engine.ReasonInFlight, nil}, "held": {engine.ReasonHeld, nil},
	"exhausted": {engine.ReasonExhausted, nil}, "loop": {engine.ReasonLoop, nil},
	"unavailable": {engine.ReasonUnavailable, nil}, "unreadable": {engine.ReasonUnreadable, nil},
	"overloaded": {engine.ReasonOverloaded, engine.ErrOverloaded},
	"full":       {engine.ReasonOverloaded, idempotency.ErrFull},
	"no_room":    {engine.ReasonOverloaded, errNoRoom},
}

var states = map[string]idempotency.State{
	"in_flight": idempotency.InFlight, "complete": idempotency.Complete, "released": idempotency.Released, "held": idempotency.Held,
}

// storeErrors are errors with which an operation of the store fails.
var storeErrors = map[string]error{
	"full": idempotency.ErrFull, "large": idempotency.ErrTooLarge, "fenced": idempotency.ErrFenced, "gone": idempotency.ErrGone, "closed": idempotency.ErrClosed, "in_flight": idempotency.ErrInFlight,
	"damaged":  &idempotency.UnreadableError{Where: "dedup:one", Err: errors.New("it is cut off")},
	"readonly": &idempotency.RefusedError{Err: errors.New("read-only")},
}

// breakLink has operations fail, or all if none are named, with a fault or an error of the store.
func (s *stage) breakLink(l *link, how string, operations []string) {
	if len(operations) == 0 {
		operations = []string{"claim", "renew", "settle", "ready", "lookup", "response"}
	}
	fault, isFault := faults[how]
	if fault == moves || fault == stuck {
		operations = []string{"settle"}
	}
	if !isFault && storeErrors[how] == nil {
		s.t.Fatalf("how is a store that is %s?", how)
	}
	l.fail(fault, operations...)
	for _, operation := range operations {
		l.failWith(storeErrors[how], operation)
	}
}

var faults = map[string]fault{"works": works, "refused": refused, "hung": hung, "lost": replyLost, "late": executedLater, "twice": twice, "moves": moves, "stuck": stuck}

// wantError checks an error against the name of the one that is wanted, if any.
func (s *stage) wantError(err error, names []string) {
	var want error
	for _, name := range names {
		want = storeErrors[name]
	}
	if !errors.Is(err, want) {
		s.t.Errorf("%v, want %v", err, want)
	}
}

// option returns the value of the word name=value, or "".
func option(words []string, name string) string {
	for _, word := range words {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}

func (s *stage) counts(prefix string, words []string) map[string]int {
	all := make(map[string]int)
	for _, word := range words {
		name, n, _ := strings.Cut(word, "=")
		if all[prefix+name] = s.number(n); name == "takeover" {
			delete(all, prefix+name)
			all[name] = s.number(n)
		}
	}
	return all
}

// wantNumber checks a number, which is exact, or from one to another: 2, 2.., ..5.
func (s *stage) wantNumber(n int, want, of string) {
	low, high, isRange := strings.Cut(want, "..")
	if n < s.number(low) || !isRange && n > s.number(low) || high != "" && n > s.number(high) {
		s.t.Errorf("%d %s, want %s", n, of, want)
	}
}

// number returns a number, 0 for none.
func (s *stage) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil && text != "" {
		s.t.Fatal(err)
	}
	return n
}

// duration returns a duration, 0 for none.
func (s *stage) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil && text != "" {
		s.t.Fatal(err)
	}
	return d
}
