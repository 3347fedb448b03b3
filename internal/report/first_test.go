package report

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The members of a kept response are parsed once, in reserved room, until the request ends.
func TestMembersOfTheFirstRunAreParsedOnce(t *testing.T) {
	room := budget.New(8 << 20)
	body := `{"a":1,"b":2,"c":[` + strings.Repeat("0,", 20<<10) + `0]}`
	firstRun := func() *FirstRun {
		f := &FirstRun{Budget: room, Record: new(idempotency.Record)}
		f.Give(&idempotency.Response{Body: []byte(body)})
		return f
	}
	f := firstRun()
	a, used := f.value("json./a"), room.Used()
	if b := f.value("json./b"); a != "1" || b != "2" || used < int64(len(body)) || room.Used() != used {
		t.Errorf("got %q and %q; %d bytes are taken, then %d", a, b, used, room.Used())
	}
	if f.End(); room.Used() != 0 {
		t.Errorf("%d bytes are taken when the request has ended", room.Used())
	}
	if a := f.value("json./a"); a != "1" || room.Used() != 0 { // for the access log
		t.Errorf("after that got %q, and %d bytes stay taken", a, room.Used())
	}
	others := budget.Allowance{Budget: room}
	others.Count(8 << 20)
	if a := firstRun().value("json./a"); a != "" {
		t.Errorf("without room got %q", a)
	}
}
