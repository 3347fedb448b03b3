package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
)

// starting is a configuration that has not started yet. Its servers answer before all of it
// has, and if the rest fails, the configuration before goes on: a run that began in between
// would be known to the store, the namespace or the scope of a configuration that was never
// loaded, and its retry would run again.
type starting struct {
	gone <-chan struct{} // the configuration's end

	once sync.Once
	over chan struct{}
	err  error // once it is over
}

// errNotStarted is why nothing runs under a configuration.
var errNotStarted = errors.New("the request came to a new configuration, which failed to start; the one before goes on")

// startPatience is how long a request waits for the start of its configuration at most. A
// start that takes longer, because of a disk that hangs, say, is to make no server hang.
const startPatience = time.Second

// startingOf returns the start of a configuration. Where no other one would go on, nobody
// has to wait for it.
func startingOf(ctx caddy.Context) (*starting, error) {
	s := &starting{gone: ctx.Done(), over: make(chan struct{})}
	if caddy.ActiveContext().Context == nil {
		s.end(nil)
		return s, nil
	}
	app, err := ctx.App("events")
	if err == nil {
		err = app.(*caddyevents.App).On("started", s)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing to the start of the configuration: %w", err)
	}
	return s, nil
}

// Handle implements [caddyevents.Handler], for the event that all has started.
func (s *starting) Handle(context.Context, caddy.Event) error {
	s.end(nil)
	return nil
}

// end says how the start has ended. What is said first counts.
func (s *starting) end(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.over)
	})
}

// wait waits for the end of the start.
func (s *starting) wait(ctx context.Context) error {
	select {
	case <-s.over:
		return s.err
	default:
	}
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-s.over:
	case <-s.gone:
		s.end(errNotStarted)
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.C:
		s.end(nil)
	}
	<-s.over
	return s.err
}

var _ caddyevents.Handler = (*starting)(nil)
