package caddymodule

import (
	"errors"
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// answerError answers with an error: through the server's error routes
// (handle_errors), and with fallback where none of them answers. Returning the
// error to the server would not do: its routes belong to all sites on its port,
// and a site without any would get an empty answer.
func answerError(w http.ResponseWriter, r *http.Request, status int, cause error, fallback func(http.ResponseWriter) error) error {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil || server.Errors == nil || len(server.Errors.Routes) == 0 {
		return fallback(w)
	}
	handlerError := caddyhttp.Error(status, cause)
	r = server.Errors.WithError(asReceived(r), handlerError)
	watcher := &emptyAnswer{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, status: status}
	routes := server.Errors.Routes.Compile(caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return nil // no route matched: nothing is written, and the fallback answers
	}))
	err := routes.ServeHTTP(watcher, r)
	switch {
	case watcher.answered:
		return nil
	case err != nil:
		return errors.Join(handlerError, err)
	default:
		return fallback(w)
	}
}

// asReceived undoes the rewrites of handlers in front, as the server does before
// it runs its error routes.
func asReceived(r *http.Request) *http.Request {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok {
		return r
	}
	again := r.WithContext(r.Context())
	again.Method, again.RemoteAddr, again.RequestURI = original.Method, original.RemoteAddr, original.RequestURI
	received := *original.URL
	again.URL = &received
	return again
}

// emptyAnswer tells an answer of the error routes from Caddy's own placeholder
// for "no route answered", which is the error's status and nothing else. A site
// whose handle_errors does not match this error ends that way.
type emptyAnswer struct {
	*caddyhttp.ResponseWriterWrapper
	status   int
	answered bool
	withheld bool
}

// WriteHeader withholds the bare status until a body shows that it is meant.
func (e *emptyAnswer) WriteHeader(status int) {
	if status == e.status && !e.answered {
		e.withheld = true
		return
	}
	e.answered = e.answered || status >= 200
	e.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (e *emptyAnswer) Write(p []byte) (int, error) {
	if e.withheld && !e.answered {
		e.ResponseWriterWrapper.WriteHeader(e.status)
	}
	e.answered = true
	return e.ResponseWriterWrapper.Write(p)
}

// ReadFrom keeps io.Copy from reaching past Write.
func (e *emptyAnswer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{e}, r)
}
