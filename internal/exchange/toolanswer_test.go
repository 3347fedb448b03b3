package exchange

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What is stored of a tool call is its response: encrypting it takes a copy of that, however much of a
// stream came before, and without encryption it is stored as it is held.
func TestRoomForTheCopyOfAToolCallsResponse(t *testing.T) {
	response := `{"id":1,"result":{"text":"` + strings.Repeat("x", 100<<10) + `"}}`
	for contentType, answer := range map[string]string{
		"application/json":  response,
		"text/event-stream": strings.Repeat(": comment\n", 50<<10) + "data: " + response + "\n\n",
	} {
		c := recorderOn(httptest.NewRecorder(), 1<<20)
		c.tool = newToolAnswer(&Handler{Config: Config{MaxResponseBody: 1 << 20, Budget: c.allowance.Budget}}, &c.allowance)
		c.Header().Set("Content-Type", contentType)
		c.WriteHeader(http.StatusOK)
		if _, err := io.Copy(c, strings.NewReader(answer)); err != nil {
			t.Fatal(err)
		}
		if end := c.tool.end(true); end != toolKept {
			t.Fatalf("%s: the call ends as %d", contentType, end)
		}
		if n := c.takeCopyRoom(false); n != 0 {
			t.Errorf("%s: %d bytes are taken for no copy", contentType, n)
		}
		if n := c.takeCopyRoom(true); n != len(response) {
			t.Errorf("%s: %d bytes are taken for a copy of %d", contentType, n, len(response))
		}
		c.close()
	}
}
