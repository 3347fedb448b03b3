package toolcall

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
type Mode struct {
	// Shared reports whether other processes may have calls in flight that this one cannot know.
	Shared bool
	// Tools are the names of the tools whose calls are served; nil for all.
	Tools []string
}

var _ identify.Calls = Mode{}

// May implements [identify.Calls]: a request may say by Mcp-Method that it is no tool call. With a shared
// store, its cancellation is handed on only if the request was seen. A GET resumes a stream of ours, and a
// DELETE ends a session.
func (m Mode) May(r *http.Request) bool {
	switch {
	case strings.EqualFold(r.Method, http.MethodGet):
		_, _, ok := parseEventID(httpfield.First(r.Header, eventIDField))
		return ok
	case strings.EqualFold(r.Method, http.MethodDelete):
		return httpfield.First(r.Header, sessionField) != ""
	default:
		return m.Shared || NeedsBody(r.Header[methodField])
	}
}

// ReadHead implements [identify.Calls].
func (Mode) ReadHead(r *http.Request, caller func(fields ...string) []string) (read identify.CallRead, ok bool) {
	if strings.EqualFold(r.Method, http.MethodGet) {
		text := httpfield.First(r.Header, eventIDField)
		key, id, _ := parseEventID(text)
		read.Call, read.Resume = &ToolCall{id, httpfield.First(r.Header, versionField)}, identify.Resume{Key: key, EventID: text}
		return read, true
	}
	if !strings.EqualFold(r.Method, http.MethodDelete) {
		return read, false
	}
	if session := sessionOf(r.Header, caller); inFlight.hasSession(session) {
		// The end of its session would cancel the call.
		read.Answer, read.Later = http.StatusAccepted, func(handOn func()) { inFlight.whenEnded(session, handOn) }
	}
	return read, true
}

// Read implements [identify.Calls].
func (m Mode) Read(header http.Header, body []byte, whole bool, caller func(fields ...string) []string) identify.CallRead {
	request := Read(body, whole, header[methodField])
	id := request.ID
	if (request.Kind == Call || request.Kind == UnusableID) && !m.serves(request.Tool) {
		request.Kind = Other
	}
	begin := func() func(bool) func() {
		call, session := flightOf(caller(sessionField), id), sessionOf(header, caller)
		return func(hasKey bool) (end func()) { return inFlight.add(call, session, hasKey) }
	}
	switch request.Kind {
	case Call:
		id = bytes.Clone(id)
		return identify.CallRead{Call: &ToolCall{id, httpfield.First(header, versionField)}, Size: len(id), Begin: begin()}
	case Other:
		if m.Shared && id != nil {
			return identify.CallRead{Begin: begin()}
		}
	case UnusableID:
		return identify.CallRead{Call: &ToolCall{ID: bytes.Clone(id)}, Size: len(id), NoKey: errUnusableID}
	case Batch:
		return identify.CallRead{Call: &ToolCall{}, NoKey: errBatch}
	case Cancellation:
		// It is not handed on: a server that obeyed it would leave the call without a response, and its
		// repeat would run again.
		keyed, passed := inFlight.has(flightOf(caller(sessionField), id))
		if keyed || m.Shared && !passed {
			return identify.CallRead{Answer: http.StatusAccepted}
		}
	}
	return identify.CallRead{}
}

// serves reports whether calls of a tool are served. That of a call without a name, or with one that is not read,
// is unknown.
func (m Mode) serves(tool []byte) bool {
	return m.Tools == nil || tool == nil || slices.ContainsFunc(m.Tools, func(name string) bool { return canonicaljson.IsString(tool, name) })
}

// Why a request that calls tools has no key.
var (
	errBatch      = errors.New("a batch of JSON-RPC messages has no key; clients have to send one message in each request")
	errUnusableID = errors.New("a tool call has an id that is neither a string nor an integer without fraction and exponent")
)

// Unread implements [identify.Calls].
func (Mode) Unread(header http.Header) identify.Call {
	return &ToolCall{Version: httpfield.First(header, versionField)}
}

// NewAnswer implements [identify.Calls].
func (Mode) NewAnswer(limit int64, room budget.Allowance, eventID string) upstream.Answer {
	return &Answer{maxBytes: int(limit), room: room, ids: eventIDs{id: eventID}}
}

// ToolCall is a call, to be answered.
type ToolCall struct {
	ID      []byte // as it is written; nil if it is unknown
	Version string // MCP-Protocol-Version; "" for none
}

var _ identify.Call = (*ToolCall)(nil)

// EventID returns the id of the events of the call, by which its client asks for the rest of a stream; "" for
// none.
func (c *ToolCall) EventID(key idempotency.Key) string { return eventID(key, c.ID) }

// flight identifies a request by its caller, session and id, or a session by its caller and name. The zero
// flight is none.
type flight [sha256.Size]byte

