package caddymodule

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Whatever the order in which providers are named, those that are known by a
// header field are tried first: their deliveries may have the members of the body
// by which another provider claims.
func TestProvidersKnownByAFieldComeFirst(t *testing.T) {
	for _, first := range delivery.Providers() {
		for _, second := range delivery.Providers() {
			names := []string{first.Name, second.Name}
			if checkProviders(names) != nil {
				continue
			}
			s := Settings{Providers: names, Keys: []KeySource{{Header: "X-Own"}}}
			sources := s.deliverySources()
			if n := len(first.Sources) + len(second.Sources) + 1; len(sources) != n {
				t.Fatalf("%v: %d sources, want %d", names, len(sources), n)
			}
			byMember := false
			for _, source := range sources[:len(sources)-1] {
				if source.Provider == "" {
					t.Fatalf("%v: the user's line is not last", names)
				}
				if byMember && source.OfOneSender() {
					t.Errorf("%v: %s of %s comes behind a source that other requests may have", names, source, source.Provider)
				}
				byMember = byMember || !source.OfOneSender()
			}
		}
	}
}

// kept is how long the site's only record is kept, from the end of its run.
func (s *site) kept() time.Duration {
	s.t.Helper()
	record := s.only()
	return record.Expires.Sub(record.Ended).Round(time.Second)
}

// How long the record of a run is kept whose request asks for something, in either
// mode. The configured retention is an hour, the most a day.
func TestRetentionThatARequestAsksFor(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(201) })
	for _, c := range []struct {
		asked, body string // the header field ("-": absent), and the body
		header      time.Duration
		json        time.Duration
	}{
		{"-", `{}`, hour, hour},
		{"300", `{"window":300}`, 300 * time.Second, 300 * time.Second},
		{"0.2", `{"window":0.2}`, time.Second, time.Second},
		{"86401", `{"window":86401}`, day, day},
		{"0", `{"window":0}`, hour, hour},
		{"soon", `{"window":"soon"}`, hour, hour},
		{"", `{"window":""}`, hour, hour},
		{"300", `window=300`, 300 * time.Second, hour},
		{"300", `{"window":300,"x":"` + strings.Repeat("x", 2000) + `"}`, 300 * time.Second, hour},
	} {
		for _, mode := range []string{"api", "webhook"} {
			for from, want := range map[string]time.Duration{"header X-Window 1d": c.header, "json /window 1d": c.json} {
				t.Run(fmt.Sprintf("%s, %s, %s, %.20s", mode, from, c.asked, c.body), func(t *testing.T) {
					s := serve(t, "dedup {", "mode "+mode, "key header Idempotency-Key", "fingerprint none", "max_request_body 1KiB", "retention 1h", "retention_from "+from, "}", "reverse_proxy "+address)
					var header []string
					if c.asked != "-" {
						header = []string{"X-Window", c.asked}
					}
					if got := s.mustPost("k", c.body, header...); got.status != 201 {
						t.Fatalf("got %d %s", got.status, got.body)
					}
					if got := s.kept(); got != want {
						t.Errorf("the record is kept for %s, want %s", got, want)
					}
				})
			}
		}
	}
}

// The most is 30 days where the user says nothing, also beside a provider and where nothing else needs the body. A
// provider's retention is its own, unless the handler sets one.
func TestRetentionByDefault(t *testing.T) {
	const adyen = `{"window":9999999,"notificationItems":[{"NotificationRequestItem":{"eventCode":"AUTHORISATION","pspReference":"1","success":"true"}}]}`
	for lines, want := range map[string]time.Duration{
		"dedup github {\nretention_from header X-Window\n}": defaultMaxRetention,
		"dedup github {\nretention_from json /window\n}":    defaultMaxRetention,
		"dedup adyen":                    30 * 24 * time.Hour,
		"dedup adyen {\nretention 1h\n}": time.Hour,
	} {
		s := serve(t, lines, "respond done 201")
		if s.mustPost("", adyen, "X-GitHub-Delivery", "1", "X-Window", "9999999"); s.kept() != want {
			t.Errorf("%s: kept for %s, want %s", lines, s.kept(), want)
		}
		s.stop()
	}
}

