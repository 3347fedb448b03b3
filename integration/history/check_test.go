package history

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// made is a history of one key in the making. Its lease is 1.5 s, and a process
// is late by no more than 100 ms.
type made struct{ History }

func newMade() *made {
	return &made{History{Seed: 1, Lease: 1500 * ms, Jitter: 100 * ms, Shared: 200 * ms, Retry: 400 * ms}}
}

// change alters a request or run before it is added.
type change func(*Request, *Run)

func hold(r *Request, _ *Run)  { r.Hold = true }
func force(r *Request, _ *Run) { r.Force = true }
func final(r *Request, _ *Run) { r.Final = true }

// twice is a key with a limit of two attempts.
func twice(r *Request, _ *Run) { r.MaxAttempts = 2 }

func at(proxy int) change { return func(r *Request, _ *Run) { r.Proxy = proxy } }

func attempt(n int) change { return func(_ *Request, run *Run) { run.Attempt = n } }

func replacing(id string) change {
	return func(r *Request, run *Run) { r.Force, run.ParentID = true, id }
}

func body(text string) change { return func(r *Request, _ *Run) { r.Body = text } }

func failed(r *Request, _ *Run) { r.Failure = "connection reset" }

// noAnswer is a run that ended without one, and whose client was told so.
func noAnswer(r *Request, run *Run) {
	run.Lost, run.Status, run.Answer = true, 0, ""
	if r.Failure == "" {
		r.Status, r.Answer = 502, ""
	}
}

func answering(status int) change {
	return func(r *Request, run *Run) { r.Status, run.Status = status, status }
}

// ran adds a request that ran: it came, the run began and ended, and the answer
// was there, each so many ms from the beginning.
func (m *made) ran(id string, came, began, ended, done int, changes ...change) *made {
	r := Request{ID: "r" + id, Key: "k", Body: "body", Start: time.Duration(came) * ms, End: time.Duration(done) * ms,
		Status: 201, ExecutionID: id, Answer: "answer of " + id}
	run := Run{ExecutionID: id, RequestID: r.ID, Key: "k", Attempt: 1, Start: time.Duration(began) * ms, End: time.Duration(ended) * ms,
		Status: 201, Answer: r.Answer}
	for _, c := range changes {
		c(&r, &run)
	}
	m.Requests, m.Runs = append(m.Requests, r), append(m.Runs, run)
	return m
}

// told adds a request that was answered by another's run, or refused for it.
func (m *made) told(id string, came, done int, r Request, changes ...change) *made {
	r.ID, r.Key, r.Start, r.End = id, "k", time.Duration(came)*ms, time.Duration(done)*ms
	if r.Body == "" {
		r.Body = "body"
	}
	for _, c := range changes {
		c(&r, nil)
	}
	m.Requests = append(m.Requests, r)
	return m
}

func (m *made) fault(kind FaultKind, proxy, from, to int) *made {
	m.Faults = append(m.Faults, Fault{Kind: kind, Proxy: proxy, Start: time.Duration(from) * ms, End: time.Duration(to) * ms})
	return m
}

func (m *made) freed(from, to int) *made {
	m.Freed = append(m.Freed, Freed{Key: "k", Start: time.Duration(from) * ms, End: time.Duration(to) * ms})
	return m
}

// unsure makes the operators' answers ones that say neither.
func unsure(m *made) *made {
	for i := range m.Freed {
		m.Freed[i].Unsure = true
	}
	return m
}

func replayOf(id string) Request {
	return Request{Status: 201, ExecutionID: id, Replayed: true, Answer: "answer of " + id}
}

func refusal(code, id string) Request { return Request{Status: 409, Code: code, ExecutionID: id} }

func failedReplay(status int, id, answer string) Request {
	return Request{Status: status, ExecutionID: id, Replayed: true, Answer: answer}
}