func flightOf(caller []string, id []byte) flight {
	hashed := sha256.Sum256(id)
	return sha256.Sum256(fmt.Appendf(nil, "%q %x", caller, hashed))
}

func sessionOf(header http.Header, caller func(fields ...string) []string) (session flight) {
	if httpfield.First(header, sessionField) != "" {
		session = flightOf(caller(sessionField), nil)
	}
	return session
}

// inFlight are the requests that are in flight in this process. They outlive a reload.
var inFlight = flights{
	keyed: make(map[flight]int), passed: make(map[flight]int), sessions: make(map[flight]int), later: make(map[flight]func()),
}

type flights struct {
	mu            sync.Mutex
	keyed, passed map[flight]int    // callers without a session may use an id several times
	sessions      map[flight]int    // by the keyed calls of each
	later         map[flight]func() // by session, what is done when the last of these has ended
}

// add adds a request until remove is called.
func (c *flights) add(request, session flight, keyed bool) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.passed
	if keyed {
		count = c.keyed
		c.sessions[session]++
	}
	count[request]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if count[request]--; count[request] == 0 {
			delete(count, request)
		}
		if !keyed {
			return
		}
		if c.sessions[session]--; c.sessions[session] > 0 {
			return
		}
		delete(c.sessions, session)
		if later := c.later[session]; later != nil {
			delete(c.later, session)
			go later()
		}
	}
}

// has reports whether a request is in flight with a key, and whether one is without.
func (c *flights) has(request flight) (keyed, passed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keyed[request] > 0, c.passed[request] > 0
}

func (c *flights) hasSession(session flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return session != flight{} && c.sessions[session] > 0
}

// whenEnded has the first function of a session called when no call of it is in flight with a key.
func (c *flights) whenEnded(session flight, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sessions[session] == 0:
		go do()
	case c.later[session] == nil:
		c.later[session] = do
	}
}

// Answer finds the response to a call in the answer of its run. It implements [upstream.Answer].
type Answer struct {
	Reader       // zero until the answer has begun
	maxBytes int // of the response
	room     budget.Allowance
	ids      eventIDs
}

var _ upstream.Answer = (*Answer)(nil)

// Begin implements [upstream.Answer].
func (a *Answer) Begin(status int, header http.Header, take func(room *budget.Allowance, bytes int) bool) (stream bool) {
	reserve := func(n int) bool { return take(&a.room, n) }
	a.Reader = *NewReader(status, httpfield.First(header, "Content-Type"), httpfield.First(header, "Content-Encoding"), a.maxBytes, reserve)
	return a.form == formEvents
}

// Rewrite implements [upstream.Answer].
func (a *Answer) Rewrite(p []byte) []byte {
	if a.form != formEvents {
		return p
	}
	rewritten := a.ids.replace(p)
	a.ids.settled = a.early // what is left of the bytes with which the response ends
	return rewritten
}

// Why a run is not kept.
var (
	errFailed  = errors.New("the response to the tool call is an error, or says isError")
	errAsked   = errors.New("the response to the tool call asks for input")
	errSilent  = errors.New("the upstream's answer has no JSON-RPC response; only servers that speak Streamable HTTP are protected")
	errUnknown = errors.New("the upstream's answer ended without a JSON-RPC response")
)

// Verdict implements [upstream.Answer].
func (a *Answer) Verdict(whole bool) upstream.Verdict {
	silent := upstream.Verdict{Failed: true, Silent: true, Why: errSilent}
	if a.status == 0 {
		return silent
	}
	if whole {
		a.Close()
	}
	switch a.end {
	case Released:
		if a.Message() == nil && !a.outgrown {
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

// Held implements [upstream.Answer].
func (a *Answer) Held() int { return len(a.Message()) }

// Keep implements [upstream.Answer]. It removes from the header what describes a stream, other bytes, or
// who may read the answer.
func (a *Answer) Keep(r *idempotency.Response) {
	text := a.Message()
	switch {
	case text == nil && a.end != Kept: // requests that waited get the failure
		r.Failed, r.Omitted = true, false
	case r.Omitted || text == nil:
		r.Omitted = true
	default:
		r.Body = text
	}
	header := map[string][]string{"Content-Type": {"application/json"}}
	for name, values := range r.Header {
		if !NeverKept(name) && !httpfield.DescribesBody(name) {
			header[name] = values
		}
	}
	r.Header = header
}

// NeverKept reports whether a field is for the stream, or the origin, of the first client of a call.
func NeverKept(name string) bool {
	return name == "Cache-Control" || name == "X-Accel-Buffering" || strings.HasPrefix(name, "Access-Control-")
}

// Release implements [upstream.Answer].
func (a *Answer) Release() { a.room.ReleaseAll() }
