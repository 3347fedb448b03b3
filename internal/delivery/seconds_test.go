package delivery_test

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// numbers are what may stand for a number of seconds, in a header field, in a JSON
// string and, where it is one, as a JSON number. 0 is none that counts, for the reason.
var numbers = map[string]struct {
	seconds float64
	reason  string
}{
	"1": {1, ""}, "300": {300, ""}, "300.0": {300, ""}, "3e2": {300, ""}, "3E+2": {300, ""}, "3000e-1": {300, ""},
	"0.001": {1, ""}, "299.5": {300, ""}, "300.001": {301, ""}, "1e-300": {1, ""},
	"2592000": {2592000, ""}, "9223372035": {9223372035, ""}, "9223372036": {math.MaxInt64, ""},
	"1e400": {math.MaxInt64, ""}, strings.Repeat("9", 5000): {math.MaxInt64, ""},
	"0": {0, "is zero"}, "0.0": {0, "is zero"}, "-0": {0, "is zero"}, "0e9": {0, "is zero"}, "1e-999": {0, "is zero"},
	"-1": {0, "is negative"}, "-0.5": {0, "is negative"}, "-1e400": {0, "is negative"},
}

// notNumbers are texts that are not written as JSON writes a number; leading zeros do
// no harm.
var notNumbers = []string{
	"soon", "5m", "300s", "1 000", "1,000", "1_000", "0x10", "+5", "5.", ".5", "1e", "e5", "--1", "NaN", "Inf", "infinity", "٣٠٠",
	" 300", `"300"`, "300\x00", "3600; 60",
}

func TestSeconds(t *testing.T) {
	field := delivery.Source{Kind: delivery.KindHeader, Header: "X-Window"}
	at := inBody("/dedup/window_secs")
	want := func(name string, source delivery.Source, request delivery.Request, seconds float64, reason string) {
		t.Helper()
		wanted := time.Duration(math.MaxInt64)
		if seconds < math.MaxInt64 {
			wanted = time.Duration(seconds) * time.Second
		}
		got, err := delivery.Seconds(source, request)
		switch {
		case got != wanted:
			t.Errorf("%.80s: got %s, %v; want %s", name, got, err, wanted)
		case reason == "" && err != nil:
			t.Errorf("%.80s: got the error %v", name, err)
		case reason != "" && (err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "more than 0")):
			t.Errorf("%.80s: got the error %v; want one with %q and what is right", name, err, reason)
		case reason != "" && len(err.Error()) > 4*64+100: // 64 bytes, escaped, and why
			t.Errorf("%.80s: the error has %d bytes", name, len(err.Error()))
		}
	}
	headerSource := func(lines ...string) delivery.Request {
		return delivery.Request{Header: http.Header{"X-Window": lines}}
	}
	memberSource := func(value string) delivery.Request { return withBody(`{"dedup":{"window_secs":` + value + `}}`) }
	for text, c := range numbers {
		want("header "+text, field, headerSource(text), c.seconds, c.reason)
		want("header 00"+text, field, headerSource(strings.Replace("00"+text, "00-", "-00", 1)), c.seconds, c.reason)
		want("the string "+text, at, memberSource(strconv.Quote(text)), c.seconds, c.reason)
		want("the number "+text, at, memberSource(text), c.seconds, c.reason)
	}
	for _, text := range notNumbers {
		want("header "+text, field, headerSource(text), 0, "is not a number")
		want("the string "+text, at, memberSource(strings.ReplaceAll(strconv.Quote(text), `\x00`, `\u0000`)), 0, "is not a number")
	}
	want("no header", field, delivery.Request{}, 0, "")
	want("an empty header", field, headerSource(""), 0, "")
	want("a header twice", field, headerSource("300", "300"), 300, "")
	want("headers that differ", field, headerSource("300", "301"), 0, "lines that differ")
	want("headers of which one is empty", field, headerSource("", "301"), 0, "lines that differ")
	for body, reason := range map[string]string{
		``: "", `{}`: "", `{"dedup":{}}`: "", `{"dedup":300}`: "", `{"dedup":{"window_secs":null}}`: "", `{"dedup":{"window_secs":""}}`: "",
		`window_secs=300`: "", `{"dedup":{"window_secs":300}`: "", `{"dedup":{"window_secs":300,"window_secs":300}}`: "",
		`{"dedup":{"window_secs":true}}`: "is not a number", `{"dedup":{"window_secs":false}}`: "is not a number",
		`{"dedup":{"window_secs":{"s":300}}}`: "is not a number", `{"dedup":{"window_secs":[300]}}`: "is not a number",
	} {
		want(body, at, withBody(body), 0, reason)
	}
	for _, failed := range []error{delivery.ErrBodyTooLarge, errors.New("reset by peer")} {
		request := delivery.Request{Body: func() ([]byte, error) { return nil, failed }}
		if got, err := delivery.Seconds(at, request); got != 0 || !errors.Is(err, failed) {
			t.Errorf("a body with the error %v: got %s, %v", failed, got, err)
		}
		if got, err := delivery.Seconds(field, request); got != 0 || err != nil {
			t.Errorf("a header does not need the body: got %s, %v", got, err)
		}
	}
}

// Whatever a client sends, it is none, an error of one line, or a whole number of
// seconds from 1.
func FuzzSeconds(f *testing.F) {
	for text := range numbers {
		f.Add(text)
	}
	for _, text := range notNumbers {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := delivery.Seconds(delivery.Source{Kind: delivery.KindHeader, Header: "X"}, delivery.Request{Header: http.Header{"X": {text}}})
		switch {
		case err != nil && (got != 0 || strings.ContainsAny(err.Error(), "\r\n")):
			t.Fatalf("%q: got %s beside the error %q", text, got, err)
		case err == nil && text != "" && (got < time.Second || got != math.MaxInt64 && got%time.Second != 0):
			t.Fatalf("%q is %s", text, got)
		}
	})
}
