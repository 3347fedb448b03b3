package exchange

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// auditForce logs what became of a forced request that is not a forced run.
func (x *exchange) auditForce(decision engine.Decision) {
	switch d := decision.(type) {
	case *engine.Run:
		if d.ParentID() == "" {
			x.audit("force: no response is kept, and the request is an ordinary run", d.ExecutionID(), d.Attempt())
		}
	case engine.Replay:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Follow:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Refusal:
		id, attempt := d.Run()
		x.audit("force: the request was refused", id, attempt, zap.String("code", string(d.Reason)))
	}
}

// audit logs a forced request with its client.
func (x *exchange) audit(what, executionID string, attempt int, more ...zap.Field) {
	client, _ := caddyhttp.GetVar(x.r.Context(), caddyhttp.ClientIPVarKey).(string)
	x.Logger.Info(what, append(more,
		zap.Inline(x), zap.String("execution_id", executionID), zap.Int("attempt", attempt),
		zap.String("client_ip", client), userField(x.r))...)
}

// User returns the user that a handler in front has authenticated, "" for none.
func User(r *http.Request) string {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "" // the admin API has none
	}
	user, _ := repl.GetString("http.auth.user.id")
	return user
}

// userField returns the user as a log field, if there is one.
func userField(r *http.Request) zap.Field {
	if user := User(r); user != "" {
		return zap.String("user", user)
	}
	return zap.Skip()
}
