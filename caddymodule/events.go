package caddymodule

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"

	"github.com/caddy-dedup/caddy-dedup/internal/dashboard"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The events that Caddy's events app is told of.
const (
	eventTakeover  = "dedup.takeover"
	eventHeld      = "dedup.held"
	eventFreed     = "dedup.freed"
	eventForgotten = "dedup.forgotten"
)

// events emits events of one configuration. The zero value emits none.
type events struct {
	app *caddyevents.App
	ctx caddy.Context
}

// eventsOf returns the events of a module.
func eventsOf(ctx caddy.Context) (events, error) {
	app, err := ctx.App("events")
	if err != nil {
		return events{}, fmt.Errorf("loading the events app: %w", err)
	}
	return events{app.(*caddyevents.App), ctx}, nil
}

// emit tells whoever has subscribed to an event. It waits for nobody: what they do about it
// is no part of a request.
func (e events) emit(name string, data func() map[string]any) {
	if e.app != nil && e.app.ShouldEmit(name) {
		go e.app.Emit(e.ctx, name, data())
	}
}

// emit tells of what has happened to a run.
func (x *exchange) emit(name string, run *idempotency.Record) {
	x.events.emit(name, func() map[string]any {
		data := map[string]any{
			"key": x.keyText(), "provider": x.found.Provider, "execution_id": run.ExecutionID, "attempt": run.Attempt,
		}
		if !x.encrypted {
			data["delivery_id"] = x.found.ID
		}
		return data
	})
}

// tellTakeover tells of a run that has taken over a claim, if it has.
func (x *exchange) tellTakeover(run *engine.Run) {
	if run.Lapsed() == "" {
		return
	}
	x.traceEvent(spanTakeover)
	x.emit(eventTakeover, run.Record())
	x.note(dashboard.Note{What: dashboard.TookOver, ExecutionID: run.ExecutionID(), Attempt: run.Attempt()})
}
