package caddymodule

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// replays fails the test unless the answer is a replay of the first one.
func (a answer) replays(t *testing.T, first answer) {
	t.Helper()
	if a.status != first.status || a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" ||
		a.header.Get("Dedup-Execution-Id") != first.header.Get("Dedup-Execution-Id") {
		t.Errorf("got %+v, want a replay of %+v", a, first)
	}
}

// A conflict describes the first response: its status, its location, and its body if that is
// small JSON, as it was written. It has no field of it.
func TestConflictDescribesTheFirstResponse(t *testing.T) {
	const media = "application/json"
	markup := `{"html":"` + strings.Repeat("<&>", 1300) + `"}`
	for name, c := range map[string]struct {
		status                int
		location, media, body string
		carried               string // "" for none
	}{
		"small":      {201, "/runs/1", media, `{"run_id": 123456789012345678901}`, `{"run_id":123456789012345678901}`},
		"markup":     {201, "", media, markup, markup},
		"not kept":   {200, "/runs/2", media, `"` + strings.Repeat("x", 9000) + `"`, ""},
		"of no type": {204, "/runs/3", "", "", ""},
	} {
		for _, mode := range []string{"api", "webhook"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
					for field, value := range map[string]string{"Location": c.location, "Content-Type": c.media} {
						if value != "" {
							w.Header().Set(field, value)
						}
					}
					answers(c.status, c.body)(w, nil, 0)
				})
				s := serve(t, "dedup {", "mode "+mode, "key header Idempotency-Key", "release_on off", "on_duplicate conflict", "max_response_body 8KiB", "}", "reverse_proxy "+address)
				first, got := s.mustPost("k", "body"), s.mustPost("k", "body")
				p := got.problem(t, 409, "duplicate_request")
				if id := first.header.Get("Dedup-Execution-Id"); id == "" || p.ExecutionID != id || got.header.Get("Dedup-Execution-Id") != id {
					t.Errorf("the conflict names the execution %q and %q, want %q", p.ExecutionID, got.header.Get("Dedup-Execution-Id"), id)
				}
				var original struct {
					Status   int             `json:"original_status"`
					Location string          `json:"original_location"`
					Response json.RawMessage `json:"original_response"`
				}
				if err := json.Unmarshal([]byte(got.body), &original); err != nil {
					t.Fatal(err)
				}
				if original.Status != c.status || original.Location != c.location || string(original.Response) != c.carried {
					t.Errorf("the conflict describes %d %q %.100q, want %d %q %.100q", original.Status, original.Location, original.Response, c.status, c.location, c.carried)
				}
				if got.header.Get("X-Own") != "" || got.header.Get("Location") != "" || runs.Load() != 1 {
					t.Errorf("the conflict has %v after %d runs", got.header, runs.Load())
				}
				if mode == "api" {
					s.mustPost("k", "another").problem(t, 422, "idempotency_key_reused")
				}
			})
		}
	}
}

// A kept success is acknowledged with an empty 200, or leads to its location. A kept failure is
// replayed: a sender that took it for a success would never deliver again. So is a response
// without a location.
func TestAcknowledgeAndSeeOther(t *testing.T) {
	const location = "/runs/1?x=ü"
	for _, c := range []struct {
		lines    string
		status   int
		location string
		want     int
	}{
		{"on_duplicate acknowledge", 201, location, 200},
		{"on_duplicate acknowledge\nmax_response_body 3", 201, location, 200},
		{"on_duplicate acknowledge\nmode webhook\nkey header Idempotency-Key\nmax_attempts 1", 500, location, 500},
		{"on_duplicate see_other", 202, location, 303},
		{"on_duplicate see_other", 202, "", 202},
	} {
		t.Run(fmt.Sprintf("%s, %d %s", c.lines, c.status, c.location), func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				if c.location != "" {
					w.Header().Set("Location", c.location)
				}
				answers(c.status, "created")(w, nil, 0)
			})
			s := serve(t, "dedup {", c.lines, "}", "reverse_proxy "+address)
			first, got := s.mustPost("k", "body"), s.mustPost("k", "body")
			switch want := first; c.want {
			case c.status:
				got.replays(t, want)
			default:
				want.status, want.body = c.want, ""
				got.replays(t, want)
				if got.header.Get("X-Own") != "" || got.header.Get("Content-Type") != "" || got.header.Get("Content-Length") != "0" ||
					got.header.Get("Location") != map[int]string{303: first.header.Get("Location")}[c.want] {
					t.Errorf("its header is %v", got.header)
				}
				s.mustPost("k", "another").problem(t, 422, "idempotency_key_reused")
			}
			if runs.Load() != 1 {
				t.Errorf("the upstream ran %d times", runs.Load())
			}
		})
	}
}

