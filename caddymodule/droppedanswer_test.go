package caddymodule

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lateFailure is a handler that fails when it has answered.
type lateFailure struct{}

func init() {
	caddy.RegisterModule(new(lateFailure))
	httpcaddyfile.RegisterHandlerDirective("late_failure", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return new(lateFailure), nil
	})
}

func (*lateFailure) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.late_failure", New: func() caddy.Module { return new(lateFailure) }}
}

func (*lateFailure) ServeHTTP(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
	w.Header().Set("Content-Length", "4")
	w.Header().Set("Content-Type", "text/made")
	w.Header().Set("Location", "/made/1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "made")
	return caddyhttp.Error(http.StatusInternalServerError, errors.New("failed at the end"))
}

// An error drops an answer that was written before it, and with it the answer's header: its
// length would cut the page that the client gets instead.
func TestErrorBehindAnAnswerIsWhole(t *testing.T) {
	for name, c := range map[string]struct {
		routes []string
		want   string
	}{
		"a page":  {[]string{"handle_errors {", `respond "sorry, it failed" 500`, "}"}, "sorry, it failed"},
		"no page": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(c.routes, "route {", "header X-Front 1", "dedup", "late_failure", "}")...)
			got, err := s.post("k", "body")
			if err != nil || got.status != 500 || got.body != c.want {
				t.Errorf("the client got %+v, %v; want 500 with %q", got, err, c.want)
			}
			if got.header.Get("Location") != "" || got.header.Get("Content-Type") == "text/made" || got.header.Get("X-Front") != "1" {
				t.Errorf("its header is %v", got.header)
			}
			if record := s.only(); record.State != idempotency.Released {
				t.Errorf("the record is %s", record.State)
			}
		})
	}
}
