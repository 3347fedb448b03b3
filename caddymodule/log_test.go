package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// logOutput and logLevel are those of the sites that are served next.
var logOutput, logLevel = "discard", ""

// logBook is a log whose lines can be read.
type logBook struct {
	mu    sync.Mutex
	lines []entry
}

var book logBook

func init() { caddy.RegisterModule(new(logBook)) }

func (*logBook) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.book", New: func() caddy.Module { return new(logBook) }}
}

func (*logBook) String() string                      { return "book" }
func (*logBook) WriterKey() string                   { return "book" }
func (*logBook) OpenWriter() (io.WriteCloser, error) { return &book, nil }
func (*logBook) Close() error                        { return nil }

func (b *logBook) Write(line []byte) (int, error) {
	fields := make(entry)
	if err := json.Unmarshal(line, &fields); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, fields)
	return len(line), nil
}

func (b *logBook) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = nil
}

// about returns the lines that begin with a message and have fields, each a name and its value.
func (b *logBook) about(message string, fields ...string) (found []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		has := strings.HasPrefix(line.text("msg"), message)
		for i := 0; i < len(fields); i += 2 {
			has = has && line.text(fields[i]) == fields[i+1]
		}
		if has {
			found = append(found, line)
		}
	}
	return found
}

// only returns the one line that about would return.
func (b *logBook) only(t *testing.T, message string, fields ...string) entry {
	t.Helper()
	found := b.about(message, fields...)
	if len(found) != 1 {
		t.Fatalf("%d lines are %q with %q, want 1; all: %v", len(found), message, fields, b.about(""))
	}
	return found[0]
}

// entry is a line of the log.
type entry map[string]any

// text returns a field as text, "" if the line does not have it.
func (e entry) text(field string) string {
	if value, ok := e[field]; ok {
		return fmt.Sprint(value)
	}
	return ""
}

// serveLogged serves the lines of a site, and writes its log into the book.
func serveLogged(t *testing.T, level, global string, lines ...string) *site {
	t.Helper()
	logOutput, logLevel = "book", level
	defer func() { logOutput, logLevel = "discard", "" }()
	book.clear()
	return serveWith(t, global, lines...)
}

// showInfo has a site show each placeholder to the client.
const showInfo = "log\nheader >X-Outcome {http.dedup.outcome}\nheader >X-Key {http.dedup.key}\nheader >X-Provider {http.dedup.provider}\n" +
	"header >X-Delivery-Id {http.dedup.delivery_id}\nheader >X-Execution-Id {http.dedup.execution_id}\nheader >X-Attempt {http.dedup.attempt}\n"

var (
	hexKey = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
)

func TestPlaceholdersAndAccessLogAgree(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		status := 201
		if n == 1 {
			status = 500
		}
		answers(status, "done")(w, r, n)
	})
	s := serveLogged(t, "", "", showInfo, "dedup github {\nmode api\nkey header X-Jangar jangar\nkey header Idempotency-Key\nmax_request_body 1KiB\n}", "reverse_proxy "+address)
	var key string
	for i, c := range []struct {
		outcome, provider, id, attempt, body string
		header                               []string
	}{
		{"executed", "", "k", "1", "body", []string{"Idempotency-Key", "k"}},
		{"executed", "", "k", "2", "body", []string{"Idempotency-Key", "k"}},
		{"replayed", "", "k", "2", "body", []string{"Idempotency-Key", "k"}},
		{"reused", "", "k", "2", "another", []string{"Idempotency-Key", "k"}},
		{"executed", "github", "1", "1", "{}", []string{"X-GitHub-Delivery", "1"}},
		{"executed", "jangar", "1", "1", "{}", []string{"X-Jangar", "1"}},
		{"missing", "", "", "", "body", nil},
		{"invalid", "", "", "", "body", []string{"Idempotency-Key", `"`}},
		{"too_large", "", "large", "", strings.Repeat("x", 1025), []string{"Idempotency-Key", "large"}},
	} {
		got := s.serveHTTP("", c.body, append(c.header, "X-Case", fmt.Sprint(i))...).header
		var line entry
		for _, entry := range book.about("handled request") {
			if request := entry["request"].(map[string]any); fmt.Sprint(request["headers"].(map[string]any)["X-Case"]) == fmt.Sprintf("[%d]", i) {
				line = entry
			}
		}
		for field, want := range map[string]string{"outcome": c.outcome, "provider": c.provider, "delivery_id": c.id, "attempt": c.attempt} {
			name := "X-" + strings.ReplaceAll(field, "_", "-")
			if shown, logged := got.Get(name), line.text("dedup_"+field); shown != want || logged != want {
				t.Errorf("case %d: %s is %q to the client and %q in the log, want %q", i, field, shown, logged, want)
			}
		}
		if id := got.Get("X-Execution-Id"); id != got.Get("Dedup-Execution-Id") || id != line.text("dedup_execution_id") || (c.attempt != "") != uuidV7.MatchString(id) {
			t.Errorf("case %d: the execution is %q to the client and %q in the log", i, id, line.text("dedup_execution_id"))
		}
		if shown := got.Get("X-Key"); shown != line.text("dedup_key") || (c.id != "") != hexKey.MatchString(shown) {
			t.Errorf("case %d: the key is %q to the client and %q in the log", i, shown, line.text("dedup_key"))
		}
		if c.id == "k" && key != "" && got.Get("X-Key") != key {
			t.Errorf("case %d has another key", i)
		}
		if i == 0 {
			key = got.Get("X-Key")
		}
	}
}

