package caddymodule

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/observe"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler makes the handlers behind it idempotent. It reads the idempotency key or delivery ID of
// a request, claims it in a store, lets exactly one request through, keeps the response and
// replays it to duplicates. If the upstream fails, it releases the key for a retry.
//
// Without providers and keys it serves the `Idempotency-Key` header of an API.
// With providers it serves their webhooks.
//
// The handler sets the placeholders `{http.dedup.outcome}`,
// `{http.dedup.key}`, `{http.dedup.provider}`, `{http.dedup.delivery_id}` (not
// under `encrypt`), `{http.dedup.execution_id}` and `{http.dedup.attempt}`, and fields
// of the same names in the access log, prefixed with `dedup_`. A placeholder without a
// value is empty. The key is the same in every attempt and on every replica, so it can
// be forwarded to the upstream.
//
// Members of a JSON body are placeholders for `scope`, for the `value` of a key and for the
// handlers behind: `{http.dedup.json.<JSON pointer>}`. For a duplicate, error routes and handlers
// in front can read the run that completed the key:
// `{http.dedup.first.status}`, `{http.dedup.first.execution_id}`,
// `{http.dedup.first.header.<field>}` and `{http.dedup.first.json.<JSON pointer>}`.
type Handler struct {
	Settings

	handler caddyhttp.MiddlewareHandler // an [exchange.Handler], or an [observe.Handler]
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.dedup",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision fills in the defaults, checks the settings and loads the store. It opens nothing.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := ctx.App("dedup")
	if err != nil { // of no site
		return fmt.Errorf("loading the dedup app: %w", err)
	}
	site := siteOf(ctx)
	if err = h.provision(ctx, app.(*App)); err != nil && site != "" {
		return fmt.Errorf("site %s: %w", site, err)
	}
	return err
}

func (h *Handler) provision(ctx caddy.Context, app *App) (err error) {
	h.setDefaults()
	if err := h.check(); err != nil {
		return err
	}
	store := app.store
	if h.StoreRaw != nil {
		if store, err = app.loadStore(ctx, h, h.StoreRaw); err != nil {
			return err
		}
	}
	if store, err = app.use(store, &h.Settings); err != nil {
		return err
	}
	keys := h.identification()
	if keys.Verify, err = h.verification(); err != nil {
		return err
	}
	keys.Namespace = app.Namespace
	if keys.Mode == delivery.ModeMCP {
		keys.Calls = toolcall.Mode{Shared: store.Config.Shared(), Tools: h.Tools}
	}
	reporter := &report.Reporter{
		Observer: processMetrics, Logger: ctx.Logger(), Label: labelOf(keys.Mode, keys.Sources), Encrypted: app.sealer != nil,
	}
	processMetrics.addHandler(keys, reporter.Label, h.Observe)
	h.warn(keys, reporter.Logger)
	if h.Observe {
		h.handler = observe.New(h.observing(keys, reporter, store))
	} else {
		h.handler = exchange.New(h.exchanging(keys, reporter, store, duration(app.Limits.ClientIdle)))
	}
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		exchange.KeepConns(server)
		server.RegisterOnShutdown(app.noteServerStop)
	}
	return checkLease(store.Config, duration(h.Lease))
}

// ServeHTTP implements [caddyhttp.MiddlewareHandler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return h.handler.ServeHTTP(w, r, next)
}

// warn logs what an operator should know of the settings.
func (h *Handler) warn(keys identify.Config, log *zap.Logger) {
	h.warnOfPointers(log)
	if line := h.unsignedCaller(); line != "" {
		log.Warn("verify: a captured request runs again for another caller, whose fields are not signed; have the sender sign the caller, write a scope, or mode webhook",
			zap.String("verify_hmac", line))
	}
	if keys.Verify != nil {
		if first, second := equalSecrets(keys.Verify.Verifiers); second != "" {
			log.Warn("verify: two senders have one secret, and an unsigned field tells their requests apart: a captured one can run again as the other's; give each a secret of its own",
				zap.Strings("providers", []string{first, second}))
		}
	}
	if h.Observe {
		log.Warn("observe: requests are only counted and logged; duplicates run")
		if keys.Verify != nil {
			log.Warn("observe: verify refuses nothing; requests with a wrong signature are counted, logged and passed on")
		}
	} else if h.OnStoreError == storeErrorPass {
		log.Warn("on_store_error pass: while the store fails, requests pass unprotected and duplicates run")
	}
}

