package caddymodule

import (
	"context"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/openstores"
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
}

// operated is a store whose keys an operator frees and forgets.
type operated struct{ *openstores.Store }

// Free implements [admin.Store].
func (o operated) Free(ctx context.Context, key idempotency.Key) error {
	return acted(ctx, eventFreed, key, o.Store.Free)
}

// Forget implements [admin.Store].
func (o operated) Forget(ctx context.Context, key idempotency.Key) error {
	return acted(ctx, eventForgotten, key, o.Store.Forget)
}

// acted does something about a key, and tells of it. The stores are those of the process:
// the configuration that runs is told.
func acted(ctx context.Context, name string, key idempotency.Key, do func(context.Context, idempotency.Key) error) error {
	if err := do(ctx, key); err != nil {
		return err
	}
	active := caddy.ActiveContext()
	app, err := active.AppIfConfigured("events")
	if err != nil {
		return nil //nolint:nilerr // nobody has subscribed
	}
	events{app.(*caddyevents.App), active}.emit(name, func() map[string]any {
		by := engine.OperatorOf(ctx)
		return map[string]any{"key": key.String(), "remote": by.Remote, "user": by.User}
	})
	return nil
}

// userOf names the user whom a handler in front has authenticated, "" for nobody.
func userOf(r *http.Request) string {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "" // the admin API has none
	}
	user, _ := repl.GetString("http.auth.user.id")
	return user
}

// userField is the user as a log field, if there is one.
func userField(r *http.Request) zap.Field {
	if user := userOf(r); user != "" {
		return zap.String("user", user)
	}
	return zap.Skip()
}
