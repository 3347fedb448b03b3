// Command bare is Caddy with the least that a handler of this kind has to do for a first
// delivery: it reads the body and hashes it, claims the key, tells the upstream and the client
// which run it is, keeps the answer of the handlers behind, settles the claim with it, and
// answers. It promises nothing: no lease is renewed, nobody waits, nothing is replayed, and no
// size is limited. The benchmark beside it starts it, to show how much of what a first delivery
// costs no handler could save.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/google/uuid"
)

func main() {
	caddy.RegisterModule(new(Handler))
	httpcaddyfile.RegisterHandlerDirective("bare", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		handler := new(Handler)
		return handler, handler.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder("bare", httpcaddyfile.Before, "reverse_proxy")
	caddycmd.Main()
}

// Handler is the directive `bare`.
type Handler struct {
	// The URL of a Redis, or `memory`.
	Store string `json:"store"`

	store store
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bare", New: func() caddy.Module { return new(Handler) }}
}

// UnmarshalCaddyfile reads `bare <store>`.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if !d.AllArgs(&h.Store) {
		return d.ArgErr()
	}
	return nil
}

// Provision opens the store.
func (h *Handler) Provision(caddy.Context) (err error) {
	if h.Store == "memory" {
		h.store = new(memory)
	} else {
		h.store, err = openRedis(h.Store)
	}
	return err
}

// store keeps a value for each key. A value begins with the token of its claim.
type store interface {
	// claim writes the value of a key that has none.
	claim(key string, value []byte, lease time.Duration) error
	// settle replaces the value of a key, if that has the same token.
	settle(key string, value []byte, retention time.Duration) error
}

const (
	tokenSize = 16
	lease     = time.Minute
	retention = 24 * time.Hour
)

var errLost = errors.New("the key has another claim")

// ServeHTTP lets a request through, and keeps its answer.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	key, fingerprint := sha256.Sum256([]byte(r.Header.Get("Idempotency-Key"))), sha256.Sum256(body)
	name := string(key[:])
	token := newToken()
	value := append(token, fingerprint[:]...)
	if err := h.store.claim(name, value, lease); err != nil {
		return caddyhttp.Error(http.StatusConflict, err)
	}
	if err := nameRun(w.Header(), r.Header); err != nil {
		return err
	}
	answer := &recorder{header: w.Header().Clone()}
	if err := next.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context()))); err != nil {
		return err
	}
	if err := h.store.settle(name, answer.appendTo(value), retention); err != nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	maps.Copy(w.Header(), answer.header)
	w.WriteHeader(answer.status)
	_, err = w.Write(answer.body)
	return err
}

// nameRun tells client and upstream which run it is, in the fields in which caddy-dedup does so.
func nameRun(toClient, toUpstream http.Header) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	toClient["Dedup-Execution-Id"] = []string{id.String()}
	toUpstream["Dedup-Execution-Id"] = toClient["Dedup-Execution-Id"]
	return nil
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   []byte
}

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if status >= 200 && r.status == 0 {
		r.status = status
	}
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, p...)
	return len(p), nil
}

// appendTo appends what is kept of the answer.
func (r *recorder) appendTo(value []byte) []byte {
	kept := append(make([]byte, 0, len(value)+len(r.body)+256), value...)
	for name, values := range r.header {
		for _, value := range values {
			kept = append(append(append(append(kept, name...), ':'), value...), '\n')
		}
	}
	return append(kept, r.body...)
}

// memory is a store in a map.
type memory struct{ values sync.Map }

func (m *memory) claim(key string, value []byte, _ time.Duration) error {
	if _, there := m.values.LoadOrStore(key, value); there {
		return errLost
	}
	return nil
}

func (m *memory) settle(key string, value []byte, _ time.Duration) error {
	claimed, _ := m.values.Load(key)
	if before, _ := claimed.([]byte); !strings.HasPrefix(string(before), string(value[:tokenSize])) {
		return errLost
	}
	m.values.Store(key, value)
	return nil
}
