package caddymodule

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// signedWith returns the HMAC of a text in hex.
func signedWith(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// captured is a genuine request that somebody without the secret sends again.
type captured struct {
	target, body string
	header       []string
}

func (c captured) request(change func(r *http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://hooks.example.com"+c.target, strings.NewReader(c.body))
	r.RequestURI = c.target
	for i := 0; i < len(c.header); i += 2 {
		r.Header.Add(c.header[i], c.header[i+1])
	}
	change(r)
	return r
}

// at returns a change of the target.
func at(target string) func(r *http.Request) {
	return func(r *http.Request) {
		other := httptest.NewRequest(http.MethodPost, target, nil)
		r.URL, r.RequestURI = other.URL, target
		if other.URL.Host != "" {
			r.Host = other.URL.Host
		}
	}
}

func field(name, value string) func(r *http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func grpc(kind string) func(r *http.Request) {
	return func(r *http.Request) {
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		r.Header.Set("Content-Type", kind)
	}
}

// unsignedChanges are what a sender has not signed of a request for /webhooks/x.
var unsignedChanges = map[string]func(r *http.Request){
	"nothing":             func(*http.Request) {},
	"gRPC":                grpc("application/grpc"),
	"gRPC with a format":  grpc("application/grpc+proto"),
	"PUT":                 func(r *http.Request) { r.Method = "PUT" },
	"GET":                 func(r *http.Request) { r.Method = "GET" },
	"HEAD":                func(r *http.Request) { r.Method = "HEAD" },
	"DELETE":              func(r *http.Request) { r.Method = "DELETE" },
	"OPTIONS":             func(r *http.Request) { r.Method = "OPTIONS" },
	"a method of its own": func(r *http.Request) { r.Method = "FROB" },
	"post":                func(r *http.Request) { r.Method = "post" },
	"a port":              func(r *http.Request) { r.Host = "hooks.example.com:1" },
	"another host":        func(r *http.Request) { r.Host = "other.test" },
	"no host":             func(r *http.Request) { r.Host = "" },
	"an escape":           at("/webhooks/%78"),
	"an escaped slash":    at("/webhooks%2Fx"),
	"two slashes":         at("//webhooks/x"),
	"slashes inside":      at("/webhooks//x"),
	"a dot segment":       at("/webhooks/./x"),
	"two dot segments":    at("/webhooks/y/../x"),
	"escaped dots":        at("/webhooks/%2e/x"),
	"upper case":          at("/WEBHOOKS/X"),
	"a query":             at("/webhooks/x?again=1"),
	"an absolute target":  at("http://other.test:8080/webhooks/x"),
	"a content type":      field("Content-Type", "text/plain"),
	"a user":              field("Authorization", "Bearer other"),
	"a key of its own":    field("Idempotency-Key", "other"),
	"a run in front":      field("Dedup-Execution-Id", "0199b8a2-7d1c-7000-8000-000000000000"),
	"force":               field("X-Force", "true"),
	"another sender's ID": field("X-GitHub-Delivery", "other"),
	"an upgrade":          func(r *http.Request) { r.Header.Set("Connection", "Upgrade"); r.Header.Set("Upgrade", "websocket") },
	"an expectation":      field("Expect", "100-continue"),
	"a handshake's field": field("Twitch-Eventsub-Message-Type", "webhook_callback_verification"),
	"a second such field": func(r *http.Request) {
		r.Header["Twitch-Eventsub-Message-Type"] = []string{"notification", "webhook_callback_verification"}
	},
	"another secret of handshakes": field("X-Hook-Secret", "x"),
}

// A captured request gets the first response, whatever is changed in it that its sender has not signed.
func TestCapturedRequestIsReplayed(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	now := time.Now()
	const event = `{"id":"evt_1","type":"paid"}`
	type sender struct {
		site string
		captured
	}
	byHMAC := func(lines, body string, header ...string) sender {
		return sender{"dedup {\n" + lines + "\nverify hmac {\nsecret {env.TEST_SECRET}\nheader X-Signature\n}\n}",
			captured{"/webhooks/x", body, append(header, "X-Signature", signedWith("secret", body))}}
	}
	for name, c := range map[string]sender{
		"stripe": {"dedup stripe {\nverify {env.TEST_SECRET}\n}", captured{"/webhooks/x", event, []string{
			"Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", now.Unix(), signedWith("secret", fmt.Sprintf("%d.%s", now.Unix(), event))),
		}}},
		"standard_webhooks": {"dedup standard_webhooks {\nverify {env.TEST_STANDARD}\n}", captured{"/webhooks/x", event, []string{
			"webhook-id", "msg_1", "webhook-timestamp", fmt.Sprint(now.Unix()), "webhook-signature", standardSignature("msg_1", now, event),
		}}},
		"twitch": {"dedup twitch {\nverify {env.TEST_SECRET}\n}", captured{"/webhooks/x", event, []string{
			"Twitch-Eventsub-Message-Id", "m1", "Twitch-Eventsub-Message-Timestamp", now.UTC().Format(time.RFC3339), "Twitch-Eventsub-Message-Type", "notification",
			"Twitch-Eventsub-Message-Signature", "sha256=" + signedWith("secret", "m1"+now.UTC().Format(time.RFC3339)+event),
		}}},
		"asana":               {"dedup asana {\nverify {env.TEST_SECRET}\n}", captured{"/webhooks/x", `{"events":[{"a":1}]}`, []string{"X-Hook-Signature", signedWith("secret", `{"events":[{"a":1}]}`)}}},
		"content":             byHMAC("mode webhook\nkey content", event),
		"a form":              byHMAC("mode webhook\nkey form id", "a=1&id=2", "Content-Type", "application/x-www-form-urlencoded"),
		"a multipart form":    byHMAC("mode webhook\nkey form id", multipartBody("B", "2"), "Content-Type", "multipart/form-data; boundary=B"),
		"a multipart content": byHMAC("mode webhook\nkey content", multipartBody("B", "2"), "Content-Type", "multipart/form-data; boundary=B"),
		"a member":            byHMAC("mode webhook\nkey json /id", event),
		"an API":              byHMAC("mode api\nfingerprint none\nkey json /id", event),
		"an API that signs the caller": {"dedup {\nmode api\nfingerprint none\nkey json /id\nverify hmac {\nsecret {env.TEST_SECRET}\nheader X-Signature\nsigned {http.request.header.X-Api-Key}.{body}\n}\n}", captured{"/webhooks/x", event, []string{
			"X-Api-Key", "a", "X-Signature", signedWith("secret", "a."+event),
		}}},
	} {
		t.Setenv("TEST_STANDARD", "whsec_c2VjcmV0")
		for changed, change := range unsignedChanges {
			for _, matcher := range []string{"/webhooks/x", "/webhooks/*"} {
				address, runs := startUpstream(t, answers(201, "first"))
				s := serve(t, "handle "+matcher+" {", c.site, "reverse_proxy "+address, "}")
				send := func(change func(r *http.Request)) *httptest.ResponseRecorder {
					w := httptest.NewRecorder()
					s.Config.Handler.ServeHTTP(w, c.request(change))
					return w
				}
				if first := send(func(*http.Request) {}); first.Code != 201 || runs.Load() != 1 {
					t.Fatalf("%s: the genuine request got %d %s after %d runs", name, first.Code, first.Body, runs.Load())
				}
				again := send(change)
				want := int64(1)
				if name == "an API" && changed == "a user" { // a line at the start warns of it
					want = 2
				}
				if runs.Load() != want {
					t.Errorf("%s under %s, sent again with %s: %d runs, and got %d", name, matcher, changed, runs.Load(), again.Code)
				}
				s.stop()
			}
		}
	}
}

// The response to a signed HEAD declares the length of a body that it does not have. It is whole, and replayed.
func TestSignedHeadIsReplayed(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.Header().Set("Content-Length", "5") })
	s := serve(t, "dedup {", "mode webhook", "key header X-Id", "on_unknown hold",
		"verify hmac {", "secret {env.TEST_SECRET}", "header X-Signature", "signed {http.request.header.X-Id}.{body}", "}", "}", "reverse_proxy "+address)
	for _, replayed := range []string{"", "true"} {
		r, w := httptest.NewRequest(http.MethodHead, "http://hooks.example.com/x", nil), httptest.NewRecorder()
		r.Header.Set("X-Id", "1")
		r.Header.Set("X-Signature", signedWith("secret", "1."))
		s.Config.Handler.ServeHTTP(w, r)
		if w.Code != 200 || w.Header().Get("Idempotent-Replayed") != replayed || runs.Load() != 1 {
			t.Errorf("got %d with %v after %d runs", w.Code, w.Header(), runs.Load())
		}
	}
}

