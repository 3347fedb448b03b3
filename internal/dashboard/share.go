package dashboard

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errBusy says that too many different questions are being asked of the stores.
var errBusy = errors.New("too many questions are being asked of the stores at once")

// sharing asks the stores a question once for all who ask it at the same time, and
// gives the same answer to those who ask it for a while afterwards. So a thousand views
// of the page cost the stores what one costs.
type sharing[T any] struct {
	most int // questions at a time, with those that are answered and remembered

	mu    sync.Mutex
	asked map[string]*asked[T]
}

// asked is a question that somebody has asked.
type asked[T any] struct {
	answered chan struct{}
	answer   T
	err      error
	until    time.Time // the answer holds; zero while there is none
}

// ask returns the answer to a question. find looks for it, and says for how long it
// holds. Who has asked first looks, also if its client leaves: others wait for it.
func (s *sharing[T]) ask(ctx context.Context, question string, find func(context.Context) (T, time.Duration, error)) (T, error) {
	a, first, err := s.join(question)
	if err != nil {
		var none T
		return none, err
	}
	if first {
		s.answer(context.WithoutCancel(ctx), a, find)
	}
	select {
	case <-a.answered:
		return a.answer, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// join returns the question, and whether nobody is looking for its answer yet.
func (s *sharing[T]) join(question string) (a *asked[T], first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if a, ok := s.asked[question]; ok && (a.until.IsZero() || now.Before(a.until)) {
		return a, false, nil
	}
	delete(s.asked, question)
	if len(s.asked) >= s.most && !s.dropLocked() {
		return nil, false, errBusy
	}
	if s.asked == nil {
		s.asked = make(map[string]*asked[T])
	}
	a = &asked[T]{answered: make(chan struct{}), err: errors.New("the stores could not be looked at")}
	s.asked[question] = a
	return a, true, nil
}

// dropLocked makes room for a question: the answer that ends first goes.
func (s *sharing[T]) dropLocked() bool {
	var oldest *asked[T]
	name := ""
	for question, a := range s.asked {
		if !a.until.IsZero() && (oldest == nil || a.until.Before(oldest.until)) {
			name, oldest = question, a
		}
	}
	if oldest == nil {
		return false
	}
	delete(s.asked, name)
	return true
}

func (s *sharing[T]) answer(ctx context.Context, a *asked[T], find func(context.Context) (T, time.Duration, error)) {
	holds := time.Duration(0)
	defer func() {
		s.mu.Lock()
		a.until = time.Now().Add(holds)
		s.mu.Unlock()
		close(a.answered)
		time.AfterFunc(holds, s.sweep) // its memory is free then
	}()
	a.answer, holds, a.err = find(ctx)
}

// forget drops all answers: something has changed.
func (s *sharing[T]) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for question, a := range s.asked {
		if a.until.IsZero() { // it is being looked for, and may be of before the change
			a.until = time.Unix(1, 0)
		}
		delete(s.asked, question)
	}
}

// sweep drops the answers that hold no more.
func (s *sharing[T]) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for question, a := range s.asked {
		if !a.until.IsZero() && !time.Now().Before(a.until) {
			delete(s.asked, question)
		}
	}
}
