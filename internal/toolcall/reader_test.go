package toolcall_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
)

// ended is what a reader found: how the call ends, before which byte, and by what.
type ended struct {
	end      toolcall.End
	at       int // the offset of the byte; -1 where it ended with the answer
	message  string
	outgrown bool
}

// answer is what an upstream answers.
type answer struct {
	status                int
	contentType, encoding string
	limit                 int
	body                  string
}

func (a answer) read(pieces func(string) []string, reserve func(int) bool) ended {
	r := toolcall.NewReader(a.status, a.contentType, a.encoding, a.limit, reserve)
	at := 0
	for _, piece := range pieces(a.body) {
		n, is := r.Feed([]byte(piece))
		if is {
			return ended{r.Close(), at + n, string(r.Message()), r.Omitted()}
		}
		at += len(piece)
	}
	return ended{r.Close(), -1, string(r.Message()), r.Omitted()}
}

// inOne, inBytes and by are ways to write a text.
func inOne(text string) []string   { return []string{text} }
func inBytes(text string) []string { return by(1)(text) }

func by(size int) func(string) []string {
	return func(text string) (pieces []string) {
		for piece := range slices.Chunk([]byte(text), size) {
			pieces = append(pieces, string(piece))
		}
		return pieces
	}
}

func anyRoom(int) bool { return true }

