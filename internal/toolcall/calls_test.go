package toolcall

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func take(room *budget.Allowance, n int) bool { return room.TryTake(n) }

// What is kept of an answer is its response alone, however much of a stream came before, and no field
// that describes the rest.
func TestAnswerKeepsItsResponse(t *testing.T) {
	response := `{"id":1,"result":{"text":"` + strings.Repeat("x", 100<<10) + `"}}`
	for contentType, text := range map[string]string{
		"application/json":  response,
		"text/event-stream": strings.Repeat(": comment\n", 50<<10) + "data: " + response + "\n\n",
	} {
		room := budget.New(1 << 20)
		a := Mode{}.NewAnswer(1<<20, budget.Allowance{Budget: room}, "")
		if stream := a.Begin(http.StatusOK, http.Header{"Content-Type": {contentType}}, take); stream != (contentType == "text/event-stream") {
			t.Errorf("%s: it is a stream: %v", contentType, stream)
		}
		a.Feed([]byte(text))
		if verdict := a.Verdict(true); verdict.Failed || verdict.Unknown || verdict.Why != nil {
			t.Errorf("%s: %+v", contentType, verdict)
		}
		kept := &idempotency.Response{Status: http.StatusOK, Header: map[string][]string{
			"Content-Type": {contentType}, "Content-Language": {"en"}, "Cache-Control": {"no-cache"}, "X-Accel-Buffering": {"no"}, "X-Own": {"1"},
			"Access-Control-Allow-Origin": {"https://a.example"}, "Access-Control-Allow-Credentials": {"true"}, "Access-Control-Expose-Headers": {"Mcp-Session-Id"},
		}}
		a.Keep(kept)
		if string(kept.Body) != response || kept.Omitted || a.Omitted() || a.Held() != len(response) {
			t.Errorf("%s: %d bytes are kept, and %d held, of %d", contentType, len(kept.Body), a.Held(), len(response))
		}
		if want := map[string][]string{"Content-Type": {"application/json"}, "X-Own": {"1"}}; !reflect.DeepEqual(kept.Header, want) {
			t.Errorf("%s: the header %v is kept, want %v", contentType, kept.Header, want)
		}
		if a.Release(); room.Used() != 0 {
			t.Errorf("%s: %d bytes are in use", contentType, room.Used())
		}
	}
}

// A result is kept; all else says that the call failed, or does not say how it ended.
func TestVerdictsOfAnswers(t *testing.T) {
	const asJSON, asEvents = "application/json", "text/event-stream"
	for name, c := range map[string]struct {
		status      int // 0 for an answer that has not begun
		contentType string
		encoding    string
		text        string
		cut         bool
		want        error
		unknown     bool
	}{
		"a result":               {200, asJSON, "", `{"id":1,"result":{}}`, false, nil, false},
		"an error":               {200, asJSON, "", `{"id":1,"error":{"code":-1}}`, false, errFailed, false},
		"a result that is none":  {200, asJSON, "", `{"id":1,"result":{"isError":true}}`, false, errFailed, false},
		"a question":             {200, asJSON, "", `{"id":1,"result":{"resultType":"input_required"}}`, false, errAsked, false},
		"another status":         {400, asJSON, "", `{"id":1,"result":{}}`, false, errFailed, false},
		"no response":            {202, asJSON, "", ``, false, errSilent, false},
		"nothing":                {0, "", "", ``, false, errSilent, false},
		"a stream":               {200, asEvents, "", "data: {\"id\":1,\"result\":{}}\n\n", false, nil, false},
		"a stream without any":   {200, asEvents, "", ": comment\n\n", false, errUnknown, true},
		"an encoded one":         {200, asJSON, "br", "...", false, nil, false},
		"an answer that was cut": {200, asJSON, "", `{"id":1,`, true, nil, false},
	} {
		a := Mode{}.NewAnswer(1<<20, budget.Allowance{Budget: budget.New(1 << 20)}, "")
		if c.status != 0 {
			header := http.Header{"Content-Type": {c.contentType}}
			if c.encoding != "" {
				header.Set("Content-Encoding", c.encoding)
			}
			a.Begin(c.status, header, take)
			a.Feed([]byte(c.text))
		}
		got := a.Verdict(!c.cut)
		if !errors.Is(got.Why, c.want) || got.Unknown != c.unknown || got.Asked != errors.Is(c.want, errAsked) || got.Failed != (c.want != nil && !c.unknown && !got.Asked) {
			t.Errorf("%s: %+v, want %v", name, got, c.want)
		}
	}
}

// With a shared store, a cancellation is handed on only if its request is in flight here, and has no key: the
// call may be in flight in another process.
func TestCancellationsWithSharedStore(t *testing.T) {
	caller := func(of string) func(...string) []string {
		return func(...string) []string { return []string{of} }
	}
	const call, list = `{"id":1,"method":"tools/call"}`, `{"id":1,"method":"tools/list"}`
	for name, c := range map[string]struct {
		shared bool
		body   string // "" for none in flight
		hasKey bool
		by     string // who cancels
		status int
	}{
		"with a key":                {false, call, true, "a", 202},
		"without a key":             {false, call, false, "a", 0},
		"none":                      {false, "", false, "a", 0},
		"shared, with a key":        {true, call, true, "a", 202},
		"shared, without a key":     {true, call, false, "a", 0},
		"shared, another request":   {true, list, false, "a", 0},
		"shared, of another caller": {true, call, false, "b", 202},
		"shared, none":              {true, "", false, "a", 202},
	} {
		m, end := Mode{Shared: c.shared}, func() {}
		header := http.Header{methodField: {"notifications/cancelled"}}
		if c.body != "" {
			if !m.May(&http.Request{Method: http.MethodPost, Header: http.Header{methodField: {"tools/list"}}}) && c.shared {
				t.Errorf("%s: a request with another method is not seen", name)
			}
			end = m.Read(nil, []byte(c.body), true, caller("a")).Begin(c.hasKey)
		}
		cancel := []byte(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		if got := m.Read(header, cancel, true, caller(c.by)); got.Answer != c.status {
			t.Errorf("%s: the cancellation gets %d, want %d", name, got.Answer, c.status)
		}
		end()
		if keyed, passed := inFlight.has(flightOf([]string{"a"}, []byte("1"))); keyed || passed {
			t.Errorf("%s: it is in flight", name)
		}
	}
}

// However the upstream's writes are read, an event before the response gets an id, and the response none.
func TestEventsBesideTheResponse(t *testing.T) {
	const progress, response = "data: {\"method\":\"progress\"}\n\n", "data: {\"id\":1,\"result\":{}}\n\n"
	for size := 1; size <= len(progress+response); size++ {
		a := Mode{}.NewAnswer(1<<20, budget.Allowance{Budget: budget.New(1 << 20)}, "ours")
		a.Begin(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}, take)
		got := ""
		for piece := range slices.Chunk([]byte(progress+response), size) {
			before, _ := a.Feed(piece)
			got += string(a.Rewrite(piece[:before]))
			got += string(a.Rewrite(piece[before:]))
		}
		if want := strings.Replace(progress, "\n\n", "\nid: ours\n\n", 1) + response; got != want {
			t.Errorf("in pieces of %d: got %q, want %q", size, got, want)
		}
	}
}