// Twitch's handshake is known by its body, which is signed, and has no key.
func TestSignedHandshakeOfTwitch(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	address, runs := startUpstream(t, answers(200, "c"))
	s := serve(t, "dedup twitch {", "verify {env.TEST_SECRET}", "}", "reverse_proxy "+address)
	const body = `{"challenge":"c"}`
	at := time.Now().UTC().Format(time.RFC3339)
	for range 2 {
		s.mustPost("", body, "Twitch-Eventsub-Message-Id", "m1", "Twitch-Eventsub-Message-Timestamp", at,
			"Twitch-Eventsub-Message-Signature", "sha256="+signedWith("secret", "m1"+at+body))
	}
	if runs.Load() != 2 {
		t.Errorf("%d of 2 handshakes reached the service", runs.Load())
	}
}

// CONNECT has nothing that could be signed.
func TestVerifyRefusesConnect(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	s := serve(t, "dedup github {", "verify {env.TEST_SECRET}", "}", "respond reached")
	if got := s.send(with("x", "CONNECT", "X-Hub-Signature-256: "+githubSignature("secret", "x"))); got.status != 401 {
		t.Errorf("got %+v", got)
	}
}

// The keys of a verified handler are its own: neither a handler without verify, nor another endpoint
// of the sender with a secret of its own, uses them up; on one host and on two.
func TestVerifiedKeysAreApart(t *testing.T) {
	t.Setenv("TEST_A", "a")
	t.Setenv("TEST_B", "b")
	const event = `{"id":"evt_1","type":"paid"}`
	signed := func(secret string) []string {
		now := time.Now().Unix()
		return []string{"Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", now, signedWith(secret, fmt.Sprintf("%d.%s", now, event)))}
	}
	for _, scope := range []string{"", "scope shared", "scope {http.request.orig_uri.path}"} {
		address, runs := startUpstream(t, answers(201, "done"))
		s := serve(t, "@a header X-Endpoint a", "@b header X-Endpoint b", "@open header X-Endpoint open", "route {",
			"dedup @open stripe {", scope, "}", "dedup @a stripe {", scope, "verify {env.TEST_A}", "}", "dedup @b stripe {", scope, "verify {env.TEST_B}", "}",
			"reverse_proxy "+address, "}")
		for i, endpoint := range []string{"open", "a", "b", "a"} {
			header := []string{"X-Endpoint", endpoint}
			if endpoint == "open" {
				header = append(header, "Stripe-Signature", "t=1,v1=00")
			} else {
				header = append(header, signed(endpoint)...)
			}
			if got := s.mustPost("", event, header...); got.status != 201 {
				t.Errorf("%q: %s got %+v", scope, endpoint, got)
			}
			if want := min(int64(i+1), 3); runs.Load() != want {
				t.Errorf("%q: after the request to %s there are %d runs, want %d", scope, endpoint, runs.Load(), want)
			}
		}
		s.stop()
	}
}