// The retention of a request is that of its own run, however that ends: of the response,
// of the attempts, of a held key. Its duplicates change nothing, and the upstream's own
// word counts before it.
func TestRetentionOfARequestAndOfItsRun(t *testing.T) {
	answers := map[string]func(w http.ResponseWriter){
		"kept":       func(w http.ResponseWriter) { w.WriteHeader(201) },
		"lengthened": func(w http.ResponseWriter) { w.Header().Set("Dedup-Retention", "7200"); w.WriteHeader(201) },
		"released":   func(w http.ResponseWriter) { w.WriteHeader(500) },
		"freed":      func(w http.ResponseWriter) { w.Header().Set("Dedup-Retention", "0"); w.WriteHeader(201) },
		"held":       func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	for _, c := range []struct {
		name  string
		end   string
		state idempotency.State
		kept  time.Duration
	}{
		{"kept", "kept", idempotency.Complete, 600 * time.Second},
		{"the upstream's own", "lengthened", idempotency.Complete, 7200 * time.Second},
		{"released", "released", idempotency.Released, 600 * time.Second},
		{"released by the upstream", "freed", idempotency.Released, 600 * time.Second},
		{"held", "held", idempotency.Held, 600 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) { answers[r.Header.Get("X-End")](w) })
			s := serve(t, "dedup {", "retention_from header X-Window", "on_unknown hold", "max_attempts 9", "}", "reverse_proxy "+address)
			s.mustPost("k", "body", "X-End", c.end, "X-Window", "600")
			if record := s.only(); record.State != c.state || s.kept() != c.kept {
				t.Errorf("the record is %s and kept for %s; want %s, %s", record.State, s.kept(), c.state, c.kept)
			}
			before := s.only().Expires
			if c.state == idempotency.Released {
				s.mustPost("k", "body", "X-End", c.end, "X-Window", "60") // a run of its own
				if got := s.kept(); got != time.Minute || s.only().Attempt != 2 {
					t.Errorf("the second attempt is number %d and kept for %s", s.only().Attempt, got)
				}
				return
			}
			s.mustPost("k", "body", "X-End", c.end, "X-Window", "60")
			if after := s.only().Expires; !after.Equal(before) {
				t.Errorf("a duplicate has moved the end from %s to %s", before, after)
			}
		})
	}
}

// An upstream sets a whole number of seconds, reduced to the longest retention that can be
// configured.
func TestRetentionOfTheUpstream(t *testing.T) {
	const defaults = 7 * 24 * time.Hour
	for asked, want := range map[string]time.Duration{
		"1": time.Second, "2147483648": 2147483648 * time.Second,
		"3153600000": idempotency.MaxRetention, "3153600001": idempotency.MaxRetention, "99999999999999999999999": idempotency.MaxRetention,
		"0": defaults, "-1": defaults, "+60": defaults, "0.5": defaults, "1e3": defaults, "60s": defaults, " ": defaults, "": defaults,
	} {
		t.Run(asked, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Dedup-Retention", asked)
				w.WriteHeader(201)
			})
			s := serve(t, "dedup", "reverse_proxy "+address)
			first, again := s.mustPost("k", "body"), s.mustPost("k", "body")
			if got := s.kept(); got != want || (again.header.Get("Idempotent-Replayed") != "") != (asked != "0") {
				t.Errorf("kept for %s, want %s; the duplicate got %+v", got, want, again)
			}
			for _, got := range []answer{first, again} {
				if _, found := got.header["Dedup-Retention"]; found {
					t.Errorf("the client got %v", got.header)
				}
			}
		})
	}
}

// A retention that is reduced or ignored is logged with what is accepted, at a limited rate.
func TestRetentionThatIsNotGrantedIsLogged(t *testing.T) {
	const ignored, cut = "the request's own retention is ignored", "the request asks for a longer retention than allowed"
	for from, c := range map[string]struct {
		body, message, field, text string
	}{
		"json /window 1h":   {`{"window":"next week"}`, ignored, "reason", `value "next week" is not a number; it must be a number of seconds that is more than 0`},
		"json /window 30m":  {`{"window":0}`, ignored, "reason", "is zero"},
		"json /window 59m":  {`{"window":1,"x":"` + strings.Repeat("x", 1024) + `"}`, ignored, "reason", "larger than max_request_body"},
		"header X-Window":   {`{}`, ignored, "reason", "is negative"},
		"json /longer 300s": {`{"longer":301}`, cut, "asked", "5m1s"},
	} {
		t.Run(from, func(t *testing.T) {
			s := serveLogged(t, "", "", "dedup {", "max_request_body 1KiB", "fingerprint none", "retention_from "+from, "}", "respond done 201")
			for n := range 20 {
				if got := s.serveHTTP(fmt.Sprint("k", n), c.body, "X-Window", "-1"); got.status != 201 {
					t.Errorf("got %+v", got)
				}
			}
			all := book.about(c.message)
			if len(all) == 0 || len(all) > 10 {
				t.Fatalf("20 requests leave %d lines", len(all))
			}
			line := all[0]
			if line.text("level") != "warn" || !strings.Contains(line.text(c.field), c.text) || line.text("delivery_id") != "k0" || !hexKey.MatchString(line.text("key")) ||
				c.message == cut && line.text("max") != "5m0s" {
				t.Errorf("the line is %v", line)
			}
		})
	}
}

// A body is read for its retention only where the request has a key, only once, and
// never makes a request fail that would not fail without it.
func TestRetentionReadsTheBodyAsAKeyDoes(t *testing.T) {
	var got string
	address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		got = r.Header.Get("X-Length")
		w.WriteHeader(201)
	})
	s := serve(t, "dedup {", "fingerprint none", "max_request_body 1KiB", "retention_from json /window", "}",
		"request_header X-Length {http.request.header.Content-Length}", "reverse_proxy "+address)
	large := `{"window":300,"x":"` + strings.Repeat("x", 2000) + `"}`
	for i, key := range []string{"", "k", ""} {
		if answer := s.mustPost(key, large); answer.status != 201 || runs.Load() != int64(i+1) {
			t.Fatalf("got %d %s after %d runs", answer.status, answer.body, runs.Load())
		}
		if got != fmt.Sprint(len(large)) {
			t.Errorf("the upstream was sent %s bytes, want %d", got, len(large))
		}
	}
	if again := s.mustPost("k", large); again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the duplicate got %d %v", again.status, again.header)
	}
}
