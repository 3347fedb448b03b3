package caddymodule

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// The error routes of a server (handle_errors) answer a request here that is not to be executed,
// because it is refused or has waited for a run that failed, and not where an error is returned
// to it:
//
//   - They belong to all sites on its port, and a site without any would get an empty answer.
//   - If they fail, an error that is returned runs them once more, and of those that exclude
//     each other, as a rewrite, only what is behind: a refused request would reach the
//     upstream as it was.
//   - They, and those of a subroute in front, get the request as it came, and could execute it.
//
// All other errors go to the server, where no handler in front has a part in their answer. But
// it gives its routes a request of its own. Where a handler in front, such as forward_auth or
// tracing, has handed a copy of it on, that one's body was read off by us, and could look like
// a whole one. Then the routes get our request, here.

// hasErrorRoutes reports whether there are any. A request that is in them already has none:
// they would call themselves.
func hasErrorRoutes(r *http.Request) bool {
	if r.Context().Value(caddyhttp.ErrorCtxKey) != nil {
		return false
	}
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return server != nil && server.Errors != nil && len(server.Errors.Routes) > 0
}

// shownByRoutes has the error routes, if there are any, tell the client of a request that is
// not executed why. It reports whether they did.
func (x *exchange) shownByRoutes(cause error) bool {
	if !hasErrorRoutes(x.r) {
		return false
	}
	forgetUpstream(x.repl())
	seenInFront := *x.r.URL
	defer func() { *x.r.URL = seenInFront }()
	return x.answeredByRoutes(forPage(x.r), cause, x.repl())
}

// answeredByRoutes has the error routes answer an error, and reports whether they did. The
// placeholders are those of a request that is not executed, else nil.
func (x *exchange) answeredByRoutes(r *http.Request, cause error, page *caddy.Replacer) bool {
	server := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	r = server.Errors.WithError(r, cause)
	before := x.w.Header().Clone()
	watcher := &emptyAnswer{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: x.w}, status: failedStatus(cause), page: page}
	routes := server.Errors.Routes.Compile(caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return nil // no route matched: nothing is written
	}))
	err := routes.ServeHTTP(watcher, r)
	switch {
	case watcher.answered:
	case err == nil: // what a route says of a body that never came is not true of ours
		maps.DeleteFunc(x.w.Header(), func(name string, _ []string) bool { return name == "Content-Length" || describesBody(name) })
	default:
		x.logger.Error("the error routes have failed; the first error is answered without them",
			zap.Inline(x), zap.Int("status", watcher.status), zap.NamedError("first_error", cause), zap.Error(err))
		header := x.w.Header() // what is in it may speak of a body that never came
		clear(header)
		maps.Copy(header, before)
	}
	return watcher.answered
}

// asReceived undoes the rewrites of handlers in front, as the server does before it runs its
// error routes: the URL in place, where placeholders look for it.
func asReceived(r *http.Request) *http.Request {
	again := r.WithContext(r.Context())
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		again.Method, again.RemoteAddr, again.RequestURI = original.Method, original.RemoteAddr, original.RequestURI
		*again.URL = *original.URL
	}
	return again
}

// forPage returns the request that error routes get which only tell a client why it was not
// executed: a GET without a body, as nginx has it (ngx_http_core_module, error_page). An error
// route that is an upstream's stand-in must not execute it.
func forPage(r *http.Request) *http.Request {
	page := asReceived(r)
	if page.Method != http.MethodHead {
		page.Method = http.MethodGet
	}
	page.Body, page.ContentLength, page.TransferEncoding, page.Trailer = http.NoBody, 0, nil, nil
	page.Header = r.Header.Clone()
	for _, name := range notForPage {
		delete(page.Header, name)
	}
	return page
}

// notForPage are header fields that say something of the client's own request.
var notForPage = []string{
	"Content-Length", "Expect", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range",
}

// failed answers an error of the handlers behind, before which nothing was written, or returns
// it to the server. Error routes get the request whole, or cannot send it.
func (x *exchange) failed(err error) error {
	if err == nil || executionInContext(x.r.Context()) != "" { // it is the affair of the handler in front
		return err
	}
	spoil(x.r.Body)
	if !x.body.read || !hasErrorRoutes(x.r) || x.hasServersRequest() {
		return err
	}
	if !x.answeredByRoutes(asReceived(x.r), err, nil) {
		x.w.WriteHeader(failedStatus(err))
	}
	return nil
}

// hasServersRequest reports whether the request is the server's own, and no copy that a
// handler in front, such as forward_auth or tracing, has made. Placeholders are of the
// server's, so it shows in one of them what is changed in it.
func (x *exchange) hasServersRequest() bool {
	const probe = "dedup"
	proto := x.r.Proto
	x.r.Proto = probe
	defer func() { x.r.Proto = proto }()
	shown, _ := x.repl().GetString("http.request.proto")
	return shown == probe
}

// emptyAnswer tells an answer of the error routes from Caddy's own placeholder
// for "no route answered", which is the error's status and nothing else. A site
// whose handle_errors does not match this error ends that way.
type emptyAnswer struct {
	*caddyhttp.ResponseWriterWrapper
	status   int
	answered bool
	withheld bool
	// page has the placeholders of a request that is not executed; nil where it is.
	page *caddy.Replacer
}

// asPage returns the status of a page. An upstream that is asked for it answers as to any GET:
// a client must not take its success, or that it has no such page, for an answer to its own
// request. So the error's status stays, as in nginx, unless a route says another one itself. So
// do header fields that we have set and the upstream has added to.
func (e *emptyAnswer) asPage(status int) int {
	if e.page == nil || status < 200 {
		return status
	}
	for _, name := range []string{"Retry-After", executionIDHeader} {
		if values := e.Header()[name]; len(values) > 1 {
			e.Header()[name] = values[:1]
		}
	}
	if answered, _ := e.page.Get(upstreamStatus); answered == status {
		return e.status
	}
	return status
}

// WriteHeader withholds the bare status until a body shows that it is meant.
func (e *emptyAnswer) WriteHeader(status int) {
	status = e.asPage(status)
	if status == e.status && !e.answered {
		e.withheld = true
		return
	}
	e.answered = e.answered || status >= 200
	e.ResponseWriterWrapper.WriteHeader(status)
}

// begin sends the status that was withheld; where there was none the server has its own.
func (e *emptyAnswer) begin() {
	if e.withheld && !e.answered {
		e.ResponseWriterWrapper.WriteHeader(e.status)
	}
	e.answered = true
}

// Write implements http.ResponseWriter.
func (e *emptyAnswer) Write(p []byte) (int, error) {
	e.begin()
	return e.ResponseWriterWrapper.Write(p)
}

// FlushError shows, as a body does, that what was withheld is meant.
func (e *emptyAnswer) FlushError() error {
	e.begin()
	return http.NewResponseController(e.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (e *emptyAnswer) Flush() { _ = e.FlushError() }

// Hijack implements http.Hijacker.
func (e *emptyAnswer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(e.ResponseWriter).Hijack()
	e.answered = e.answered || err == nil
	return conn, buffer, err
}

// ReadFrom keeps io.Copy from reaching past Write.
func (e *emptyAnswer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{e}, r)
}
