package integration

import (
	"net/http"
	"strings"
	"testing"
)

func TestQuotedAndBareKeysAreOne(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for _, same := range [][]string{
		{`abc`, `"abc"`},
		{`8e03978e-40d5-43dd-bc93-6894a57f9324`, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`},
		{`"a\"b\\c"`, `a"b\c`},
		{`with spaces, and a comma`, `"with spaces, and a comma"`},
		{`12345`, `"12345"`},
		{strings.Repeat("x", 255), `"` + strings.Repeat("x", 255) + `"`},
	} {
		before := len(up.all())
		first := p.post(t, "/", same[0], "")
		if first.Status != 201 || first.replayed() {
			t.Errorf("%s: got %d %q", same[0], first.Status, first.Body)
			continue
		}
		wantReplay(t, p.post(t, "/", same[1], ""), first)
		if ran := up.all()[before:]; len(ran) != 1 || ran[0].Key != same[0] {
			t.Errorf("%s: the upstream ran %v, want once and with the key unchanged", same[0], ran)
		}
	}
	// Two lines that say the same are one key.
	first := p.post(t, "/", "twice", "")
	wantReplay(t, p.post(t, "/", "", "", header("Idempotency-Key", "twice", `"twice"`)), first)
	// Case matters.
	wantFresh(t, p.post(t, "/", "ABC", ""), 201, "run 1 of ABC")
}

// invalidKeys are header lines that make no key.
var invalidKeys = map[string][]string{
	"empty":                     {"Idempotency-Key:"},
	"blank":                     {"Idempotency-Key:   "},
	"quoted empty":              {`Idempotency-Key: ""`},
	"too long":                  {"Idempotency-Key: " + strings.Repeat("x", 256)},
	"too long when unquoted":    {`Idempotency-Key: "` + strings.Repeat("x", 256) + `"`},
	"a byte outside ASCII":      {"Idempotency-Key: caf\xc3\xa9"},
	"a tab inside":              {"Idempotency-Key: a\tb"},
	"two lines that differ":     {"Idempotency-Key: a", "Idempotency-Key: b"},
	"a second, empty line":      {"Idempotency-Key: a", "Idempotency-Key:"},
	"a quote without end":       {`Idempotency-Key: "abc`},
	"text after the quote":      {`Idempotency-Key: "abc"def`},
	"two quoted on one line":    {`Idempotency-Key: "abc", "abc"`},
	"an unknown escape":         {`Idempotency-Key: "a\nb"`},
	"a quoted byte not allowed": {"Idempotency-Key: \"caf\xc3\xa9\""},
}

func TestInvalidKeyIsRefusedByAPIs(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for name, sent := range invalidKeys {
		got := p.sendRaw(t, rawPost("/", []byte("body"), sent...))
		if said := wantProblem(t, got, 400, "idempotency_key_invalid"); !strings.Contains(said.Detail, "Idempotency-Key") {
			t.Errorf("%s: the refusal does not name the header: %s", name, said.Detail)
		}
	}
	if ran := up.all(); len(ran) > 0 {
		t.Errorf("the upstream ran %v", ran)
	}
}

func TestInvalidKeyPassesWithWebhooks(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("mode webhook"), proxyTo(up))})
	sentBefore := 0
	for name, sent := range invalidKeys {
		for range 2 {
			got := p.sendRaw(t, rawPost("/", []byte("body"), sent...))
			if got.Status != 201 || got.replayed() || got.executionID() != "" {
				t.Errorf("%s: got %d %v, want it passed", name, got.Status, got.Header)
			}
		}
		sentBefore += 2
		if ran := len(up.all()); ran != sentBefore {
			t.Fatalf("%s: the upstream ran %d requests, want %d", name, ran, sentBefore)
		}
	}
	p.awaitLog(t, "an invalid key", func(e entry) bool {
		return strings.HasPrefix(e.text("logger"), "http.handlers.dedup") && strings.Contains(e.text("reason"), "invalid")
	})
}

func TestMaxKeyLengthCanBeChosen(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_key_length 8"), proxyTo(up))})
	wantFresh(t, p.post(t, "/", "12345678", ""), 201, "run 1 of 12345678")
	said := wantProblem(t, p.post(t, "/", "123456789", ""), 400, "idempotency_key_invalid")
	if !strings.Contains(said.Detail, "8") {
		t.Errorf("the refusal does not say the limit: %s", said.Detail)
	}
}

func TestKeyOfAnotherHeader(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) { answersStatus(200)(w, r, n) })
	p := start(t, conf{store: "store memory", site: lines(
		dedupBlock("key header X-Request-Token", "key header X-Order orders"), proxyTo(up))})

	// The first source that is present wins.
	first := p.post(t, "/", "", "", header("X-Request-Token", "1"), header("X-Order", "a"))
	wantReplay(t, p.post(t, "/", "", "", header("X-Request-Token", "1"), header("X-Order", "b")), first)
	// The same ID of another source is another key.
	if got := p.post(t, "/", "", "", header("X-Order", "1")); got.replayed() {
		t.Error("the same ID in two headers was taken for one key")
	}
	second := p.post(t, "/", "", "", header("X-Order", "c"))
	wantReplay(t, p.post(t, "/", "", "", header("X-Order", "c")), second)
	// Idempotency-Key is no longer looked at, and an invalid first source is
	// not passed over for the next.
	if got := p.post(t, "/", "ignored", ""); got.executionID() != "" {
		t.Error("Idempotency-Key is deduplicated though it is not named")
	}
	wantProblem(t, p.post(t, "/", "", "", header("X-Request-Token", `"`), header("X-Order", "c")), 400, "idempotency_key_invalid")
}