// A response of any shape is replayed as it was. If it named no length, it has one now.
func TestResponsesOfEveryShapeAreReplayed(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header http.Header
		body   string
	}{
		"no content": {204, nil, ""},
		"empty":      {200, nil, ""},
		"large":      {200, nil, strings.Repeat("0123456789abcdef", 1<<15)},
		"binary":     {200, nil, "\x00\xff\xfe\r\n\r\n"},
		"no type":    {200, http.Header{"Content-Type": nil}, "<html>"},
		"refused":    {402, nil, "pay"},
		"moved":      {303, http.Header{"Location": {"/there"}}, ""},
		"JSON":       {201, http.Header{"Content-Type": {"application/json"}, "Vary": {"Origin", "Accept"}, "Access-Control-Allow-Origin": {"https://shop.test"}}, "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				for field, values := range c.header {
					w.Header()[field] = values
				}
				answers(c.status, c.body)(w, nil, 0)
			})
			s := serve(t, "dedup", "reverse_proxy "+address)
			first, second := s.mustPost("k", "body"), s.mustPost("k", "body")
			if first.status != c.status || first.body != c.body || first.header.Get("Idempotent-Replayed") != "" || first.header.Get("Dedup-Execution-Id") == "" {
				t.Fatalf("got %d %v %.100q", first.status, first.header, first.body)
			}
			second.replays(t, first)
			for _, field := range []string{"X-Own", "Content-Type", "Content-Length", "Location", "Vary", "Access-Control-Allow-Origin"} {
				a, b := first.header.Values(field), second.header.Values(field)
				if (field != "Content-Length" || len(a) > 0) && fmt.Sprint(a) != fmt.Sprint(b) {
					t.Errorf("the replay has %s %q, the first response %q", field, b, a)
				}
			}
			if runs.Load() != 1 {
				t.Errorf("the upstream ran %d times", runs.Load())
			}
		})
	}
}

// What concerns the first client alone is not replayed, unless `keep_header` names it, nor are
// trailers, nor what a handler in front has set.
func TestPrivateHeadersAreNotReplayed(t *testing.T) {
	for keep, kept := range map[string]map[string]string{
		"":                           {},
		"keep_header Set-Cookie Age": {"Set-Cookie": "session=1", "Age": "77"},
	} {
		t.Run(keep, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				for field, value := range map[string]string{
					"Date": "Mon, 01 Jan 2001 00:00:00 GMT", "Set-Cookie": "session=1", "Age": "77", "Alt-Svc": `h3=":443"`,
					"Server-Timing": "db;dur=53", "Connection": "X-Hop", "X-Hop": "1", "X-Request-Cost": "3", "Trailer": "X-Sum",
				} {
					w.Header().Set(field, value)
				}
				_, _ = io.WriteString(w, "done")
				w.Header().Set("X-Sum", "9")
			})
			s := serve(t, "header X-Request-Id {http.request.uuid}", "dedup {", keep, "}", "reverse_proxy "+address)
			var both [2]*http.Response
			for i := range both {
				got, err := oneRequest.Do(s.outgoing(with("", "Idempotency-Key: k")))
				if err != nil {
					t.Fatal(err)
				}
				defer got.Body.Close()
				both[i] = got
				if body, err := io.ReadAll(got.Body); err != nil || string(body) != "done" {
					t.Fatalf("got %q, %v", body, err)
				}
			}
			first, replay := both[0], both[1]
			if first.Trailer.Get("X-Sum") != "9" || len(replay.Trailer) > 0 || replay.Header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("the trailers are %v and %v; the header of the replay is %v", first.Trailer, replay.Trailer, replay.Header)
			}
			// reverse_proxy removes Alt-Svc itself.
			for _, field := range []string{"Set-Cookie", "Age", "Server-Timing"} {
				if first.Header.Get(field) == "" {
					t.Errorf("the first response lacks %s", field)
				}
			}
			for _, field := range []string{"Set-Cookie", "Age", "Alt-Svc", "Server-Timing", "X-Hop", "Trailer", "X-Sum"} {
				if got := replay.Header.Get(field); got != kept[field] {
					t.Errorf("the replay has %s %q, want %q", field, got, kept[field])
				}
			}
			if replay.Header.Get("X-Request-Cost") != "3" {
				t.Error("the replay lacks X-Request-Cost")
			}
			if ids := replay.Header["X-Request-Id"]; len(ids) != 1 || ids[0] == first.Header.Get("X-Request-Id") {
				t.Errorf("the replay has the request IDs %q, the first response %q", ids, first.Header["X-Request-Id"])
			}
			if date, err := http.ParseTime(replay.Header.Get("Date")); err != nil || date.Year() == 2001 {
				t.Errorf("the replay has the Date %q", replay.Header.Get("Date"))
			}
		})
	}
}

