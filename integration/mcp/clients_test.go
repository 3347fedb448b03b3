package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// client calls the tool over one connection of an SDK.
type client struct {
	// send begins the call with a number. cancel does what the timeout of a call does.
	send   func(t *testing.T, n int, params *mcp.CallToolParams)
	cancel func(t *testing.T, n int)
	reopen func(t *testing.T) // ends the session, and begins another one

	mu    sync.Mutex
	calls []*call
	posts []post // since the last call has begun
}

// call is a call under way.
type call struct {
	n    int
	runs chan struct{} // the client has its first progress
	done chan struct{}
	got  answer
}

// answer is what an application gets of a call: a result or an error.
type answer struct {
	Result *struct {
		StructuredContent struct{ Run int }
		IsError           bool
		Meta              map[string]any `json:"_meta"`
	}
	Error *struct {
		Code    int64
		Message string
		Data    struct {
			Code   string
			Status int
		}
	}
}

// run is the run whose result it is, 0 if it has none.
func (a answer) run() int {
	if a.Result == nil {
		return 0
	}
	return a.Result.StructuredContent.Run
}

func (a answer) replayed() bool {
	return a.Result != nil && a.Result.Meta["caddy-dedup/replayed"] == true
}

func (a answer) String() string {
	text, _ := json.Marshal(a) // there is nothing in it that has no JSON
	return string(text)
}

// post is a POST or a DELETE of a client, as its transport saw it.
type post struct {
	Method string
	Status int
}

// begin calls the tool, and returns at once.
func (c *client) begin(t *testing.T, key string, amount int) *call {
	t.Helper()
	c.mu.Lock()
	this := &call{n: len(c.calls), runs: make(chan struct{}), done: make(chan struct{})}
	c.calls, c.posts = append(c.calls, this), nil
	c.mu.Unlock()
	params := &mcp.CallToolParams{Name: "pay", Arguments: map[string]any{"idempotency_key": key, "amount": amount}}
	c.send(t, this.n, params)
	return this
}

func (c *client) call(t *testing.T, key string, amount int) answer {
	t.Helper()
	return c.begin(t, key, amount).answer(t)
}

// answer waits for the answer.
func (c *call) answer(t *testing.T) answer {
	t.Helper()
	await(t, "an answer", c.done)
	return c.got
}

func await(t *testing.T, what string, is <-chan struct{}) {
	t.Helper()
	select {
	case <-is:
	case <-time.After(patience):
		t.Fatalf("not so after %s: %s", patience, what)
	}
}

// progressed says that a call, by its number, has progress. A call has it once for each round.
func (c *client) progressed(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.calls[n].runs:
	default:
		close(c.calls[n].runs)
	}
}

// finish ends a call by its number. text is an [answer].
func (c *client) finish(n int, text []byte) {
	c.mu.Lock()
	this := c.calls[n]
	c.mu.Unlock()
	if err := json.Unmarshal(text, &this.got); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err)) // it has the shape of all answers
	}
	close(this.done)
}

func (c *client) posted(p post) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts = append(c.posts, p)
}

// awaitPost waits until a message has got its answer.
func (c *client) awaitPost(t *testing.T, want post) {
	t.Helper()
	eventually(t, fmt.Sprintf("posted %+v", want), func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if slices.Contains(c.posts, want) {
			return nil
		}
		return fmt.Errorf("it posted %+v", c.posts)
	})
}

// startClient runs a client's script.
func startClient(t *testing.T, packages string, words ...string) *client {
	t.Helper()
	p, c := start(t, packages, append([]string{need(t, "node")}, words...)...), new(client)
	line := func(t *testing.T, message any) {
		t.Helper()
		if err := json.NewEncoder(p.stdin).Encode(message); err != nil {
			t.Fatal(err)
		}
	}
	c.send = func(t *testing.T, n int, params *mcp.CallToolParams) {
		line(t, map[string]any{"n": n, "params": params})
	}
	c.cancel = func(t *testing.T, n int) { line(t, map[string]any{"n": n, "cancel": true}) }
	reopened := make(chan struct{})
	c.reopen = func(t *testing.T) {
		line(t, map[string]any{"reopen": true})
		await(t, "it has another session", reopened)
	}
	go func() {
		for p.stdout.Scan() {
			var message struct {
				post
				N                  *int
				Progress, Reopened bool
			}
			if err := json.Unmarshal(p.stdout.Bytes(), &message); err != nil {
				panic(fmt.Sprintf("%s: %v", p.stdout.Bytes(), err)) // the script writes lines of JSON only
			}
			switch {
			case message.Reopened:
				reopened <- struct{}{}
			case message.Progress:
				c.progressed(*message.N)
			case message.N != nil:
				c.finish(*message.N, p.stdout.Bytes())
			default:
				c.posted(message.post)
			}
		}
	}()
	return c
}

// connectGo connects the Go SDK's client, with a version of the protocol.
func connectGo(t *testing.T, url, version string) *client {
	t.Helper()
	c, cancels := new(client), make(map[int]context.CancelFunc)
	options := &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"yes": true}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if n, ok := r.Params.ProgressToken.(float64); ok {
				c.progressed(int(n))
			}
		},
	}
	var session *mcp.ClientSession
	connect := func(t *testing.T) {
		t.Helper()
		var err error
		transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: recorded{c}}}
		session, err = mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, options).
			Connect(context.WithoutCancel(t.Context()), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatalf("connecting to %s: %v", url, err)
		}
		if got := session.InitializeResult().ProtocolVersion; got != version {
			t.Fatalf("the version is %s, want %s", got, version)
		}
	}
	connect(t)
	t.Cleanup(func() { session.Close() })
	c.reopen = func(t *testing.T) {
		session.Close() // its error is that of the DELETE
		connect(t)
	}
	c.send = func(t *testing.T, n int, params *mcp.CallToolParams) {
		var ctx context.Context
		ctx, cancels[n] = context.WithCancel(t.Context())
		params.SetProgressToken(n)
		go func() {
			result, err := session.CallTool(ctx, params)
			message := map[string]any{"result": result}
			if err != nil {
				failed := &jsonrpc.Error{Message: err.Error()}
				errors.As(err, &failed)
				message = map[string]any{"error": failed}
			}
			text, err := json.Marshal(message)
			if err != nil {
				panic(err)
			}
			c.finish(n, text)
		}()
	}
	c.cancel = func(_ *testing.T, n int) { cancels[n]() }
	return c
}

// recorded is the transport of a client.
type recorded struct{ c *client }

func (r recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost {
		answer, err := http.DefaultTransport.RoundTrip(req)
		if err == nil && req.Method == http.MethodDelete {
			r.c.posted(post{req.Method, answer.StatusCode})
		}
		return answer, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := http.DefaultTransport.RoundTrip(req)
	var p post
	if err == nil && json.Unmarshal(body, &p) == nil {
		p.Status = answer.StatusCode
		r.c.posted(p)
	}
	return answer, err
}
