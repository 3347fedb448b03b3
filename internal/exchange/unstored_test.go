package exchange

import (
	"bytes"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
)

// A duplicate of a run whose response is not stored yet is answered although there is no room: the body is
// held and counted already.
func TestUnstoredBodyIsSharedByDuplicates(t *testing.T) {
	const size = 900 << 10
	b := budget.New(1 << 20)
	run := &recorder{allowance: budget.Allowance{Budget: b}}
	run.record.Init(&run.allowance)
	run.record.AttachOwn(&run.own)
	if !run.allowance.TryTake(size) {
		t.Fatal("there is no room for the run")
	}
	run.record.Add(bytes.Repeat([]byte("x"), size))
	body := run.record.Bytes()
	run.keep(&idempotency.Response{Body: body})
	run.record.Close(recording.Whole)
	run.own.Leave() // its client has the response

	other := &budget.Allowance{Budget: b}
	wantUsed := func(want int64, when string) {
		t.Helper()
		if got := b.Used(); got != want {
			t.Errorf("%d bytes are counted %s, want %d", got, when, want)
		}
	}
	share := func() (release func()) {
		_, release = other.Share(body, false)
		return release
	}
	first, second := share(), share()
	if first == nil || second == nil {
		t.Fatal("a duplicate of a response that is not stored has to wait for room")
	}
	wantUsed(size, "for the run and two duplicates")
	first()
	run.stored()
	wantUsed(size, "when it is stored, and a duplicate reads it")
	if share() != nil {
		t.Error("a duplicate of a stored response has room that there is not")
	}
	second()
	second()
	wantUsed(0, "at the end")
}