const (
	result = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`
	failed = `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`
	asked  = `{"id":0,"method":"elicitation/create","params":{}}`
)

// ends are the messages that end a call, or do not.
var ends = map[string]toolcall.End{
	result:            toolcall.Kept,
	`{"result":null}`: toolcall.Kept,
	`{"id":1,"method":null,"params":null,"result":{},"error":null}`:     toolcall.Kept,
	`{"id":"other","result":{"resultType":"task"}}`:                     toolcall.Kept,
	`{"id":1,"result":{"isError":false,"resultType":"complete"}}`:       toolcall.Kept,
	`{"id":1,"result":{"content":[{"isError":true}],"isError":"true"}}`: toolcall.Kept,
	`{"id":1,"result":{"isError":true,"isError":false}}`:                toolcall.Kept,
	failed:                              toolcall.Released,
	`{"id":1,"result":null,"error":{}}`: toolcall.Released,
	`{"id":1,"result":{"content":[],"isError":true}}`:                 toolcall.Released,
	`{"id":1,"result":{"isError":false,"\u0069sError":true}}`:         toolcall.Released,
	`{"id":1,"result":{"resultType":"input\u005frequired"}}`:          toolcall.Asked,
	`{"id":1,"error":{},"result":{"a":1},"result":{"isError":false}}`: toolcall.Released,
	asked: toolcall.Pending,
	`{"method":"notifications/progress","result":{}}`: toolcall.Pending,
	`{"id":1,"result":{}`:                             toolcall.Pending,
	`{"id":1,"result":{}}{}`:                          toolcall.Pending,
	`[{"id":1,"result":{}}]`:                          toolcall.Pending,
	`{"id":1}`:                                        toolcall.Pending,
	`"result"`:                                        toolcall.Pending,
}

func TestReaderOfJSON(t *testing.T) {
	for message, end := range ends {
		a := answer{200, "Application/JSON; charset=utf-8", "", 1 << 20, "\ufeff" + message}
		want := ended{end, -1, message, false}
		if end == toolcall.Pending { // the answer has no response
			want = ended{toolcall.Released, -1, "", false}
		}
		for _, pieces := range []func(string) []string{inOne, inBytes} {
			if got := a.read(pieces, anyRoom); got != want {
				t.Errorf("%s: got %+v, want %+v", message, got, want)
			}
		}
	}
}

func TestReaderOfEvents(t *testing.T) {
	for message, end := range ends {
		stream := "event: message\ndata: " + message + "\n\ndata: " + result + "\n\n"
		want := ended{end, strings.Index(stream, "\n\n") + 1, message, false}
		if end == toolcall.Pending { // the next one decides
			want = ended{toolcall.Kept, len(stream) - 1, result, false}
		}
		a := answer{200, "text/event-stream", "", 1 << 20, stream}
		for _, pieces := range []func(string) []string{inOne, inBytes} {
			if got := a.read(pieces, anyRoom); got != want {
				t.Errorf("%s: got %+v, want %+v", message, got, want)
			}
		}
	}
}

// In each stream, the byte with which the client has the response is the one behind ¦.
func TestReaderOfStreams(t *testing.T) {
	split := strings.ReplaceAll(result, `,"`, ",\n\"")
	for name, stream := range map[string]string{
		"unnamed":          "data: RESULT\n¦\n",
		"no space":         "data:RESULT\n¦\nmore",
		"named":            "event: message\ndata: RESULT\n¦\n",
		"named afterwards": "data: RESULT\nevent:message\n¦\n",
		"named twice":      "event: ping\nevent: message\ndata: RESULT\n¦\n",
		"no name":          "event\ndata: RESULT\n¦\n",
		"CR LF":            "event: message\r\ndata: RESULT\r\n¦\r\n",
		"CR":               "event: message\rdata: RESULT\r¦\r",
		"mixed":            "event: message\rdata: RESULT\n¦\r\n",
		"CR CR LF":         ": \r\r\ndata: RESULT\r\n¦\r",
		"BOM":              "\ufeffdata: RESULT\n¦\n",
		"BOM alone":        "\ufeff\ndata: RESULT\n¦\n",
		"fields":           "id: 7\nretry: 100\ndata: RESULT\nother\nid\n¦\n",
		"comments":         ": keepalive\n\n:\n\n: data: {}\ndata: RESULT\n:\n¦\n",
		"priming":          "id: 1\ndata:\n\nid: 2\ndata: \n\nid: 3\ndata\n\ndata: RESULT\n¦\n",
		"prime and close":  "event: prime\nid: 1\ndata: RESULT\n\nevent: close\ndata: {}\n\ndata: RESULT\n¦\n",
		"lines":            "data: SPLIT\n¦\n",
		"lines, CR LF":     "data: SPLIT\r\n¦\r\n",
		"requests":         "data: " + asked + "\n\nevent: message\ndata: {\"method\":\"notifications/progress\"}\n\ndata: RESULT\n¦\ndata: " + failed + "\n\n",
		"no JSON":          "data: ping\n\ndata: RESULT\n¦\n",
		"data in names":    "xdata: " + failed + "\n\ndatax: " + failed + "\n\nDATA: " + failed + "\n\n data: " + failed + "\n\ndata: RESULT\n¦\n",
	} {
		message := result
		if strings.Contains(stream, "SPLIT") {
			message = split
		}
		lineEnd := "\n"
		if strings.Contains(stream, "\r\n") {
			lineEnd = "\r\n"
		}
		stream = strings.ReplaceAll(stream, "RESULT", result)
		stream = strings.ReplaceAll(stream, "SPLIT", strings.ReplaceAll(split, "\n", lineEnd+"data:"))
		at := strings.Index(stream, "¦")
		a := answer{200, "text/event-stream;charset=utf-8", "identity", 1 << 20, stream[:at] + stream[at+len("¦"):]}
		for i, pieces := range []func(string) []string{inOne, inBytes, by(2), by(7)} {
			if got, want := a.read(pieces, anyRoom), (ended{toolcall.Kept, at, message, false}); got != want {
				t.Errorf("%s, %d: got %+v, want %+v", name, i, got, want)
			}
		}
	}
}