func TestHistoriesThatArePromised(t *testing.T) {
	for name, m := range map[string]*made{
		"a run and its duplicates": newMade().ran("a", 0, 10, 20, 30).
			told("d1", 5, 35, replayOf("a")).told("d2", 40, 50, replayOf("a")).told("d3", 15, 16, refusal(inFlight, "a")),
		"another fingerprint": newMade().ran("a", 0, 10, 20, 30).told("d", 40, 50, refusal(reused, "a"), body("another")),
		"a failure releases": newMade().ran("a", 0, 10, 20, 30, answering(500)).
			told("waited", 5, 35, failedReplay(500, "a", "answer of a")).ran("b", 40, 50, 60, 70, attempt(2)),
		"a failure is told to one who shares the wait for it": newMade().ran("a", 0, 10, 20, 30, answering(500), at(1)).
			told("waited", 15, 60, failedReplay(500, "a", "answer of a"), at(2)).
			told("shared", 40, 60, failedReplay(500, "a", "answer of a"), at(2)),
		"a lost answer releases": newMade().ran("a", 0, 10, 20, 30, noAnswer).
			told("waited", 5, 35, failedReplay(502, "a", "")).ran("b", 40, 50, 60, 70, attempt(2)),
		"a lost answer is held": newMade().ran("a", 0, 10, 20, 30, noAnswer, hold).
			told("d", 40, 50, refusal(unknown, "a"), hold, final),
		"the last look breaks off": newMade().ran("a", 0, 10, 20, 30, noAnswer, failed, final),
		"a held key is freed by an operator": newMade().ran("a", 0, 10, 20, 30, noAnswer, hold).
			freed(40, 50).told("meanwhile", 41, 49, refusal(inFlight, "a"), hold).ran("b", 45, 60, 70, 80, attempt(2), hold),
		"a kept response is freed by an operator": newMade().ran("a", 0, 10, 20, 30).
			told("d", 35, 48, replayOf("a")).freed(40, 50).ran("b", 45, 60, 70, 80, attempt(2)),
		"a forced run replaces": newMade().ran("a", 0, 10, 20, 30).ran("b", 40, 50, 60, 70, replacing("a"), attempt(2)).
			told("d", 80, 90, replayOf("b")),
		"a forced run that fails replaces nothing": newMade().ran("a", 0, 10, 20, 30).
			ran("b", 40, 50, 60, 70, replacing("a"), attempt(2), answering(500)).told("d", 80, 90, replayOf("a")),
		"a forced run that is lost under hold": newMade().ran("a", 0, 10, 20, 30, hold).
			ran("b", 40, 50, 60, 70, replacing("a"), attempt(2), noAnswer, hold).told("d", 80, 90, replayOf("a"), hold),
		"a killed owner is taken over": newMade().fault(Killed, 1, 15, 500).
			ran("a", 0, 10, 20, 20, at(1), failed).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)).
			told("d", 1900, 1910, replayOf("b"), at(1)),
		"a killed owner is held": newMade().fault(Killed, 1, 15, 500).
			ran("a", 0, 10, 20, 20, at(1), failed, hold).told("d1", 100, 150, refusal(inFlight, "a"), hold).
			told("d2", 1600, 1700, refusal(unknown, "a"), hold),
		"a killed owner had stored": newMade().fault(Killed, 1, 15, 500).
			ran("a", 0, 10, 20, 20, at(1), failed).told("d", 1900, 1910, replayOf("a")),
		"a stopped owner comes late": newMade().fault(Stopped, 1, 15, 3000).
			ran("a", 0, 10, 20, 3010, at(1)).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)).
			told("d", 3100, 3110, replayOf("b"), at(1)),
		"a stopped owner runs late": newMade().fault(Stopped, 1, 5, 3000).
			ran("a", 0, 3005, 3050, 3060, at(1)).ran("b", 100, 1600, 3020, 3030, attempt(2), at(2)).
			told("d", 3100, 3110, replayOf("b"), at(1)),
		"its own process remembers what it could not store": newMade().fault(Unreachable, 1, 15, 5000).
			ran("a", 0, 10, 20, 30, at(1)).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)).
			told("d", 3100, 3110, replayOf("a"), at(1)),
		"its own process remembers it until it is stored": newMade().fault(Unreachable, 1, 15, 1800).
			ran("a", 0, 10, 20, 30, at(1)).ran("b", 100, 1600, 1700, 1750, attempt(2), at(2)).
			told("d", 2150, 2160, replayOf("a"), at(1)),
		"another process replays what was stored late": newMade().fault(Unreachable, 1, 15, 1800).
			ran("a", 0, 10, 20, 30, at(1)).told("d", 100, 2100, replayOf("a"), at(2)).told("d2", 3000, 3010, replayOf("a"), at(1)),
		"a claim that nobody knows of takes over and is withdrawn": newMade().fault(Unreachable, Everyone, 15, 1800).
			ran("a", 0, 10, 20, 30, at(1)).told("doubt", 1600, 1700, Request{Status: 503, Code: unavailable}, at(2)).
			ran("b", 3000, 3010, 3020, 3030, attempt(2), at(2)),
		"a replay by a process that was killed and came back": newMade().fault(Killed, 1, 35, 500).
			ran("a", 0, 10, 20, 30, at(1)).told("d", 600, 610, replayOf("a"), at(1)),
		"a request comes to a process while that starts again": newMade().fault(Killed, 1, 15, 500).fault(Unreachable, 1, 490, 2000).
			ran("a", 485, 490, 492, 495, at(1)).told("d", 600, 610, replayOf("a"), at(1)).
			ran("b", 700, 2100, 2110, 2120, attempt(2), at(2)),
		"the last attempt's failure is kept": newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 70, attempt(2), answering(500), twice).told("d", 80, 90, failedReplay(500, "b", "answer of b"), twice),
		"the last attempt has no answer": newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 70, attempt(2), noAnswer, twice).told("d", 80, 90, refusal(exhausted, "b"), twice, final),
		"the last attempt's owner is killed": newMade().fault(Killed, 1, 55, 500).ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 60, attempt(2), failed, twice, at(1)).told("d", 100, 1600, refusal(exhausted, "b"), twice),
		"an operator gives the attempts back": newMade().ran("a", 0, 10, 20, 30, noAnswer, twice).
			ran("b", 40, 50, 60, 70, attempt(2), noAnswer, twice).freed(80, 90).ran("c", 100, 110, 120, 130, attempt(3), answering(500), twice).
			ran("d", 140, 150, 160, 170, attempt(4), answering(500), twice).told("e", 180, 190, failedReplay(500, "d", "answer of d"), twice),
		"a forced run beyond the last attempt": newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 70, attempt(2), twice).ran("c", 80, 90, 100, 110, attempt(3), replacing("b"), answering(500), twice).
			told("d", 120, 130, replayOf("b"), twice),
		"a reload beside a run": newMade().fault(Reloaded, 1, 15, 500).ran("a", 0, 10, 400, 410, at(1)).told("d", 100, 420, replayOf("a"), at(1)),
		"a claim in doubt is in the way": newMade().fault(Unreachable, 1, 0, 300).
			told("doubt", 5, 200, Request{Status: 503, Code: unavailable}, at(1)).
			told("d", 210, 220, refusal(inFlight, "never ran"), at(2)).
			ran("a", 700, 710, 720, 730, attempt(1)),
		"a claim in doubt whose process dies is held": newMade().fault(Killed, 1, 5, 300).
			told("doubt", 0, 6, Request{Failure: "connection reset"}, at(1), hold).
			told("d", 2000, 2001, refusal(unknown, "never ran"), at(2), hold, final),
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range m.Check() {
				t.Errorf("not allowed: %s", strings.Join(v.Wrong, "; "))
			}
		})
	}
}

