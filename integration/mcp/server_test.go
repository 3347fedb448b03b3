package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// payments are what the tool of all servers does. They ask the test over HTTP.
type payments struct {
	url string

	mu      sync.Mutex
	scripts map[string]script
	begun   map[string]int
	paid    map[string]int
}

// payment is one run of the tool, or one round of it.
type payment struct {
	n     int    // counted from 1, of this key
	state string // what the round before has returned
	ctx   context.Context
}

// outcome is what a payment comes to.
type outcome struct {
	Run    int    `json:"run"`
	Failed bool   `json:"failed"`
	State  string `json:"state,omitempty"` // it asks first
}

type script func(payment) outcome

func startPayments(t *testing.T) *payments {
	p := &payments{scripts: make(map[string]script), begun: make(map[string]int), paid: make(map[string]int)}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// on says what the payments of a key come to.
func (p *payments) on(key string, s script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts[key] = s
}

func (p *payments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.FormValue("key")
	p.mu.Lock()
	p.begun[key]++
	this := payment{n: p.begun[key], state: r.FormValue("state"), ctx: r.Context()}
	s := p.scripts[key]
	p.mu.Unlock()
	got := outcome{}
	if s != nil {
		got = s(this)
	}
	if got.State == "" {
		p.mu.Lock()
		p.paid[key]++
		got.Run = p.paid[key]
		p.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(got) // the server may be gone
}

// runs returns how often a key has been paid.
func (p *payments) runs(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paid[key]
}

// awaitBegun waits until the first payment of a key has begun.
func (p *payments) awaitBegun(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the tool runs", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.begun[key] == 0 {
			return fmt.Errorf("no payment of %q has begun", key)
		}
		return nil
	})
}

// gate holds payments back until the test opens it, at its end at the latest.
type gate struct {
	opened chan struct{}
	open   func()
}

func newGate(t *testing.T) *gate {
	g := &gate{opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// startGoServer runs the Go SDK's servers, and returns their address.
func startGoServer(t *testing.T, work string) string {
	t.Helper()
	routes := http.NewServeMux()
	for path, options := range map[string]mcp.StreamableHTTPOptions{
		"/go/json":             {Stateless: true, JSONResponse: true},
		"/go/stateless":        {Stateless: true},
		"/go/legacy/json":      {JSONResponse: true},
		"/go/legacy/stateless": {Stateless: true},
		"/go/legacy/stateful":  {},
		"/go/legacy/events":    {EventStore: mcp.NewMemoryEventStore(nil)},
	} {
		options.PropagateRequestCancellation = true
		routes.Handle(path, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newGoServer(work) }, &options))
	}
	server := httptest.NewServer(routes)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().String()
}

func newGoServer(work string) *mcp.Server {
	type arguments struct {
		Key    string `json:"idempotency_key"`
		Amount int    `json:"amount"`
	}
	type paid struct {
		Run int `json:"run"`
	}
	question := &mcp.ElicitParams{Message: "Pay?", RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"yes": map[string]any{"type": "boolean"}},
	}}
	server := mcp.NewServer(&mcp.Implementation{Name: "go", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(ctx context.Context, req *mcp.CallToolRequest, in arguments) (*mcp.CallToolResult, paid, error) {
		progress := &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: 1}
		_ = req.Session.NotifyProgress(ctx, progress) // where it answers by one object, there is no place for it
		got, err := pay(ctx, work, in.Key, req.Params.RequestState)
		for err == nil && got.State != "" {
			if version := req.Session.InitializeParams().ProtocolVersion; version >= "2026-07-28" {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"ask": question}, RequestState: got.State}, paid{}, nil
			}
			if _, err = req.Session.Elicit(ctx, question); err == nil {
				got, err = pay(ctx, work, in.Key, got.State)
			}
		}
		return &mcp.CallToolResult{IsError: got.Failed}, paid{got.Run}, err
	})
	return server
}

// pay asks the test what a payment comes to.
func pay(ctx context.Context, work, key, state string) (got outcome, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, work+"?key="+key+"&state="+state, nil)
	if err != nil {
		return got, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	return got, json.NewDecoder(answer.Body).Decode(&got)
}
