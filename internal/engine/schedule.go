package engine

import (
	"container/heap"
	"sync"
	"time"
)

// schedule has the runs whose leases are to be renewed, each at its time. One timer
// serves them all: most runs are over before their time, and then it is never set for
// them.
type schedule struct {
	mu   sync.Mutex
	runs byTime
	// timer is set for alarm; while that is zero it is not set.
	timer *time.Timer
	alarm time.Time
	// stopped says that the timer is not set any more.
	stopped bool
}

// scheduled is what the schedule knows of a run, under its lock.
type scheduled struct {
	at    time.Time
	place int  // in the heap; below 0 while the run is not in it
	ended bool // nobody needs the lease any more
}

// renewAt has the lease of a run renewed at a time, unless the run has ended.
func (e *Engine) renewAt(r *Run, at time.Time) {
	s := &e.renewals
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.renewal.ended {
		return
	}
	r.renewal.at = at
	heap.Push(&s.runs, r)
	e.setAlarmLocked()
}

// setAlarmLocked sets the timer for the first run, if it would go off later.
func (e *Engine) setAlarmLocked() {
	s := &e.renewals
	if len(s.runs) == 0 || s.stopped {
		return
	}
	first := s.runs[0].renewal.at
	if !s.alarm.IsZero() && !first.Before(s.alarm) {
		return
	}
	s.alarm = first
	if s.timer == nil {
		s.timer = time.AfterFunc(time.Until(first), e.renewAll)
	} else {
		s.timer.Reset(time.Until(first))
	}
}

// stop lets go of a closed engine, which renews nothing, and which the timer would else hold
// until it goes off.
func (s *schedule) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// renewAll renews the leases whose time has come.
func (e *Engine) renewAll() {
	s := &e.renewals
	s.mu.Lock()
	defer s.mu.Unlock()
	for now := time.Now(); len(s.runs) > 0 && !s.runs[0].renewal.at.After(now); {
		r := heap.Pop(&s.runs).(*Run)
		e.goBackground(r.renew)
	}
	s.alarm = time.Time{}
	e.setAlarmLocked()
}

// stopRenewal takes a run that ends out of the schedule for good. It reports false if the
// run has ended before.
func (e *Engine) stopRenewal(r *Run) bool {
	s := &e.renewals
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.renewal.ended {
		return false
	}
	r.renewal.ended = true
	if r.renewal.place >= 0 {
		heap.Remove(&s.runs, r.renewal.place)
	}
	return true
}

// needsNoLease reports whether nobody needs the lease of a run any more.
func (e *Engine) needsNoLease(r *Run) bool {
	e.renewals.mu.Lock()
	defer e.renewals.mu.Unlock()
	return r.renewal.ended || e.ctx.Err() != nil
}

// byTime is a heap: the run that is first to be renewed comes first.
type byTime []*Run

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].renewal.at.Before(h[j].renewal.at) }

func (h byTime) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].renewal.place, h[j].renewal.place = i, j
}

func (h *byTime) Push(run any) {
	r := run.(*Run)
	r.renewal.place = len(*h)
	*h = append(*h, r)
}

func (h *byTime) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	r.renewal.place = -1
	return r
}