// What `caller` names tells callers apart beside a field that the sender signs, signed too or not.
func TestOwnCallerUnderVerify(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	const event = `{"id":"evt_1"}`
	for signed, text := range map[string]string{
		"{http.request.header.X-Api-Key}.{http.request.header.X-Login}.{body}": "key.%s." + event,
		"{http.request.header.X-Api-Key}.{body}":                               "key.%.0s" + event,
	} {
		address, runs := startUpstream(t, answers(201, "done"))
		s := serve(t, "dedup {", "mode api", "key json /id", "caller {http.request.header.X-Login}",
			"verify hmac {", "secret {env.TEST_SECRET}", "header X-Signature", "signed "+signed, "}", "}", "reverse_proxy "+address)
		for _, login := range []string{"a", "b", "a"} {
			s.mustPost("", event, "X-Api-Key", "key", "X-Login", login, "X-Signature", signedWith("secret", fmt.Sprintf(text, login)))
		}
		if runs.Load() != 2 {
			t.Errorf("%s: %d runs of two callers", signed, runs.Load())
		}
		s.stop()
	}
}

// Of senders with one secret, the one whose own fields a request has has sent it.
func TestEqualSecrets(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	const body = `{"object":"page","entry":[{"messaging":[{"message":{"mid":"m1"},"timestamp":1}]}]}`
	for providers, requests := range map[string][][]string{
		"jira bitbucket": {
			{"X-Atlassian-Webhook-Identifier", "j1", "X-Hub-Signature", githubSignature("secret", body), "want", "jira"},
			{"X-Request-UUID", "b1", "X-Event-Key", "repo:push", "X-Hub-Signature", githubSignature("secret", body), "want", "bitbucket"},
		},
		"github meta": {
			{"X-GitHub-Delivery", "g1", "X-Hub-Signature-256", githubSignature("secret", body), "want", "github"},
			{"X-Hub-Signature-256", githubSignature("secret", body), "want", "meta"},
		},
	} {
		names := strings.Fields(providers)
		for _, order := range [][]string{names, {names[1], names[0]}} {
			address, runs := startUpstream(t, answers(201, "done"))
			s := serve(t, "header >X-Provider {http.dedup.provider}", "dedup "+strings.Join(order, " ")+" {",
				"verify "+order[0]+" {env.TEST_SECRET}", "verify "+order[1]+" {env.TEST_SECRET}", "}", "reverse_proxy "+address)
			for _, header := range requests {
				runs.Store(0)
				want := header[len(header)-1]
				for range 2 {
					if got := s.mustPost("", body, header[:len(header)-2]...); got.status != 201 || got.header.Get("X-Provider") != want {
						t.Errorf("%v: %s got %d as %q", order, want, got.status, got.header.Get("X-Provider"))
					}
				}
				if runs.Load() != 1 {
					t.Errorf("%v: %s ran %d times", order, want, runs.Load())
				}
			}
			s.stop()
		}
	}
}