// The lines about a key's life have the delivery ID by which its sender knows it, and which request
// it was.
func TestLinesAboutAKeyNameTheDelivery(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch r.URL.Path {
		case "/failing":
			w.WriteHeader(500)
		case "/no-answer":
			panic(http.ErrAbortHandler)
		case "/too-slow":
			<-r.Context().Done()
		case "/cut-body":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "cut")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/bad-gateway":
			w.WriteHeader(502)
		}
	})
	s := serveLogged(t, "", "", "dedup {\non_unknown hold\ntimeout 500ms\n}", "reverse_proxy "+address)
	send := func(path, key, body string) {
		_, _ = s.over(with(body, path+"?token=secret", "Host: shop.test", "Idempotency-Key: "+key)) // it may be cut off
	}
	for path, reason := range map[string]string{
		"/no-answer": "EOF", "/too-slow": "deadline exceeded", "/cut-body": "cut off", "/bad-gateway": "answered with 502",
	} {
		send(path, path, "body")
		line := book.only(t, "held: ", "delivery_id", path, "method", "POST", "host", "shop.test", "path", path, "upstream", address, "attempt", "1")
		if !strings.Contains(line.text("error"), reason) || !uuidV7.MatchString(line.text("execution_id")) || !hexKey.MatchString(line.text("key")) {
			t.Errorf("%s: the line is %v", path, line)
		}
	}
	send("/failing", "failing", "body")
	book.only(t, "released: ", "delivery_id", "failing", "path", "/failing", "status", "500")
	send("/kept", "kept", "body")
	send("/kept", "kept", "another")
	book.only(t, "refused a request", "delivery_id", "kept", "code", "idempotency_key_reused", "attempt", "1")
	for _, line := range book.about("") {
		if strings.Contains(line.text("logger"), "dedup") && strings.Contains(fmt.Sprint(line), "token=secret") {
			t.Errorf("a line shows the query: %v", line)
		}
	}
}