// Requests with other methods pass, and those without a key.
func TestWhatIsNotDeduplicated(t *testing.T) {
	address, runs := startUpstream(t, answers(201, "created"))
	for lines, deduplicated := range map[string]string{"": "POST PATCH", "methods PUT": "PUT"} {
		s := serve(t, "dedup {", lines, "}", "reverse_proxy "+address)
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"} {
			for _, key := range []string{"k", ""} {
				before := runs.Load()
				var got answer
				for range 2 {
					r := keyedBy(key, "")
					r.lines = append(r.lines, method)
					got = s.send(r)
				}
				replayed := key != "" && strings.Contains(deduplicated, method)
				if got.status != 201 || (got.header.Get("Idempotent-Replayed") != "") != replayed || (got.header.Get("Dedup-Execution-Id") != "") != replayed ||
					(runs.Load() == before+1) != replayed {
					t.Errorf("%q: the second %s with the key %q got %+v after %d runs", lines, method, key, got, runs.Load()-before)
				}
			}
		}
		s.stop()
	}
}

// A client may ask for an encoding that another one cannot read: the upstream is not asked for it,
// but for one that the proxy decodes.
func TestReplayCanBeReadByEveryClient(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		w.Header().Set("Vary", "Accept-Encoding")
		switch accepted := r.Header.Get("Accept-Encoding"); {
		case strings.Contains(accepted, "br"):
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "not readable without br")
		case strings.Contains(accepted, "gzip"):
			w.Header().Set("Content-Encoding", "gzip")
			encoder := gzip.NewWriter(w)
			_, _ = io.WriteString(encoder, "done")
			_ = encoder.Close()
		default:
			_, _ = io.WriteString(w, "done")
		}
	})
	s := serve(t, "dedup", "reverse_proxy "+address)
	for n, accepted := range []string{"br, gzip", "", "gzip", "br", "identity"} {
		if got := s.mustPost("k", "", "Accept-Encoding", accepted); got.body != "done" || got.header.Get("Content-Encoding") != "" ||
			(got.header.Get("Idempotent-Replayed") != "") != (n > 0) {
			t.Errorf("a client that accepts %q got %+v", accepted, got)
		}
	}
	if got := s.mustPost("", "", "Accept-Encoding", "br"); got.header.Get("Content-Encoding") != "br" {
		t.Errorf("a request without a key got %+v", got)
	}
}

func TestEncodeInFrontServesEachClient(t *testing.T) {
	long := strings.Repeat("and on ", 1000)
	address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, long)
	})
	s := serve(t, "encode gzip", "dedup", "reverse_proxy "+address)
	for n, accepted := range []string{"gzip", "", "gzip"} {
		got := s.mustPost("k", "", "Accept-Encoding", accepted)
		if got.header.Get("Content-Encoding") != accepted || (got.header.Get("Idempotent-Replayed") != "") != (n > 0) {
			t.Errorf("a client that accepts %q got %d %v", accepted, got.status, got.header)
		}
		if accepted == "gzip" {
			reader, err := gzip.NewReader(strings.NewReader(got.body))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(reader)
			if got.body = string(text); err != nil {
				t.Fatal(err)
			}
		}
		if got.body != long {
			t.Errorf("a client that accepts %q got %.100q", accepted, got.body)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("the upstream ran %d times", runs.Load())
	}
}