func TestHistoriesThatBreakAPromise(t *testing.T) {
	const noOrder = "no order of its events"
	for name, bad := range map[string]struct {
		made *made
		want string
	}{
		"a kept response is run again": {newMade().ran("a", 0, 10, 20, 30).ran("b", 40, 50, 60, 70, attempt(2)), noOrder},
		"two runs at once":             {newMade().ran("a", 0, 10, 20, 30).ran("b", 0, 15, 25, 30), noOrder},
		"two runs at once in a short fault": {newMade().fault(Unreachable, 0, 5, 10).
			ran("a", 0, 10, 20, 30).ran("b", 0, 15, 25, 30), noOrder},
		"a stopped owner is taken over too early": {newMade().fault(Stopped, 1, 15, 3000).
			ran("a", 0, 10, 20, 3010, at(1)).ran("b", 100, 1400, 1410, 1420, attempt(2), at(2)), noOrder},
		"a killed owner is taken over twice": {newMade().fault(Killed, 1, 15, 500).ran("a", 0, 10, 20, 20, at(1), failed).
			ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)).ran("c", 100, 1650, 1710, 1810, attempt(3), at(3)), noOrder},
		"a late response replaces the new one": {newMade().fault(Stopped, 1, 15, 3000).
			ran("a", 0, 10, 20, 3010, at(1)).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)).
			told("d", 3100, 3110, replayOf("a"), at(2)), noOrder},
		"an execution reaches the upstream twice": {newMade().ran("a", 0, 10, 20, 30).ran("a", 0, 21, 22, 30), "ran twice"},
		"under hold it runs again": {newMade().ran("a", 0, 10, 20, 30, noAnswer, hold).
			ran("b", 40, 50, 60, 70, attempt(2), hold), noOrder},
		"under hold a killed owner is taken over": {newMade().fault(Killed, 1, 15, 500).
			ran("a", 0, 10, 20, 20, at(1), failed, hold).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2), hold), noOrder},
		"under hold it is refused without a reason": {newMade().ran("a", 0, 10, 20, 30, hold).
			told("d", 40, 50, refusal(unknown, "a"), hold), noOrder},
		"an operator frees a key beside its run": {newMade().ran("a", 0, 10, 100, 110, hold).freed(40, 50), noOrder},
		"it runs again beside its run, though an operator may have freed it": {unsure(newMade().ran("a", 0, 10, 100, 110, hold).freed(40, 50)).
			ran("b", 55, 60, 70, 80, attempt(2), hold), noOrder},
		"it runs again before an operator frees it": {newMade().ran("a", 0, 10, 20, 30, noAnswer, hold).
			ran("b", 35, 38, 70, 80, attempt(2), hold).freed(40, 50), noOrder},
		"it is still held after an operator freed it": {newMade().ran("a", 0, 10, 20, 30, noAnswer, hold).
			freed(40, 50).told("d", 60, 70, refusal(unknown, "a"), hold), noOrder},
		"a replay differs": {newMade().ran("a", 0, 10, 20, 30).
			told("d", 40, 50, failedReplay(201, "a", "answer of b")), "which answered"},
		"a replay of nothing": {newMade().ran("a", 0, 10, 20, 30).
			told("d", 40, 50, replayOf("foreign")), "which this key has not"},
		"a replay before the run": {newMade().told("d", 0, 5, replayOf("a")).ran("a", 10, 20, 30, 40), noOrder},
		"a failure is replayed to one who came later": {newMade().ran("a", 0, 10, 20, 30, answering(500)).
			told("d", 40, 50, failedReplay(500, "a", "answer of a")), noOrder},
		"a failure is told to one who waits with nobody": {newMade().ran("a", 0, 10, 20, 30, answering(500), at(1)).
			told("waited", 15, 60, failedReplay(500, "a", "answer of a"), at(2)).
			told("alone", 40, 60, failedReplay(500, "a", "answer of a"), at(3)).
			told("late", 300, 310, failedReplay(500, "a", "answer of a"), at(2)), noOrder},
		"a replay of a lost answer": {newMade().ran("a", 0, 10, 20, 30, noAnswer).
			told("d", 5, 35, replayOf("a")), "ended without an answer"},
		"a forced run that fails replaces": {newMade().ran("a", 0, 10, 20, 30).
			ran("b", 40, 50, 60, 70, replacing("a"), attempt(2), answering(500)).ran("c", 80, 90, 100, 110, attempt(3)), noOrder},
		"a forced run is replaced by nothing": {newMade().ran("a", 0, 10, 20, 30).
			ran("b", 40, 50, 60, 70, replacing("a"), attempt(2)).told("d", 80, 90, replayOf("a")), noOrder},
		"a forced request is replayed": {newMade().ran("a", 0, 10, 20, 30).told("d", 40, 50, replayOf("a"), force), noOrder},
		"a forced run names another parent": {newMade().ran("a", 0, 10, 20, 30).
			ran("b", 40, 50, 60, 70, replacing("z"), attempt(2)), noOrder},
		"an attempt is counted twice": {newMade().ran("a", 0, 10, 20, 30, answering(500)).ran("b", 40, 50, 60, 70, attempt(1)), noOrder},
		"an attempt is left out":      {newMade().ran("a", 0, 10, 20, 30, answering(500)).ran("b", 40, 50, 60, 70, attempt(3)), noOrder},
		"the same request is refused as another": {newMade().ran("a", 0, 10, 20, 30).
			told("d", 40, 50, refusal(reused, "a")), noOrder},
		"in flight after its end": {newMade().ran("a", 0, 10, 20, 30).told("d", 40, 50, refusal(inFlight, "a")), noOrder},
		"in the way for ever": {newMade().fault(Killed, 1, 15, 500).ran("a", 0, 10, 20, 20, at(1), failed).
			told("d", 9000, 9001, refusal(inFlight, "a"), final), "still in the way"},
		"a claim in doubt is held, though its process lives": {newMade().fault(Unreachable, 1, 0, 300).
			told("doubt", 5, 200, Request{Status: 503, Code: unavailable}, at(1), hold).
			told("d", 9000, 9001, refusal(unknown, "never ran"), at(2), hold, final), "still in the way"},
		"the last look has no answer": {newMade().told("d", 0, 5, Request{Failure: "timed out"}, final), "still in the way"},
		"named without a run":         {newMade().ran("a", 0, 10, 20, 30).told("d", 5, 15, refusal(inFlight, "never ran")), "which never was"},
		"an answer that nothing calls for": {newMade().ran("a", 0, 10, 20, 30).
			told("d", 40, 50, refusal("record_unreadable", "a")), "nothing in this load calls for"},
		"a response is never stored": {newMade().fault(Unreachable, 1, 15, 1800).
			ran("a", 0, 10, 20, 30, at(1)).ran("b", 3000, 3010, 3020, 3030, attempt(2), at(2)), noOrder},
		"a response that could not be stored is remembered for ever": {newMade().fault(Unreachable, 1, 15, 1800).
			ran("a", 0, 10, 20, 30, at(1)).ran("b", 100, 1600, 1700, 1750, attempt(2), at(2)).
			told("d", 9000, 9010, replayOf("a"), at(1)), noOrder},
		"a run is in flight long after its end": {newMade().ran("a", 0, 10, 20, 5, failed).
			told("d", 5000, 5010, refusal(inFlight, "a"), at(2)), noOrder},
		"a killed process remembers": {newMade().fault(Unreachable, 1, 15, 1800).fault(Killed, 1, 500, 600).
			ran("a", 0, 10, 20, 30, at(1)).ran("b", 700, 1650, 1700, 1750, attempt(2), at(2)).
			told("d", 1900, 1910, replayOf("a"), at(1)), noOrder},
		"what another process has replayed runs again": {newMade().fault(Killed, 1, 15, 500).ran("a", 0, 10, 20, 20, at(1), failed).
			told("d", 600, 610, replayOf("a"), at(2)).ran("b", 700, 1700, 1710, 1720, attempt(2), at(2)), noOrder},
		"what its process replays after it was killed runs again": {newMade().fault(Killed, 1, 15, 500).ran("a", 0, 10, 20, 20, at(1), failed).
			told("d", 600, 610, replayOf("a"), at(1)).ran("b", 700, 1700, 1710, 1720, attempt(2), at(1)), noOrder},
		"a late failure is told by another process, and still in flight": {newMade().fault(Unreachable, 1, 15, 1200).
			ran("a", 0, 10, 20, 30, answering(500), at(1)).told("d", 25, 100, failedReplay(500, "a", "answer of a"), at(2)).
			told("d2", 150, 160, refusal(inFlight, "a"), at(3)), noOrder},
		"a replay before the run's end": {newMade().ran("a", 0, 10, 200, 210, at(1)).told("d", 20, 30, replayOf("a"), at(2)), "before that had ended"},
		"a store file forgets at a kill": {newMade().fault(Killed, 0, 200, 500).
			ran("a", 0, 10, 20, 30).ran("b", 600, 610, 620, 630, attempt(2)), noOrder},
		"a reload ends a claim": {newMade().fault(Reloaded, 1, 15, 3000).
			ran("a", 0, 10, 2000, 3010, at(1)).ran("b", 100, 1600, 1700, 1800, attempt(2), at(2)), noOrder},
		"a reload forgets": {newMade().fault(Reloaded, 0, 25, 500).
			ran("a", 0, 10, 20, 30).ran("b", 600, 610, 620, 630, attempt(2)), noOrder},
		"an attempt too many": {newMade().ran("a", 0, 10, 20, 30, answering(500), twice).ran("b", 40, 50, 60, 70, attempt(2), noAnswer, twice).
			ran("c", 80, 90, 100, 110, attempt(3), twice), noOrder},
		"a lapsed attempt too many": {newMade().fault(Killed, 1, 55, 500).ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 60, attempt(2), failed, twice, at(1)).ran("c", 100, 1600, 1610, 1620, attempt(3), twice), noOrder},
		"the last attempt's failure runs again": {newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 70, attempt(2), answering(500), twice).ran("c", 80, 90, 100, 110, attempt(3), twice), noOrder},
		"the last attempt's failure is not kept": {newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			ran("b", 40, 50, 60, 70, attempt(2), answering(500), twice).told("d", 80, 90, refusal(exhausted, "b"), twice), noOrder},
		"a failure is kept with attempts left": {newMade().ran("a", 0, 10, 20, 30, answering(500), twice).
			told("d", 40, 50, failedReplay(500, "a", "answer of a"), twice), noOrder},
		"exhausted with attempts left": {newMade().ran("a", 0, 10, 20, 30, noAnswer, twice).
			told("d", 40, 50, refusal(exhausted, "a"), twice), noOrder},
		"exhausted without a limit": {newMade().ran("a", 0, 10, 20, 30, noAnswer).told("d", 40, 50, refusal(exhausted, "a")), noOrder},
		"exhausted after an operator gave the attempts back": {newMade().ran("a", 0, 10, 20, 30, noAnswer, twice).
			ran("b", 40, 50, 60, 70, attempt(2), noAnswer, twice).freed(80, 90).told("d", 100, 110, refusal(exhausted, "b"), twice), noOrder},
		"a run that nobody asked for": {&made{History{Lease: ms, Runs: []Run{{ExecutionID: "a", RequestID: "?", Key: "k"}}}}, "nobody sent"},
	} {
		t.Run(name, func(t *testing.T) {
			violations := bad.made.Check()
			if len(violations) != 1 || !strings.Contains(strings.Join(violations[0].Wrong, "\n"), bad.want) {
				t.Errorf("found %v, want %q", violations, bad.want)
			}
		})
	}
}

