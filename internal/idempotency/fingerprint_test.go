package idempotency_test

import (
	"io"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	none   = idempotency.FingerprintNone
	byBody = idempotency.FingerprintBody
	byJSON = idempotency.FingerprintJSON
)

// fingerprint parses the body as a handler does.
func fingerprint(kind idempotency.FingerprintKind, path, query string, body []byte, exclude ...string) string {
	doc, _ := canonicaljson.Parse(body, nil) // it may be no JSON
	return idempotency.Fingerprint(kind, path, query, body, doc, exclude...)
}

func TestFingerprintCoversPathQueryAndBody(t *testing.T) {
	type request struct{ path, query, body string }
	for name, c := range map[string]struct {
		a, b request
		body bool // the same by the body's bytes
		json bool // the same by its canonical form
	}{
		"the same":                 {request{"/a", "b=1", "c"}, request{"/a", "b=1", "c"}, true, true},
		"another path":             {request{"/a", "", "c"}, request{"/b", "", "c"}, false, false},
		"another query":            {request{"/a", "b=1", "c"}, request{"/a", "b=2", "c"}, false, false},
		"another order of queries": {request{"/a", "b=1&c=1", ""}, request{"/a", "c=1&b=1", ""}, false, false},
		"another body":             {request{"/a", "", "c"}, request{"/a", "", "d"}, false, false},
		"no body":                  {request{"/a", "", ""}, request{"/a", "", "{}"}, false, false},
		"path or query":            {request{"/a", "b", ""}, request{"/ab", "", ""}, false, false},
		"query or body":            {request{"/a", "b", ""}, request{"/a", "", "b"}, false, false},
		"white space in JSON":      {request{"/a", "", `{"b":1}`}, request{"/a", "", "{ \"b\" : 1 }\n"}, false, true},
		"order of members":         {request{"/a", "", `{"b":1,"c":2}`}, request{"/a", "", `{"c":2,"b":1}`}, false, true},
		"order of elements":        {request{"/a", "", `[1,2]`}, request{"/a", "", `[2,1]`}, false, false},
		"escapes in JSON":          {request{"/a", "", `["\u0061\/"]`}, request{"/a", "", `["a/"]`}, false, true},
		"a fraction of nothing":    {request{"/a", "", `[1.50]`}, request{"/a", "", `[1.5]`}, false, true},
		"a number or its text":     {request{"/a", "", `[1]`}, request{"/a", "", `["1"]`}, false, false},
		"null or no member":        {request{"/a", "", `{"b":null}`}, request{"/a", "", `{}`}, false, false},
		"not JSON, white space":    {request{"/a", "", "a b"}, request{"/a", "", "a  b"}, false, false},
		"cut JSON, white space":    {request{"/a", "", `{"b":1`}, request{"/a", "", `{ "b":1`}, false, false},
		"doubled members":          {request{"/a", "", `{"b":1,"b":2}`}, request{"/a", "", `{"b":2}`}, false, false},
		"beyond exact doubles": {request{"/a", "", `{"id":9007199254740993}`},
			request{"/a", "", `{"id":9007199254740992}`}, false, false},
		"snowflakes": {request{"/a", "", `{"id":175928847299117063}`}, request{"/a", "", `{"id":175928847299117062}`}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, want := range map[idempotency.FingerprintKind]bool{byBody: c.body, byJSON: c.json, none: true} {
				a := fingerprint(kind, c.a.path, c.a.query, []byte(c.a.body))
				b := fingerprint(kind, c.b.path, c.b.query, []byte(c.b.body))
				if (a == b) != want {
					t.Errorf("%s: %+v has %s and %+v has %s; the same: want %v", kind, c.a, a, c.b, b, want)
				}
			}
		})
	}
}

func TestFingerprintNamesItsKind(t *testing.T) {
	for _, kind := range []idempotency.FingerprintKind{none, ""} {
		if got := fingerprint(kind, "/a", "", []byte("b")); got != "" {
			t.Errorf("kind %q has the fingerprint %q", kind, got)
		}
	}
	for _, kind := range []idempotency.FingerprintKind{byBody, byJSON} {
		got := fingerprint(kind, "/a", "", []byte(`{}`))
		label, hash, _ := strings.Cut(got, ":")
		if label != string(kind) || len(hash) != 64 {
			t.Errorf("kind %q has the fingerprint %q", kind, got)
		}
	}
}

// A fingerprint from before a change of `exclude` is of another kind and is not compared: otherwise a
// retry after the change would be refused as another request.
func TestFingerprintNamesWhatIsExcluded(t *testing.T) {
	kindOf := func(kind idempotency.FingerprintKind, exclude ...string) string {
		form, _, _ := strings.Cut(fingerprint(kind, "/a", "", []byte(`{"b":1}`), exclude...), ":")
		return form
	}
	kinds := make(map[string][]string)
	for _, exclude := range [][]string{nil, {"/b"}, {"/c"}, {"/b", "/c"}, {"/b/c"}, {"/b/"}} {
		form := kindOf(byJSON, exclude...)
		if same, known := kinds[form]; known {
			t.Errorf("without %q and without %q are both of the kind %q", same, exclude, form)
		}
		kinds[form] = exclude
	}
	if a, b := kindOf(byJSON, "/b", "/c"), kindOf(byJSON, "/c", "/b"); a != b {
		t.Errorf("two orders of the same members are of the kinds %q and %q", a, b)
	}
	if got := kindOf(byBody, "/b"); got != string(byBody) {
		t.Errorf("a body, of which nothing is excluded, is of the kind %q", got)
	}
	if got := kindOf(byBody, "?ts"); got == string(byBody) || got == kindOf(byBody, "?sig") {
		t.Errorf("a query without ts is of the kind %q", got)
	}
	call := func(exclude ...string) string {
		text, _ := idempotency.CallFingerprint("", exclude, func(io.Writer) error { return nil })
		return text
	}
	if call("/b") == call() || call("/b") == call("/c") {
		t.Errorf("calls without /b have the fingerprint %s", call("/b"))
	}
}

func TestFingerprintWithoutExcludedMembers(t *testing.T) {
	exclude := []string{"/sent_at", "?ts", "/meta/attempt"}
	first := []byte(`{"order":7,"sent_at":1,"meta":{"attempt":1,"by":"a"}}`)
	for body, same := range map[string]bool{
		`{"order":7,"sent_at":2,"meta":{"attempt":2,"by":"a"}}`: true,
		`{"order":7,"meta":{"by":"a"}}`:                         true,
		`{"order":8,"sent_at":1,"meta":{"attempt":1,"by":"a"}}`: false,
		`{"order":7,"sent_at":1,"meta":{"attempt":1,"by":"b"}}`: false,
		`{"order":7,"sent_at":1}`:                               false,
	} {
		a := fingerprint(byJSON, "/", "", first, exclude...)
		b := fingerprint(byJSON, "/", "", []byte(body), exclude...)
		if (a == b) != same {
			t.Errorf("%s and %s: the same is %v; want %v", first, body, a == b, same)
		}
		if fingerprint(byBody, "/", "", first, exclude...) == fingerprint(byBody, "/", "", []byte(body), exclude...) {
			t.Errorf("%s: the body's bytes have lost the excluded members too", body)
		}
	}
}
