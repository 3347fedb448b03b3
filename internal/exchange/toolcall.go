package exchange

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/jsonrpc"
)

const (
	mcpMethod  = "Mcp-Method"
	mcpSession = "Mcp-Session-Id"
	mcpVersion = "Mcp-Protocol-Version"
)

// toolCall is what a tool call needs to be answered.
type toolCall struct {
	id   []byte    // of the request, as it is written; nil if it is unknown
	room Allowance // of the id, which is as long as its sender likes
}

// readCall reads what a request under mode mcp is. It returns nil for a tool call, whose key is then
// looked for.
func (x *exchange) readCall() keyDecision {
	tooLarge := x.body.readToLimit()
	err := x.body.failed()
	var text []byte
	if err == nil {
		text, err = x.body.join()
	}
	if errors.Is(err, delivery.ErrBodyTooLarge) { // for one piece
		text, tooLarge, err = x.body.held.beginning(), err, nil
	}
	if err != nil { // whether it is a call is unknown
		x.call = &toolCall{room: Allowance{Budget: x.Budget}}
		return x.bodyFailure(err)
	}
	read := jsonrpc.Read
	if tooLarge != nil {
		read = jsonrpc.ReadBeginning
	}
	switch request := read(text, x.r.Header[mcpMethod]); request.Kind {
	case jsonrpc.Call:
		x.call = &toolCall{room: Allowance{Budget: x.Budget}}
		if err := x.call.room.Admit(len(request.ID)); err != nil {
			return x.bodyFailure(err)
		}
		x.call.id = bytes.Clone(request.ID)
	case jsonrpc.Batch:
		x.logWithoutKey(OutcomeUnusable, errors.New("a batch of JSON-RPC messages has no key"))
		return pass{outcome: OutcomeUnusable}
	case jsonrpc.Cancellation:
		return cancellation{x.flightOf(request.ID)}
	default:
		return pass{}
	}
	if tooLarge != nil {
		return x.withLargeBody("a tool call")
	}
	return nil
}

// callParts returns a kept response with the request's own id, in parts.
func (x *exchange) callParts(kept []byte) ([][]byte, error) {
	return jsonrpc.Replay(kept, x.call.id, firstValue(x.r.Header, mcpVersion))
}

// refuseCall answers a tool call with a refusal.
func (x *exchange) refuseCall(p problem) {
	status, body := jsonrpc.Refusal{
		Status: p.Status, Code: string(p.Code), Message: p.Title + ": " + p.Detail, RetryAfter: p.retryAfter, ExecutionID: p.ExecutionID,
	}.Answer(x.call.id)
	header := x.w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	to := x.toClient()
	_ = to.Send(body) // an error means that the client has disconnected
}

// failedCall refuses a tool call that has waited for a run which ended in an error.
func (x *exchange) failedCall(d engine.Replay) problem {
	return problem{
		Title: "The upstream failed", Status: d.Response.Status, Code: reasonFailed,
		Detail:      fmt.Sprintf("the run %s of this call ended in an error", d.Record.ExecutionID),
		ExecutionID: d.Record.ExecutionID, attempt: d.Record.Attempt, outcome: x.answer.outcome, docs: x.Docs,
	}
}

// takeCancellation answers the notification that a tool call is cancelled, which is not handed on: a
// server that obeyed it would leave the call without a response, and its repeat would run again.
func (x *exchange) takeCancellation() error {
	x.Logger.Debug("a tool call in flight is not cancelled: its run goes on", zap.Inline(x))
	x.w.WriteHeader(http.StatusAccepted)
	return nil
}

// keyedCalls are the tool calls with a key that are in flight in this process. They outlive a reload.
var keyedCalls = callsInFlight{count: make(map[callInFlight]int)}

// callInFlight identifies a tool call by its caller, session and id.
type callInFlight [sha256.Size]byte

type callsInFlight struct {
	mu    sync.Mutex
	count map[callInFlight]int // callers without a session may use an id several times
}

// add adds a call until remove is called.
func (c *callsInFlight) add(call callInFlight) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[call]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.count[call]--; c.count[call] == 0 {
			delete(c.count, call)
		}
	}
}

func (c *callsInFlight) has(call callInFlight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[call] > 0
}

// flightOf returns what identifies the tool call with an id among those of the request's caller and
// session.
func (x *exchange) flightOf(id []byte) callInFlight {
	path, _ := originalPath(x.r)
	// A cancellation has no members of the call that it cancels.
	ofRequest := slices.DeleteFunc(slices.Clone(x.Caller), func(text string) bool { return len(MembersIn(text)) > 0 })
	parts, _ := x.appendCaller([]string{hostOf(x.r), path}, x.r, ofRequest)
	parts = appendFields(parts, x.r.Header, append(AccountFields[:len(AccountFields):len(AccountFields)], mcpSession))
	hashed := sha256.Sum256(id)
	return sha256.Sum256(fmt.Appendf(nil, "%q %x", parts, hashed))
}