// What an upstream answers under our prefix never reaches a client: neither before the answer nor with it, nor where a
// response handler copies its fields and leaves the status to the server.
func TestUpstreamsCannotSetOurHeaders(t *testing.T) {
	for name, handling := range map[string]string{"as answered": "", "copied": "handle_response {\ncopy_response_headers\n}"} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				for field, value := range map[string]string{"Dedup-Retention": "60", "Dedup-Execution-Id": "its own", "Dedup-Anything": "its own", "X-Own": "1"} {
					w.Header().Set(field, value)
				}
				w.WriteHeader(http.StatusEarlyHints)
			})
			s := serve(t, "route {", "header X-Front 1", "dedup", "reverse_proxy "+address+" {", handling, "}", "}")
			var client told
			for range 2 {
				exchanged(&client, s.URL, strings.NewReader("body"), "Idempotency-Key", "k")
			}
			if len(client.lines) != 3 || runs.Load() != 1 { // hints, their response, and its replay
				t.Fatalf("the client got %q after %d runs", client.lines, runs.Load())
			}
			id := "Dedup-Execution-Id: " + s.only().ExecutionID
			for _, got := range client.lines {
				if strings.Count(got, "Dedup-") != 1 || !strings.Contains(got, id) || !strings.Contains(got, "X-Own: 1") || !strings.Contains(got, "X-Front: 1") && !strings.HasPrefix(got, "103") {
					t.Errorf("the client got %s", got)
				}
			}
		})
	}
}

// A duplicate that gets no body of the kept response takes no room, and waits for none. Locations may be as long as
// signed URLs are.
func TestAnswersWithoutABodyWaitForNoRoom(t *testing.T) {
	t.Setenv("TEST_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	signed := "/runs/7?signature=" + strings.Repeat("7", 7900)
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Location", signed)
		w.WriteHeader(201)
		_, _ = w.Write(make([]byte, 1<<20))
	})
	for _, encrypt := range []string{"", "encrypt {env.TEST_KEY}"} {
		for on, status := range map[string]int{"acknowledge": 200, "see_other": 303, "conflict": 409} {
			s := serveWith(t, encrypt+"\nlocal_copies off\nlimits {\nbuffered 4MiB\n}", "dedup {", "on_duplicate "+on, "}", "reverse_proxy "+address)
			s.mustPost("k", "body")
			others := &budget.Allowance{Budget: buffered}
			others.Count(4 << 20)
			got := s.mustPost("k", "body")
			others.ReleaseAll()
			if got.status != status || on == "see_other" && got.header.Get("Location") != signed ||
				on == "conflict" && !strings.Contains(got.body, `"original_status":201,"original_location":"`+signed+`"`) {
				t.Errorf("%s %s: got %d with %.200v %.200s", on, encrypt, got.status, got.header, got.body)
			}
			s.stop()
		}
	}
}

// Copies of responses are kept by default, and none with `local_copies off`.
func TestLocalCopiesHaveTheirLimit(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "created"))
	for global, kept := range map[string]bool{"": true, "local_copies 1MiB": true, "local_copies off": false} {
		s := serveWith(t, global, "dedup", "reverse_proxy "+address)
		before := localCopies.Bytes()
		for range 2 { // of what the memory store has, the first duplicate makes a copy
			s.mustPost("k", "")
		}
		if more := localCopies.Bytes() > before; more != kept {
			t.Errorf("%q: a copy is kept: %t", global, more)
		}
		s.stop()
	}
}

// A Location that is too long for a record is read with the response.
func TestLongLocations(t *testing.T) {
	long := "/runs/" + strings.Repeat("7", 9000)
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Location", long)
		w.WriteHeader(201)
		_, _ = w.Write(make([]byte, 100<<10))
	})
	for on, status := range map[string]int{"see_other": 303, "conflict": 409, "acknowledge": 200} {
		s := serveWith(t, "local_copies off", "dedup {", "on_duplicate "+on, "}", "reverse_proxy "+address)
		s.mustPost("k", "body")
		got := s.mustPost("k", "body")
		if got.status != status || on == "see_other" && got.header.Get("Location") != long || on == "conflict" && !strings.Contains(got.body, long) {
			t.Errorf("%s: got %d with %.100s and %.200s", on, got.status, got.header.Get("Location"), got.body)
		}
		s.stop()
	}
}
