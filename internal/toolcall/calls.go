package toolcall

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

const (
	methodField  = "Mcp-Method"
	sessionField = "Mcp-Session-Id"
	versionField = "Mcp-Protocol-Version"
)

// Mode is the mode mcp. It implements [identify.Calls].
type Mode struct{}

var _ identify.Calls = Mode{}

// May implements [identify.Calls]: a request may say by Mcp-Method that it is no tool call.
func (Mode) May(header http.Header) bool { return NeedsBody(header[methodField]) }

// Read implements [identify.Calls].
func (Mode) Read(header http.Header, body []byte, whole bool, caller func(fields ...string) []string) identify.CallRead {
	read := Read
	if !whole {
		read = ReadBeginning
	}
	request := read(body, header[methodField])
	id := request.ID
	switch request.Kind {
	case Call:
		id = bytes.Clone(id)
		return identify.CallRead{Call: &ToolCall{id, httpfield.First(header, versionField), flightOf(caller(sessionField), id)}, Size: len(id)}
	case UnusableID:
		return identify.CallRead{Call: &ToolCall{id: bytes.Clone(id)}, Size: len(id), NoKey: errUnusableID}
	case Batch:
		return identify.CallRead{Call: &ToolCall{}, NoKey: errBatch}
	case Cancellation:
		// It is not handed on: a server that obeyed it would leave the call without a response, and its
		// repeat would run again.
		if inFlight.has(flightOf(caller(sessionField), id)) {
			return identify.CallRead{Answer: http.StatusAccepted}
		}
	}
	return identify.CallRead{}
}

// Why a request that calls tools has no key.
var (
	errBatch      = errors.New("a batch of JSON-RPC messages has no key; clients have to send one message in each request")
	errUnusableID = errors.New("a tool call has an id that is neither a string nor an integer without fraction and exponent")
)

// Unread implements [identify.Calls].
func (Mode) Unread(header http.Header) identify.Call {
	return &ToolCall{version: httpfield.First(header, versionField)}
}

// WriteFingerprint implements [identify.Calls].
func (Mode) WriteFingerprint(to io.Writer, body *canonicaljson.Document, exclude ...string) error {
	return WriteParams(to, body, exclude...)
}

// NewAnswer implements [identify.Calls].
func (Mode) NewAnswer(limit int64, room budget.Allowance) upstream.Answer {
	return &Answer{limit: int(limit), room: room}
}

// ToolCall is a call, to be answered.
type ToolCall struct {
	id      []byte // as it is written; nil if it is unknown
	version string // of the protocol
	flight  flight
}

// Begin counts the call as one in flight, until end is called.
func (c *ToolCall) Begin() (end func()) { return inFlight.add(c.flight) }

// Replay returns a kept response as the answer to this call, in parts.
func (c *ToolCall) Replay(kept []byte) (parts [][]byte, err error) {
	return Replay(kept, c.id, c.version)
}

// Refuse returns the answer to the call if it is refused.
func (c *ToolCall) Refuse(r identify.CallRefusal) (status int, body []byte) {
	return Refusal(r).Answer(c.id)
}

// flight identifies a call by its caller, session and id.
type flight [sha256.Size]byte

func flightOf(caller []string, id []byte) flight {
	hashed := sha256.Sum256(id)
	return sha256.Sum256(fmt.Appendf(nil, "%q %x", caller, hashed))
}

// inFlight are the calls with a key that are in flight in this process. They outlive a reload.
var inFlight = flights{count: make(map[flight]int)}

type flights struct {
	mu    sync.Mutex
	count map[flight]int // callers without a session may use an id several times
}

// add adds a call until remove is called.
func (c *flights) add(call flight) (remove func()) {
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

func (c *flights) has(call flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[call] > 0
}

// Answer finds the response to a call in the answer of its run. It implements [upstream.Answer].
type Answer struct {
	limit  int // bytes of the response
	room   budget.Allowance
	reader *Reader
	early  bool // the answer has the response, and goes on
}

var _ upstream.Answer = (*Answer)(nil)

// Begin implements [upstream.Answer].
func (a *Answer) Begin(status int, header http.Header, take func(room *budget.Allowance, bytes int) bool) (stream bool) {
	reserve := func(n int) bool { return take(&a.room, n) }
	a.reader = NewReader(status, httpfield.First(header, "Content-Type"), httpfield.First(header, "Content-Encoding"), a.limit, reserve)
	return a.reader.IsStream()
}

// Feed implements [upstream.Answer].
func (a *Answer) Feed(p []byte) (before int, ended bool) {
	before, ended = a.reader.Feed(p)
	a.early = a.early || ended
	return before, ended
}

// Outgrow implements [upstream.Answer].
func (a *Answer) Outgrow() {
	a.reader.Outgrow()
	a.early = true
}

// Early implements [upstream.Answer].
func (a *Answer) Early() bool { return a.early }

// Why a run is not kept.
var (
	errFailed  = errors.New("the response to the tool call is an error, or says isError")
	errAsked   = errors.New("the response to the tool call asks for input")
	errSilent  = errors.New("the upstream's answer has no JSON-RPC response; only servers that speak Streamable HTTP are protected")
	errUnknown = errors.New("the upstream's answer ended without a JSON-RPC response, or is encoded")
)

// Verdict implements [upstream.Answer].
func (a *Answer) Verdict(whole bool) upstream.Verdict {
	silent := upstream.Verdict{Failed: true, Silent: true, Why: errSilent}
	if a.reader == nil {
		return silent
	}
	if whole && !a.early {
		a.reader.Close()
	}
	switch a.reader.End() {
	case Released:
		if text, outgrown := a.reader.Message(); text == nil && !outgrown {
			return silent
		}
		return upstream.Verdict{Failed: true, Why: errFailed}
	case Asked:
		return upstream.Verdict{Asked: true, Why: errAsked}
	case Unknown:
		return upstream.Verdict{Unknown: true, Why: errUnknown}
	default: // a result, or an answer that is not whole
		return upstream.Verdict{}
	}
}

// message returns the response, nil if there is none, or none that was held as a whole.
func (a *Answer) message() []byte {
	if a.reader == nil {
		return nil
	}
	text, _ := a.reader.Message()
	return text
}

// Held implements [upstream.Answer].
func (a *Answer) Held() int { return len(a.message()) }

// Omitted implements [upstream.Answer].
func (a *Answer) Omitted() bool {
	if a.reader == nil {
		return false
	}
	_, outgrown := a.reader.Message()
	return outgrown
}

// Keep implements [upstream.Answer]. It removes from the header what describes a stream, other bytes, or
// who may read the answer.
func (a *Answer) Keep(r *idempotency.Response) {
	text := a.message()
	switch {
	case text == nil && !a.Omitted(): // those who waited get the failure
		r.Failed, r.Omitted = true, false
	case r.Omitted || text == nil:
		r.Omitted = true
	default:
		r.Body = text
	}
	header := map[string][]string{"Content-Type": {"application/json"}}
	for name, values := range r.Header {
		switch {
		case name == "Cache-Control", name == "X-Accel-Buffering", httpfield.DescribesBody(name):
		case strings.HasPrefix(name, "Access-Control-"): // for the origin of the first request
		default:
			header[name] = values
		}
	}
	r.Header = header
}

// Release implements [upstream.Answer].
func (a *Answer) Release() { a.room.ReleaseAll() }