// Where the store forgets, keys may run again; no answer may be a wrong one.
func TestHistoriesOfAForgetfulStore(t *testing.T) {
	again := newMade().ran("a", 0, 10, 20, 30, hold).ran("b", 15, 25, 40, 50, hold).told("d", 60, 70, replayOf("b"), hold)
	again.Forgetful = true
	if v := again.Check(); len(v) > 0 {
		t.Errorf("not allowed: %v", v)
	}
	again.told("d2", 80, 90, failedReplay(201, "b", "answer of a"), hold)
	again.told("d3", 80, 90, replayOf("foreign"), hold)
	again.ran("b", 100, 110, 120, 130, hold)
	v := again.Check()
	if len(v) != 1 || len(v[0].Wrong) < 3 {
		t.Errorf("found %v, want a wrong replay, a foreign one and a second run of one execution", v)
	}
}

func exclusive(m *made) *made {
	m.Exclusive = true
	return m
}

// Where a store belongs to one process, nobody waits for the leases of one that was killed.
func TestHistoriesOfAnExclusiveStore(t *testing.T) {
	killed := func() *made { return exclusive(newMade().fault(Killed, 0, 500, 600)) }
	for name, m := range map[string]*made{
		"a claim dies with its process": killed().ran("a", 400, 410, 505, 505, failed).ran("b", 650, 660, 670, 680),
		"a failure before it counts": killed().ran("a", 0, 2, 3, 4, answering(500)).
			ran("b", 400, 410, 505, 505, attempt(2), failed).ran("c", 650, 660, 670, 680, attempt(2)),
		"a forced claim leaves the kept response": killed().ran("a", 0, 2, 3, 4).
			ran("b", 400, 410, 505, 505, attempt(2), replacing("a"), failed).told("d", 650, 660, replayOf("a")),
		"its end was stored all the same":           killed().ran("a", 400, 410, 490, 505, failed).told("d", 650, 660, replayOf("a")),
		"a claim under hold is held at once":        killed().ran("a", 400, 410, 505, 505, failed, hold).told("d", 650, 660, refusal(unknown, "a"), hold),
		"a limited claim is taken over and counted": killed().ran("a", 400, 410, 505, 505, failed, twice).ran("b", 650, 660, 670, 680, attempt(2), twice),
	} {
		for _, v := range m.Check() {
			t.Errorf("%s is not allowed: %s", name, strings.Join(v.Wrong, "; "))
		}
	}
	for name, m := range map[string]*made{
		"a kept response dies with its process": killed().ran("a", 0, 2, 3, 4).ran("b", 650, 660, 670, 680),
		"a limited claim is not counted":        killed().ran("a", 400, 410, 505, 505, failed, twice).ran("b", 650, 660, 670, 680, twice),
		"a claim under hold dies":               killed().ran("a", 400, 410, 505, 505, failed, hold).ran("b", 650, 660, 670, 680, hold),
		"a claim stands after its process":      killed().ran("a", 400, 410, 505, 505, failed).told("d", 650, 660, refusal(inFlight, "a")),
		"a claim dies without a kill":           exclusive(newMade()).ran("a", 400, 410, 505, 505, failed).ran("b", 650, 660, 670, 680),
	} {
		if len(m.Check()) == 0 {
			t.Errorf("%s is allowed", name)
		}
	}
}

