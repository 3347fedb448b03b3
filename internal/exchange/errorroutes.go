package exchange

import (
	"context"
	"maps"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// dedup answers a request with a key itself if it is refused or fails, and does not return the error:
// the server would run its error routes (handle_errors), or a subroute in front its own, with the
// request as it came, and a proxy among them would execute it. Here they get a GET without a body, as
// with nginx's error_page.

// fail logs why a request has failed, and answers it.
func (x *exchange) fail(err error) {
	logFailure(&x.Report, err)
	x.answerError(err)
}

// logFailure logs why a request has failed, at the level that the server would use.
func logFailure(of *report.Report, err error) {
	level := zapcore.DebugLevel
	if upstream.FailedStatus(err) >= http.StatusInternalServerError {
		level = zapcore.ErrorLevel
	}
	of.Logger.Log(level, "the request failed", zap.Inline(of), zap.Error(err))
}

// answerError answers a request with the server's error routes. If none of them answers, it writes the
// status alone, as the server does.
func (x *exchange) answerError(err error) {
	if !x.serveErrorPage(err) {
		x.w.WriteHeader(upstream.FailedStatus(err))
	}
}

// serveErrorPage runs the server's error routes to show why a request failed, and reports whether they
// answered.
func (x *exchange) serveErrorPage(cause error) bool {
	return x.serveErrorRoutes(errorPageRequest(x.r), cause, true)
}

// returnError returns an error of the handlers behind, as without dedup. If dedup has read the
// body, it runs the server's error routes itself: the server would give them its own request, whose
// body is already consumed.
func (x *exchange) returnError(err error, answered bool) error {
	if answered || !x.Body.WasRead() || !hasErrorRoutes(x.r) || runOf(x.r.Context()) != nil {
		return err
	}
	logFailure(&x.Report, err) // as the server would
	if !x.serveErrorRoutes(receivedRequest(x.r), err, false) {
		x.w.WriteHeader(upstream.FailedStatus(err))
	}
	return nil
}

// hasErrorRoutes reports whether the server has error routes for a request. A request that is in them
// already has none: they would call themselves.
func hasErrorRoutes(r *http.Request) bool {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return server != nil && server.Errors != nil && r.Context().Value(caddyhttp.ErrorCtxKey) == nil
}

// serveErrorRoutes runs the server's error routes, and reports whether they answered. If no route
// of the site matches, Caddy writes the error's status and no body, which is no answer.
func (x *exchange) serveErrorRoutes(r *http.Request, cause error, isPage bool) bool {
	if !hasErrorRoutes(r) {
		x.repl().Set(upstream.HandlersError, cause) // a dedup in front learns from it that no upstream has answered
		return false
	}
	page := &errorPage{to: x.toClient(), header: x.w.Header().Clone(), errorStatus: upstream.FailedStatus(cause)}
	if isPage {
		upstream.Forget(x.repl())
		defer upstream.Forget(x.repl()) // the upstream of error routes is not that of the run of a dedup in front
		page.repl = x.repl()
	}
	routes := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server).Errors
	noRoute := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	if err := routes.Routes.Compile(noRoute).ServeHTTP(page, routes.WithError(r, cause)); err != nil {
		x.Logger.Error("the error routes failed", zap.Inline(x), zap.NamedError("first_error", cause), zap.Error(err))
	}
	return page.answered()
}

// errorPageRequest returns a request with which error routes can show a page, but execute nothing.
func errorPageRequest(r *http.Request) *http.Request {
	page := receivedRequest(r).WithContext(clientContext(r.Context()))
	page.Method = http.MethodGet
	page.Body, page.ContentLength, page.TransferEncoding, page.Trailer = http.NoBody, 0, nil, nil
	page.Header = r.Header.Clone()
	httpfield.RemoveUpgrade(page.Header)
	httpfield.RemoveDedup(page.Header, nil) // of the run that failed
	for _, name := range []string{          // they belong to the client's own request
		"Content-Length", "Expect", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range",
	} {
		delete(page.Header, name)
	}
	return page
}

// clientContext returns the context without those of runs of dedups in front: an error page is not
// part of a run.
func clientContext(ctx context.Context) context.Context {
	if run := runOf(ctx); run != nil {
		return clientContext(run.client)
	}
	return ctx
}

// receivedRequest undoes the rewrites of handlers in front, as the server does before it runs its
// error routes. It changes the URL in place, where placeholders read it.
func receivedRequest(r *http.Request) *http.Request {
	received := r.WithContext(r.Context())
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		received.Method, received.RemoteAddr, received.RequestURI = original.Method, original.RemoteAddr, original.RequestURI
		*received.URL = *original.URL
	}
	return received
}

// errorPage is the response writer of error routes. It holds status and header back until the first
// byte: if no route of the site matches, Caddy writes the error's status alone, which is no page. From
// the first byte on, the page streams to the client.
type errorPage struct {
	to          recording.Writer
	header      http.Header // until it is sent
	errorStatus int
	repl        *caddy.Replacer
	status      int // as it was written, 0 before
	sent        bool
}

// Header implements [http.ResponseWriter].
func (p *errorPage) Header() http.Header {
	if p.sent {
		return p.to.Client.Header()
	}
	return p.header
}

// WriteHeader writes a status. If it is that of a proxy's upstream, the error's status is written
// instead: the upstream has answered a GET, and not the client's own request.
func (p *errorPage) WriteHeader(status int) {
	if p.status != 0 || status < 200 {
		return
	}
	if p.repl != nil {
		if proxied, _ := p.repl.Get(upstream.Status); proxied == status {
			status = p.errorStatus
		}
	}
	if p.status = status; status != p.errorStatus {
		p.send() // a redirection, for example
	}
}

// Write implements [io.Writer].
func (p *errorPage) Write(bytes []byte) (int, error) {
	if len(bytes) == 0 {
		return 0, nil
	}
	if p.status == 0 {
		p.WriteHeader(http.StatusOK)
	}
	p.send()
	if err := p.to.Send(bytes); err != nil {
		return 0, err
	}
	return len(bytes), nil
}

// FlushError sends the client what was written.
func (p *errorPage) FlushError() error {
	if !p.sent {
		return nil
	}
	return p.to.Flush()
}

// Flush implements [http.Flusher].
func (p *errorPage) Flush() { _ = p.FlushError() }

func (p *errorPage) send() {
	if p.sent {
		return
	}
	p.sent = true
	replaceHeader(p.to.Client, p.header)
	p.to.Client.WriteHeader(p.status)
}

// answered reports whether the routes wrote a page. If not, the header that they set goes to the
// client with another body.
func (p *errorPage) answered() bool {
	if !p.sent {
		replaceHeader(p.to.Client, p.header)
		maps.DeleteFunc(p.to.Client.Header(), func(name string, _ []string) bool {
			return name == "Content-Length" || httpfield.DescribesBody(name)
		})
	}
	return p.sent
}

var _ http.Flusher = (*errorPage)(nil)