func TestAnswersWithoutResponse(t *testing.T) {
	for _, c := range []struct {
		a    answer
		want toolcall.End
	}{
		{answer{200, "text/event-stream", "", 1 << 20, ""}, toolcall.Unknown},
		{answer{200, "text/event-stream", "", 1 << 20, "data: " + asked + "\n\n"}, toolcall.Unknown},
		{answer{200, "text/event-stream", "", 1 << 20, "data: " + result + "\n"}, toolcall.Unknown}, // it is cut
		{answer{200, "text/event-stream", "", 1 << 20, "event: prime\ndata: " + result + "\n\n"}, toolcall.Unknown},
		{answer{200, "text/event-stream", "gzip", 1 << 20, "data: " + result + "\n\n"}, toolcall.Kept},
		{answer{200, "application/json", "gzip", 1 << 20, result}, toolcall.Kept},
		{answer{200, "application/json", "", 1 << 20, ""}, toolcall.Released},
		{answer{202, "", "", 1 << 20, ""}, toolcall.Released},
		{answer{200, "text/html", "gzip", 1 << 20, result}, toolcall.Released},
		{answer{200, "", "", 1 << 20, result}, toolcall.Released},
	} {
		if got := c.a.read(inOne, anyRoom); got != (ended{c.want, -1, "", false}) {
			t.Errorf("%+v: got %+v, want %d", c.a, got, c.want)
		}
	}
	// A result is kept at status 200 only.
	for status, want := range map[int]toolcall.End{200: toolcall.Kept, 201: toolcall.Released, 500: toolcall.Released} {
		for contentType, body := range map[string]string{"application/json": result, "text/event-stream": "data: " + result + "\n\n"} {
			if got := (answer{status, contentType, "", 1 << 20, body}).read(inOne, anyRoom); got.end != want || got.message != result {
				t.Errorf("%d, %s: got %+v, want %d", status, contentType, got, want)
			}
		}
	}
}

// The limit is that of a message. One that is larger ends the call, which was executed, unless it begins as a
// request or a notification.
func TestReaderOutgrown(t *testing.T) {
	const limit = 1000
	large := strings.Repeat("x", limit+1)
	for name, c := range map[string]struct {
		status       int
		begins, text string // of a stream, in which a small result follows
		want         toolcall.End
		isNoResponse bool
	}{
		"result":       {200, "", `{"jsonrpc":"2.0","id":1,"result":{"content":"` + large + `"}}`, toolcall.Kept, false},
		"error":        {200, "", `{"id":1,"error":{"message":"` + large + `"}}`, toolcall.Kept, false},
		"of a failure": {500, "", `{"id":1,"result":"` + large + `"}`, toolcall.Released, false},
		"no JSON":      {200, "", large, toolcall.Kept, false},
		"request":      {200, "", `{"id":1,"method":"x","params":"` + large + `"}`, toolcall.Kept, true},
		"named":        {200, "event: ping\n", `{"id":1,"result":"` + large + `"}`, toolcall.Kept, true},
	} {
		for i, pieces := range []func(string) []string{inOne, inBytes, by(300)} {
			want := ended{c.want, -1, "", true}
			a := answer{c.status, "application/json", "", limit, c.text}
			if got := a.read(pieces, anyRoom); got.end != want.end || !got.outgrown || got.message != "" {
				t.Errorf("%s, JSON, %d: got %+v, want %+v", name, i, got, want)
			}
			stream := c.begins + "data: " + c.text + "\n\n"
			if want.at = limit; c.isNoResponse {
				stream += ": " + large[:limit/2] + "\ndata: " + result + "\n\n"
				want = ended{toolcall.Kept, len(stream) - 1, result, false}
			}
			a = answer{c.status, "text/event-stream", "", limit, stream}
			if got := a.read(pieces, anyRoom); got != want {
				t.Errorf("%s, stream, %d: got %+v, want %+v", name, i, got, want)
			}
		}
	}
}

// What the reader holds it has reserved, and it is bounded by the largest message, not by the stream.
func TestReaderReserves(t *testing.T) {
	notification := `{"method":"notifications/message","params":"` + strings.Repeat("x", 5000) + `"}`
	stream := strings.Repeat("data: "+notification+"\n\n", 100) + "data: " + result + "\n\n"
	for i, pieces := range []func(string) []string{inOne, inBytes, by(1000)} {
		reserved := 0
		a := answer{200, "text/event-stream", "", 1 << 20, stream}
		got := a.read(pieces, func(n int) bool { reserved += n; return true })
		if held := 4<<10 + 8<<10 - 512; i == 1 && reserved < held { // the last buffer beside the one before
			t.Errorf("%d bytes are reserved, and %d held", reserved, held)
		}
		if got.end != toolcall.Kept || got.message != result || reserved < len(notification)-512 || reserved > 4*len(notification) {
			t.Errorf("%d: got %+v, with %d bytes", i, got, reserved)
		}
	}
	// Without room, a small response is kept all the same, and a large one is known to be one.
	for message, want := range map[string]ended{
		result: {toolcall.Kept, -1, result, false},
		`{"id":1,"result":{"content":"` + strings.Repeat("x", 600) + `"}}`: {toolcall.Kept, 512, "", true},
	} {
		noRoom := func(int) bool { return false }
		if got := (answer{200, "application/json", "", 1 << 20, message}).read(inOne, noRoom); got != want {
			t.Errorf("%.80s: got %+v, want %+v", message, got, want)
		}
		large := "data: " + notification + "\n\ndata: " + message + "\n\n"
		got := answer{200, "text/event-stream", "", 1 << 20, large}.read(inOne, noRoom)
		if got.end != want.end || got.message != want.message || got.outgrown != want.outgrown {
			t.Errorf("%.80s, in a stream: got %+v, want %+v", message, got, want)
		}
	}
}