// A wrong provider or key shows in the log, once a second.
func TestMissingKeyIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		dedup, body, id  string
		searched, reason string
	}{
		"an API":               {"dedup", "{}", "", "[header Idempotency-Key]", "no idempotency key or delivery ID"},
		"a body":               {"dedup {\nkey json /id\n}", `{"id":`, "", "[json /id]", "JSON"},
		"an invalid ID":        {"dedup github", "{}", strings.Repeat("x", 300), "[header X-GitHub-Delivery]", "the delivery ID is invalid: "},
		"observed":             {"dedup {\nobserve\non_missing reject\n}", "{}", "", "[header Idempotency-Key]", "no idempotency key or delivery ID"},
		"several":              {"dedup github gitlab", "{}", "", "header X-GitHub-Delivery", "header X-GitHub-Delivery: it is absent"},
		"an object":            {"dedup {\nkey json /id\n}", `{"id":{}}`, "", "[json /id]", "/id is neither a string nor a number"},
		"an object's webhook":  {"dedup {\nmode webhook\nkey json /id\n}", `{"id":{}}`, "", "[json /id]", "/id is neither a string nor a number"},
		"a body that is large": {"dedup {\nmode webhook\nkey json /id\nmax_request_body 1\n}", "{}", "", "[json /id]", "max_request_body"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveLogged(t, "", "", c.dedup, "respond done")
			var header []string
			if c.id != "" {
				header = []string{"X-GitHub-Delivery", c.id}
			}
			for range 100 {
				s.serveHTTP("", c.body, header...)
			}
			message := "missing: "
			if strings.HasPrefix(name, "an object") {
				message = "unusable: "
			}
			all := book.about(message)
			if len(all) == 0 || len(all) > 50 {
				t.Fatalf("100 requests leave %d lines", len(all))
			}
			line := all[0]
			if line.text("level") != "info" || line.text("path") != "/" || line.text("left_out") != "0" ||
				!strings.Contains(line.text("looked_for"), c.searched) || !strings.Contains(line.text("reason"), c.reason) {
				t.Errorf("the line is %v", line)
			}
		})
	}
	s := serveLogged(t, "", "", "dedup {\nmode webhook\nkey header X-Id\non_missing reject\n}", "respond done")
	for range 100 {
		s.serveHTTP("", "{}")
	}
	all := book.about("refused a request")
	if len(all) == 0 || len(all) > 50 || !strings.Contains(all[0].text("detail"), "[header X-Id]") {
		t.Errorf("100 requests that are refused leave %v", all)
	}
}

// Lines are limited for each reason and provider: many of one leave out no first one of another.
func TestFrequentLinesLeaveOutNoOther(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	s := serveLogged(t, "", "", "route /keys {", "dedup {\nmode webhook\nkey json /id\n}", "respond done", "}",
		"route /signed {", "dedup stripe github {\nverify stripe {env.TEST_SECRET}\nverify github {env.TEST_SECRET}\n}", "respond done", "}")
	stripe := "Stripe-Signature: t=1,v1=" + strings.Repeat("0", 64)
	for _, c := range []struct{ frequent, other request }{
		{with("{}", "/keys"), with(`{"id":{}}`, "/keys")},
		{with("{}", "/signed", stripe), with("{}", "/signed", "X-Hub-Signature-256: sha256="+strings.Repeat("0", 64))},
	} {
		book.clear()
		for range 3 {
			s.send(c.frequent)
		}
		s.send(c.other)
		reasons := map[string]int{}
		for _, line := range book.about("") {
			if reason := line.text("reason"); reason != "" {
				reasons[reason]++
			}
		}
		if len(reasons) != 2 {
			t.Errorf("%s, then %s: the lines are %v, want two reasons", c.frequent, c.other, reasons)
		}
	}
}

// A client that sends many values makes no more lines than with one.
func TestLinesOfManyInvalidIDs(t *testing.T) {
	s := serveLogged(t, "", "", "dedup github", "respond done")
	for n := range 100 {
		id := fmt.Sprintf(`\" %c%c`, 'a'+n/26, 'a'+n%26) + strings.Repeat("x", 300)
		s.serveHTTP("", "{}", "X-GitHub-Delivery", id)
	}
	if got := len(book.about("missing: ")); got == 0 || got > 50 {
		t.Errorf("100 invalid IDs leave %d lines", got)
	}
}

// Our own lines never show a credential.
func TestCredentialsAreNotLogged(t *testing.T) {
	s := serveLogged(t, "DEBUG", "", "dedup", "respond done 201")
	for _, body := range []string{"body", "body", "another"} {
		s.mustPost("k", body, "Authorization", "Bearer very-secret-token", "X-Api-Key", "another-secret")
	}
	book.only(t, "refused a request", "code", "idempotency_key_reused")
	book.only(t, "answered a duplicate", "delivery_id", "k")
	for _, line := range book.about("") {
		shown := fmt.Sprint(line)
		if strings.Contains(line.text("logger"), "dedup") && (strings.Contains(shown, "very-secret-token") || strings.Contains(shown, "another-secret")) {
			t.Errorf("logged: %v", line)
		}
	}
}
