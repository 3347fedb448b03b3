package report

import (
	"context"
	"net/http"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// FirstRun is the first run of a duplicate's key, or the run that a forced one is to replace. Its zero value
// means that there is none.
type FirstRun struct {
	Key    idempotency.Key
	Record *idempotency.Record // of the complete key; nil for none
	Store  *storepool.Handle
	Budget *budget.Budget

	response *idempotency.Response // nil until it is read or given
	body     delivery.Request      // finds members of the response, if parses is set
	parses   bool
	room     budget.Allowance // for the response, and what it is parsed into
	given    bool             // the response came from Give
	ended    bool             // End was called
}

// RecordIn returns the record of the complete key that a decision found, nil for none.
func RecordIn(decision engine.Decision) *idempotency.Record {
	switch d := decision.(type) {
	case *engine.Run:
		return d.Record().Previous
	case engine.Replay:
		if d.Record.State == idempotency.Complete {
			return d.Record
		}
	case engine.Refusal:
		return d.Complete()
	}
	return nil
}

// Give sets the response, which is then not read from the store. The caller holds the room of its body.
func (f *FirstRun) Give(response *idempotency.Response) { f.response, f.given = response, true }

// maxFirstBody is the size up to which members of a kept response are placeholders, in bytes.
const maxFirstBody = 64 << 10

// value returns the value of a {http.dedup.first.*} placeholder, without that prefix.
func (f *FirstRun) value(name string) any {
	if f.ended {
		defer f.drop()
	}
	field, isHeader := strings.CutPrefix(name, "header.")
	pointer, isMember := strings.CutPrefix(name, MembersPrefix)
	switch {
	case f.Record == nil:
		return ""
	case name == "status":
		return f.Record.Status
	case isHeader:
		return strings.Join(f.read().Header[http.CanonicalHeaderKey(field)], ",")
	case isMember:
		return f.member(Unescaped(pointer))
	default:
		return f.Record.ExecutionID
	}
}

// End drops what was read. A placeholder that is used after it, for the access log, reads the response
// again, and drops it at once.
func (f *FirstRun) End() {
	f.ended = true
	f.drop()
}

func (f *FirstRun) drop() {
	if f.parses = false; !f.given {
		f.response = nil
	}
	if f.room.Budget != nil {
		f.room.ReleaseAll()
	}
}

// read returns the kept response, without a body larger than [maxFirstBody] if it comes from the store. The
// response is empty if it cannot be read, or there is no room for it.
func (f *FirstRun) read() *idempotency.Response {
	if f.response == nil {
		f.response = f.fromStore()
		f.room.Budget = f.Budget
		f.room.Count(len(f.response.Body))
	}
	return f.response
}

// fromStore reads the kept response from the store.
func (f *FirstRun) fromStore() *idempotency.Response {
	none, room := new(idempotency.Response), budget.Allowance{Budget: f.Budget}
	defer room.ReleaseAll()
	if !room.TryTake(f.Record.LargeBody) {
		return none
	}
	ctx := context.Background()      // the run goes on without its client
	store, err := f.Store.Enter(ctx) // the request may have left it
	if err != nil {
		return none
	}
	defer store.Leave()
	r, err := store.KeptResponse(ctx, f.Key, f.Record)
	if err != nil || r == nil {
		return none
	}
	if len(r.Body) > maxFirstBody {
		return &idempotency.Response{Header: r.Header}
	}
	return r
}

// member returns a member of the kept response, whose body is parsed once. It is empty if the body is too
// large, or there is no room to parse it.
func (f *FirstRun) member(pointer string) string {
	response := f.read()
	if len(response.Body) > maxFirstBody {
		return ""
	}
	if !f.parses {
		f.room.Budget, f.parses = f.Budget, true
		f.body = delivery.Request{Body: func() ([]byte, error) { return response.Body, nil }, Reserve: f.room.Admit}.Remember()
	}
	text, _ := f.body.Member(pointer)
	return text
}