// identification converts checked settings.
func (s *Settings) identification() identify.Config {
	c := identify.Config{
		Mode:           delivery.Mode(s.Mode),
		Methods:        s.Methods,
		Sources:        s.deliverySources(),
		Providers:      s.providers(),
		Exclude:        s.Exclude,
		MaxKeyLength:   s.MaxKeyLength,
		Scope:          s.Scope,
		Caller:         s.Caller,
		Fingerprint:    idempotency.FingerprintKind(s.Fingerprint),
		Force:          s.Force,
		RejectMissing:  s.OnMissing == missingReject,
		MaxRequestBody: s.MaxRequestBody,
	}
	if c.Mode == delivery.ModeMCP {
		c.Methods = []string{http.MethodPost, http.MethodDelete, http.MethodGet}
	}
	if s.RetentionFrom != nil {
		c.RetentionFrom = &identify.RetentionSource{Source: s.RetentionFrom.source(), Max: duration(s.RetentionFrom.Max)}
	}
	c.Policies = map[string]idempotency.Policy{"": s.policyFor("")}
	for _, provider := range c.Providers {
		c.Policies[provider.Name] = s.policyFor(provider.Name)
	}
	return c
}

// rules converts checked settings.
func (s *Settings) rules() (rules upstream.Rules) {
	for _, condition := range s.ReleaseIf {
		rules.ReleaseIf = append(rules.ReleaseIf, upstream.ReleaseIf{Pointer: condition.JSON, Values: condition.Values})
	}
	return rules
}

// exchanging converts checked settings.
func (s *Settings) exchanging(keys identify.Config, reporter *report.Reporter, store *storepool.Handle, clientIdle time.Duration) exchange.Config {
	return exchange.Config{
		Identify: keys, Report: reporter, Rules: s.rules(),
		Timeout:         duration(s.Timeout),
		Wait:            duration(*s.Wait),
		PassUnavailable: s.OnStoreError == storeErrorPass,
		OnDuplicate:     idempotency.OnDuplicate(s.OnDuplicate),
		MaxResponseBody: s.MaxResponseBody,
		KeepHeader:      s.KeepHeader,
		ClientIdle:      clientIdle,
		Docs:            s.Docs,
		Store:           store,
		Budget:          buffered,
	}
}

// observing converts checked settings.
func (s *Settings) observing(keys identify.Config, reporter *report.Reporter, store *storepool.Handle) observe.Config {
	return observe.Config{
		Identify: keys, Report: reporter, Rules: s.rules(),
		Timeout:         duration(s.Timeout),
		Wait:            duration(*s.Wait),
		OnDuplicate:     idempotency.OnDuplicate(s.OnDuplicate),
		MaxResponseBody: s.MaxResponseBody,
		Store:           store,
		Budget:          buffered,
	}
}

// policyFor returns the policy for requests of a provider, or of none ("").
func (s *Settings) policyFor(provider string) idempotency.Policy {
	releaseOn, _ := idempotency.ParseStatuses(s.releasing()...) // checked by Provision
	return idempotency.Policy{
		Terms: idempotency.Terms{
			Lease:       duration(s.Lease),
			Retention:   s.retentionOf(provider),
			Hold:        s.OnUnknown == unknownHold,
			MaxAttempts: s.MaxAttempts,
		},
		ReleaseOn: releaseOn,
	}
}

// retentionOf returns the configured retention, or the default for a provider ("" for none).
func (s *Settings) retentionOf(provider string) time.Duration {
	if s.Retention != 0 {
		return duration(s.Retention)
	}
	if p, ok := delivery.ProviderNamed(provider); ok && p.Retention != 0 {
		return p.Retention
	}
	return delivery.DefaultRetention
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