// What follows the response decides nothing.
func TestReaderAfterTheEnd(t *testing.T) {
	r := toolcall.NewReader(200, "text/event-stream", "", 1<<20, anyRoom)
	for i, piece := range []string{"data: " + result + "\n\n", "data: " + failed + "\n\n"} {
		if n, is := r.Feed([]byte(piece)); is != (i == 0) || i == 1 && n != len(piece) {
			t.Errorf("%q: got %d, %t", piece, n, is)
		}
	}
	if end, message := r.Close(), r.Message(); end != toolcall.Kept || string(message) != result {
		t.Errorf("got %d, %s", end, message)
	}
}

// simple is another reader of events: of all of a stream, by the words of the specification. It
// returns the data of the first event with a response.
func simple(stream string) (end toolcall.End, message string) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	var data []string
	event := ""
	for _, line := range lines[:len(lines)-1] { // the last one has no end
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			body := answer{200, "application/json", "", 1 << 20, strings.Join(data, "\n")}
			if found := body.read(inOne, anyRoom); (event == "" || event == "message") && found.message != "" {
				return found.end, found.message
			}
			data, event = nil, ""
		case name == "data":
			data = append(data, value)
		case name == "event":
			event = value
		}
	}
	return toolcall.Unknown, ""
}

func FuzzEvents(f *testing.F) {
	for _, stream := range []string{
		"data: " + result + "\n\n", "\ufeffevent: message\r\ndata: " + result + "\r\n\r\n", "data:\rdata:{\"result\":\rdata: 1}\r\r",
		": x\n\nevent: a\ndata: " + result + "\n\ndata: " + asked + "\n\ndata: " + failed + "\n\n", "event: message\nevent\ndata: " + result + "\r\r\n",
		"\ufeff\ufeffdata\ndata: " + result + "\n\n", "data: {\"id\":1,\ndata\ndata: \"result\":{\"isError\":true}}\n\n", "data: {\"result\":\"" + strings.Repeat("x", 600) + "\"}\n\n",
	} {
		f.Add(stream, uint8(1), uint8(3))
		f.Add(stream, uint8(5), uint8(0))
	}
	f.Fuzz(func(t *testing.T, stream string, first, then uint8) {
		for _, limit := range []int{0, 1 << 20} {
			a := answer{200, "text/event-stream", "", limit, stream}
			whole := a.read(inOne, anyRoom)
			cut := func(text string) []string {
				n := min(len(text), int(first))
				return append([]string{text[:n]}, by(int(then)+1)(text[n:])...)
			}
			for i, pieces := range []func(string) []string{inBytes, cut} {
				if got := a.read(pieces, anyRoom); got != whole {
					t.Errorf("%q, %d: got %+v, as a whole %+v", stream, i, got, whole)
				}
			}
			if limit == 0 {
				continue
			}
			end, message := simple(stream)
			if got := fmt.Sprintf("%q", strings.TrimSpace(whole.message)); whole.end != end || got != fmt.Sprintf("%q", strings.TrimSpace(message)) {
				t.Errorf("%q: got %+v, by the specification %d, %q", stream, whole, end, message)
			}
			// The byte is the first with which the specification has it.
			if whole.at >= 0 {
				if end, _ := simple(stream[:whole.at]); end != toolcall.Unknown {
					t.Errorf("%q: the response is there before byte %d", stream, whole.at)
				}
				if end, _ := simple(stream[:whole.at+1]); end == toolcall.Unknown {
					t.Errorf("%q: the response is not there with byte %d", stream, whole.at)
				}
			}
		}
	})
}
