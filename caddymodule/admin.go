package caddymodule

import (
	"context"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/openstores"
)

func init() {
	caddy.RegisterModule(new(AdminAPI))
}

// AdminAPI answers operators' requests about keys at Caddy's admin address:
//
//	GET    /dedup/keys                records, by state, delivery ID and more, in pages
//	POST   /dedup/lookup              the records of many delivery IDs
//	GET    /dedup/keys/<key>          the key's record; with ?body=true its response, too
//	POST   /dedup/keys/<key>/release  frees a held, complete or exhausted key, and keeps its history
//	DELETE /dedup/keys/<key>          forgets the key
//	GET    /dedup/ready               whether the stores answer
type AdminAPI struct{}

// CaddyModule returns the Caddy module information.
func (*AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.dedup",
		New: func() caddy.Module { return new(AdminAPI) },
	}
}

// Routes implements [caddy.AdminRouter].
func (*AdminAPI) Routes() []caddy.AdminRoute {
	open := openTo(func(store operated) admin.Store { return store })
	api := &admin.API{Open: open, ParseDuration: caddy.ParseDuration, User: userOf}
	var routes []caddy.AdminRoute
	for _, route := range api.Routes() {
		routes = append(routes, caddy.AdminRoute{Pattern: route.Pattern, Handler: caddy.AdminHandlerFunc(route.Serve)})
	}
	return routes
}

// operated is a store whose keys an operator frees and forgets.
type operated struct{ *openstores.Opened }

// Free implements [admin.Store].
func (o operated) Free(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	return acted(ctx, eventFreed, key, seen, o.Opened.Free)
}

// Forget implements [admin.Store].
func (o operated) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	return acted(ctx, eventForgotten, key, seen, o.Opened.Forget)
}

// openTo returns what says which stores are open in this process, and enters them, for
// a tool of operators that knows them as something of its own.
func openTo[S any](as func(operated) S) func() []S {
	return func() (open []S) {
		for _, store := range stores.All() {
			open = append(open, as(operated{store}))
		}
		return open
	}
}

// acted does something about a key, and tells of it. The stores are those of the process:
// the configuration that runs is told.
func acted(ctx context.Context, name string, key idempotency.Key, seen idempotency.Seen,
	do func(context.Context, idempotency.Key, idempotency.Seen) error) error {
	if err := do(ctx, key, seen); err != nil {
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

var _ caddy.AdminRouter = (*AdminAPI)(nil)