func TestKeysAreCheckedApart(t *testing.T) {
	m := newMade().ran("a", 0, 10, 20, 30)
	m.ran("b", 0, 10, 20, 30, func(r *Request, run *Run) { r.Key, run.Key = "k2", "k2" })
	if v := m.Check(); len(v) > 0 {
		t.Errorf("two keys are taken for one: %v", v)
	}
	m.told("d", 40, 50, replayOf("b"))
	if v := m.Check(); len(v) != 1 || v[0].Key != "k" {
		t.Errorf("found %v, want the replay of another key's response", v)
	}
}

func TestFailingHistoryIsKept(t *testing.T) {
	m := newMade().fault(Stopped, 1, 15, 20).ran("a", 0, 10, 20, 30).ran("b", 40, 50, 60, 70, attempt(2))
	m.ran("c", 0, 10, 20, 30, func(r *Request, run *Run) { r.Key, run.Key = "k2", "k2" })
	violations := m.Check()
	if len(violations) != 1 {
		t.Fatalf("found %v, want one", violations)
	}
	path, err := m.Save(t.TempDir(), violations[0])
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	loaded := new(History)
	if err := json.Unmarshal(text, loaded); err != nil {
		t.Fatal(err)
	}
	if want := m.Of("k"); !reflect.DeepEqual(loaded, want) {
		t.Errorf("loaded %+v, want %+v", loaded, want)
	}
	again := loaded.Check()
	if len(again) != 1 || !reflect.DeepEqual(again[0].Wrong, violations[0].Wrong) {
		t.Errorf("loaded, it has %v wrong, want %v", again, violations)
	}
	if _, err := os.Stat(strings.TrimSuffix(path, filepath.Ext(path)) + ".html"); err != nil {
		t.Error("there is no drawing of it: ", err)
	}
}
