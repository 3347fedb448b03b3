package caddymodule

import (
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// passUnclaimed lets a request through that has no claim, and so no run.
func (h *Handler) passUnclaimed(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(&unclaimed{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}, sentOnce(r))
}

// unclaimed keeps the upstream's word to us, Dedup-Retention, from the client.
type unclaimed struct {
	*caddyhttp.ResponseWriterWrapper
	wrote bool
}

// WriteHeader implements http.ResponseWriter.
func (u *unclaimed) WriteHeader(status int) {
	u.Header().Del(retentionHeader)
	u.wrote = u.wrote || status >= 200
	u.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (u *unclaimed) Write(p []byte) (int, error) {
	if !u.wrote {
		u.WriteHeader(http.StatusOK)
	}
	return u.ResponseWriterWrapper.Write(p)
}

// ReadFrom implements io.ReaderFrom.
func (u *unclaimed) ReadFrom(r io.Reader) (int64, error) {
	if !u.wrote {
		u.WriteHeader(http.StatusOK)
	}
	return u.ResponseWriterWrapper.ReadFrom(r)
}
