package exchange

import (
	"errors"
	"net/http"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/jsonrpc"
)

// toolAnswer finds the response to a tool call in the answer of its run. A nil toolAnswer is that of
// any other request, and does nothing.
type toolAnswer struct {
	limit  int       // bytes of the response
	room   Allowance // of the response
	reader *jsonrpc.Reader
	found  bool // the answer has the response, and goes on
}

// toolEnd is how a run ends by the response to its tool call.
type toolEnd int

const (
	toolNone     toolEnd = iota // it is no tool call, or its answer is not whole
	toolKept                    // a result
	toolReleased                // an error, or a result that is none
	toolSilent                  // a whole answer without a response
	toolUnknown                 // a stream without a response
)

// toolReasons are why a run was not kept.
var toolReasons = [...]error{
	toolReleased: errors.New("the response to the tool call is an error, says isError, or asks for input"),
	toolSilent:   errors.New("the upstream's answer has no JSON-RPC response"),
	toolUnknown:  errors.New("the upstream's answer ended without a JSON-RPC response, or is encoded"),
}

// newToolAnswer returns the answer of a run with this allowance, nil for none.
func newToolAnswer(h *Handler, run *Allowance) *toolAnswer {
	return &toolAnswer{limit: int(h.MaxResponseBody), room: Allowance{Budget: h.Budget, of: run}}
}

// begin begins to read an answer. take takes room for the response; nil if that must not wait.
func (a *toolAnswer) begin(status int, header http.Header, take func(bytes int) bool) {
	if a == nil {
		return
	}
	if take == nil {
		take = func(n int) bool { return a.room.Admit(n) == nil }
	}
	a.reader = jsonrpc.NewReader(status, firstValue(header, "Content-Type"), firstValue(header, "Content-Encoding"), a.limit, take)
}

// feed reads bytes of the answer. It is [jsonrpc.Reader.Feed].
func (a *toolAnswer) feed(p []byte) (before int, ended bool) {
	if a == nil {
		return len(p), false
	}
	before, ended = a.reader.Feed(p)
	a.found = a.found || ended
	return before, ended
}

// outgrow ends the call where its answer becomes too large.
func (a *toolAnswer) outgrow() {
	a.reader.Outgrow()
	a.found = true
}

// end returns how the call ends. whole reports whether the answer is whole.
func (a *toolAnswer) end(whole bool) toolEnd {
	switch {
	case a == nil:
		return toolNone
	case a.reader == nil:
		return toolSilent
	case whole && !a.found:
		a.reader.Close()
	}
	switch a.reader.End() {
	case jsonrpc.Kept:
		return toolKept
	case jsonrpc.Released:
		if text, outgrown := a.reader.Message(); text == nil && !outgrown {
			return toolSilent
		}
		return toolReleased
	case jsonrpc.Unknown:
		return toolUnknown
	default:
		return toolNone
	}
}

// message returns the response, nil if there is none, or none that was held as a whole.
func (a *toolAnswer) message() []byte {
	if a.reader == nil {
		return nil
	}
	text, _ := a.reader.Message()
	return text
}

// omitted reports whether the response is too large to be kept.
func (a *toolAnswer) omitted() bool {
	if a.reader == nil {
		return false
	}
	_, outgrown := a.reader.Message()
	return outgrown
}

// keepIn makes what is kept of an answer the response to the call alone. What its header says of a
// stream, or of other bytes, goes.
func (a *toolAnswer) keepIn(r *idempotency.Response) {
	text := a.message()
	if r.Omitted = r.Omitted || text == nil; !r.Omitted {
		r.Body = text
	}
	header := map[string][]string{"Content-Type": {"application/json"}}
	for name, values := range r.Header {
		switch name {
		case "Cache-Control", "X-Accel-Buffering":
		default:
			if !describesBody(name) {
				header[name] = values
			}
		}
	}
	r.Header = header
}

// release releases the room of the response.
func (a *toolAnswer) release() {
	if a != nil {
		a.room.ReleaseAll()
	}
}

// takeToolRoom takes room for the response to a tool call.
func (c *recorder) takeToolRoom(n int) bool {
	ok := c.takeRoomOf(&c.tool.room, n)
	c.noRoom = c.noRoom || !ok
	return ok
}

// recordTool records what the upstream answers to a tool call. It settles the run before the byte with
// which the client has the response, and returns what then passes to the client.
func (c *recorder) recordTool(p []byte) (rest []byte) {
	before, ended := c.tool.feed(p)
	switch {
	case c.streaming:
		c.sendLive(p[:before])
	case !ended && c.written <= c.maxBody && c.takeRoom(c.record.Needs(len(p), c.written, c.maxBody)):
		c.record.Add(p)
		return nil
	default:
		c.noRoom = c.noRoom || !ended && c.written <= c.maxBody
		c.tool.outgrow()
		before, ended = 0, true
	}
	if ended {
		c.omitted = c.tool.omitted()
		c.settlePassing()
	}
	return p[before:]
}

// sendLive sends the client a part of a stream before the response. The client is cut if there is no
// room for what it has not read: the run waits for no client.
func (c *recorder) sendLive(p []byte) {
	if !c.record.hasReaders() {
		return
	}
	if !c.takeRoom(len(p)) {
		c.own.Leave()
		return
	}
	c.record.Live(p, c.maxBody)
}
