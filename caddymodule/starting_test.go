package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// earlyRequest is an app that sends a request to the servers of its configuration while
// that starts, and then fails, or not.
type earlyRequest struct {
	Fails bool `json:"fails"`

	ctx caddy.Context
}

// early is what the request of an earlyRequest was answered with.
var early = make(chan answer, 1)

func init() { caddy.RegisterModule(new(earlyRequest)) }

func (*earlyRequest) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "dedup_test_early", New: func() caddy.Module { return new(earlyRequest) }}
}

func (e *earlyRequest) Provision(ctx caddy.Context) error {
	e.ctx = ctx
	return nil
}

func (e *earlyRequest) Start() error {
	web, err := e.ctx.AppIfConfigured("http")
	if err != nil {
		return err
	}
	server := httptest.NewServer(web.(*caddyhttp.App).Servers["s"])
	go func() {
		defer server.Close()
		r, _ := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("body"))
		r.Header.Set("Idempotency-Key", "k")
		got, err := oneRequest.Do(r)
		if err != nil {
			early <- answer{body: err.Error()}
			return
		}
		defer got.Body.Close()
		body, _ := io.ReadAll(got.Body)
		early <- answer{got.StatusCode, got.Header, string(body)}
	}()
	if e.Fails {
		return errors.New("it is to fail")
	}
	return nil
}

func (*earlyRequest) Stop() error { return nil }

// A request that comes to a configuration before all of it has started waits for that. Where
// it fails nothing has run, also where a store may fail: the configuration before knows nothing
// of it, and has the retry.
func TestNothingRunsUnderAConfigurationThatFailsToStart(t *testing.T) {
	address, runs := upstream(t, answers(201, "done"))
	const quiet = `"admin":{"disabled":true,"config":{"persist":false}},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}}`
	if err := caddy.Load([]byte(`{`+quiet+`}`), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		open := stores.All()
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		for _, store := range open {
			store.Leave()
			<-store.Gone()
		}
	})
	load := func(fails bool) error {
		return caddy.Load(fmt.Appendf(nil, `{%s,"apps":{"dedup":{"store":{"store":"memory"}},"dedup_test_early":{"fails":%v},"http":{"servers":{"s":{
			"listen":["127.0.0.1:0"],"automatic_https":{"disable":true},
			"routes":[{"handle":[{"handler":"dedup","store_errors":"pass"},{"handler":"reverse_proxy","upstreams":[{"dial":%q}]}]}]}}}}}`, quiet, fails, address), true)
	}
	if err := load(true); err == nil {
		t.Fatal("a configuration that is to fail has started")
	}
	if got := <-early; got.status != 503 || !strings.Contains(got.body, "store_unavailable") || runs.Load() != 0 {
		t.Errorf("the start failed, and the request was answered with %d %s, after %d runs", got.status, got.body, runs.Load())
	}
	if err := load(false); err != nil {
		t.Fatal(err)
	}
	if got := <-early; got.status != 201 || runs.Load() != 1 {
		t.Errorf("all has started, and the request was answered with %d %s, after %d runs", got.status, got.body, runs.Load())
	}
}

func TestWaitForAStartEnds(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	gone := make(chan struct{})
	close(gone)
	failed := &starting{over: make(chan struct{})}
	failed.end(errNotStarted)
	for name, c := range map[string]struct {
		s    *starting
		ctx  context.Context
		want error
	}{
		"by the client":            {&starting{over: make(chan struct{})}, left, context.Canceled},
		"with the configuration":   {&starting{over: make(chan struct{}), gone: gone}, t.Context(), errNotStarted},
		"when it takes too long":   {&starting{over: make(chan struct{})}, t.Context(), nil},
		"at once where it is over": {failed, left, errNotStarted},
	} {
		if err := c.s.wait(c.ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	stopped := &App{starting: &starting{over: make(chan struct{})}}
	stopped.serversStop()
	if err := stopped.starting.wait(t.Context()); !errors.Is(err, errNotStarted) {
		t.Errorf("its servers stop: got %v", err)
	}
}
