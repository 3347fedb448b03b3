package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// logBook keeps what a process prints.
type logBook struct {
	mu      sync.Mutex
	printed bytes.Buffer
}

// entry is one structured log line.
type entry map[string]any

// text is a field in the form in which fmt prints it; "" if there is none.
func (e entry) text(field string) string {
	v, ok := e[field]
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}

// Write implements io.Writer.
func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.printed.Write(p)
}

// String is all that was printed.
func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.printed.String()
}

// entries are the structured lines among it.
func (b *logBook) entries() []entry {
	var all []entry
	for line := range strings.SplitSeq(b.String(), "\n") {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// find returns the entries that match.
func (b *logBook) find(matches func(entry) bool) []entry {
	var found []entry
	for _, e := range b.entries() {
		if matches(e) {
			found = append(found, e)
		}
	}
	return found
}

// judge fails the test if the process crashed, and shows its log if the test
// has failed for whatever reason.
func (b *logBook) judge(t *testing.T) {
	t.Helper()
	text := b.String()
	for _, sign := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
		if strings.Contains(text, sign) {
			t.Errorf("the process printed %q", sign)
		}
	}
	if !t.Failed() {
		return
	}
	var shown []string
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.Contains(line, `"logger":"admin.api"`) { // the test's own questions
			shown = append(shown, line)
		}
	}
	t.Logf("the process printed:\n%s", strings.Join(shown[max(0, len(shown)-60):], "\n"))
}

// awaitLog waits for a log entry and returns the first that matches. It fails
// the test if the process ends before.
func (p *caddy) awaitLog(t *testing.T, what string, matches func(entry) bool) entry {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ended := false
		select {
		case <-p.exited:
			ended = true
		default:
		}
		if found := p.log.find(matches); len(found) > 0 {
			return found[0]
		}
		if ended {
			t.Fatalf("the process ended (%v) before it logged: %s", p.err, what)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not logged within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

var hexKey = regexp.MustCompile(`^[0-9a-f]{64}$`)
