package signature_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// Bytes that move from one signed part to the next leave what is signed as it was.
func TestMovedBytes(t *testing.T) {
	for _, test := range []struct {
		provider string
		move     func(s sender, r *sent)
	}{
		{"standard_webhooks", func(s sender, r *sent) { // the ID takes the time, and the body's time is the time
			r.body = strings.TrimPrefix(r.body, `{"x":".1764201591.`)
			r.header.Set("webhook-id", r.id+"."+seconds(start)+`.{"x":"`)
			r.header.Set("webhook-timestamp", "1764201591")
		}},
		{"twitch", func(s sender, r *sent) {
			stamp := r.header.Get(s.timed)
			r.header.Set(s.id, r.id+stamp[:1])
			r.header.Set(s.timed, stamp[1:])
		}},
		{"twitch", func(s sender, r *sent) {
			r.header.Set(s.id, r.id[:len(r.id)-1])
			r.header.Set(s.timed, r.id[len(r.id)-1:]+r.header.Get(s.timed))
		}},
		{"twitch", func(s sender, r *sent) { // the ID takes the time, and the body's time is the time
			r.header.Set(s.id, r.id+r.header.Get(s.timed)+`{"x":".1764201591.`)
			r.header.Set(s.timed, "2026-11-26T11:59:59Z")
			r.body = strings.TrimPrefix(r.body, `{"x":".1764201591.2026-11-26T11:59:59Z`)
		}},
		{"prolific", func(s sender, r *sent) {
			r.body = seconds(start)[9:] + r.body
			r.header.Set(s.timed, seconds(start)[:9])
		}},
		{"box", func(s sender, r *sent) {
			r.body += "2"
			r.header.Set(s.timed, r.header.Get(s.timed)[1:])
		}},
		{"convoy", func(s sender, r *sent) { // the timestamp becomes a part of the body
			r.body = seconds(start) + "," + r.body
			_, digest, _ := strings.Cut(r.header.Get(s.signed), "v1=")
			r.header.Set(s.signed, digest)
		}},
	} {
		s := senders[test.provider]
		v := s.verifier(t, test.provider, within(0))
		r := s.request(func(r *sent) { r.id, r.body = "msg1", `{"x":".1764201591.2026-11-26T11:59:59Z"}` })
		if _, _, err := r.verify(t, start, v); err != nil {
			t.Fatalf("%s: before: %v", test.provider, err)
		}
		test.move(s, r)
		if _, _, err := r.verify(t, start, v); err == nil {
			t.Errorf("%s: the moved bytes are verified: %q", test.provider, r.header)
		}
	}
}

// A delivery to one URL is none to another that the first begins with.
func TestSquareURLs(t *testing.T) {
	for _, test := range []struct {
		urls []string
		body string
		ok   bool
	}{
		{[]string{squareURL}, `{"x":1}`, true},
		{[]string{squareURL + "/other"}, `{"x":1}`, false},
		{[]string{squareURL + "/other", squareURL}, `{"x":1}`, true},
		{[]string{squareURL, squareURL + "/other"}, `/other{"x":1}`, false},
		{[]string{squareURL}, "", true},
	} {
		s := senders["square"]
		v := s.verifier(t, "square", func(c *signature.Config) { c.URLs = test.urls })
		r := s.request(func(r *sent) { r.body = test.body })
		if _, _, err := r.verify(t, start, v); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestAdyenItems(t *testing.T) {
	const key = "DFB1EB5485895CFA"
	v := senders["adyen"].verifier(t, "adyen")
	item := func(psp, original, reference, success, signed string) string {
		sum := inBase64(digest(sha256.New, "\xdf\xb1\xeb\x54\x85\x89\x5c\xfa", signed))
		return fmt.Sprintf(`{"NotificationRequestItem":{"additionalData":{"hmacSignature":%q},"pspReference":%s,"originalReference":%s,"merchantReference":%q,"success":%s}}`,
			sum, psp, original, reference, success)
	}
	good := item(`"1"`, `""`, "a:b", `"true"`, "1:::a:b::::true")
	for _, test := range []struct {
		body string
		ok   bool
	}{
		{`{"notificationItems":[` + good + `]}`, true},
		{`{"notificationItems":[` + item(`"1"`, `null`, "", `true`, "1:::::::true") + `]}`, true},
		{`{"notificationItems":[` + item(`1`, `null`, "ä", `true`, "1:::ä::::true") + `]}`, true},
		{`{"notificationItems":[` + good + "," + good + `]}`, true},
		{`{"notificationItems":[` + good + "," + item(`"2"`, `""`, "", `"true"`, "1:::::::true") + `]}`, false},
		{`{"notificationItems":[` + good + `,{}]}`, false},
		{`{"notificationItems":[` + item(`"1:"`, `""`, "", `"true"`, "1:::::::true") + `]}`, false},
		{`{"notificationItems":[` + item(`"1:x"`, `"y"`, "", `"true"`, "1:x:y::::::true") + `]}`, false},
		{`{"notificationItems":[` + item(`"1"`, `"x:y"`, "", `"true"`, "1:x:y::::::true") + `]}`, false},
		{`{"notificationItems":[` + item(`"1"`, `"x"`, "y", `"true"`, "1:x::y::::true") + `]}`, true},
		{`{"notificationItems":[` + item(`["1"]`, `""`, "", `"true"`, "::::::::true") + `]}`, false},
		{`{"notificationItems":[` + item(`{}`, `""`, "", `"true"`, ":::::::true") + `]}`, false},
		{`{"notificationItems":[]}`, false},
		{`{"notificationItems":{}}`, false},
		{`{"notificationItems":null}`, false},
		{`{}`, false},
		{`[]`, false},
		{``, false},
		{`{"notificationItems":[` + good + `],"notificationItems":[]}`, false},
		{`{"notificationItems":[` + good + `]`, false},
		// Software that does not mind the case of names would read what is not signed.
		{`{"notificationItems":[` + good + `],"NotificationItems":[{}]}`, false},
		{`{"notificationItems":[{"notificationRequestItem":{},` + good[1:] + `]}`, false},
		{`{"notificationItems":[` + strings.Replace(good, `"success"`, `"PspReference":"2","success"`, 1) + `]}`, false},
		{`{"notificationItems":[` + strings.Replace(good, `"success"`, `"p\u017fpreference":"2","success"`, 1) + `]}`, false},
		{`{"notificationItems":[` + strings.Replace(good, `"success"`, `"amount":{"Value":1},"success"`, 1) + `]}`, false},
		{`{"notificationItems":[` + strings.Replace(good, `"success"`, `"amount":1,"reason":"","success"`, 1) + `],"live":"false"}`, true},
		{strings.Repeat("[", 20_000), false},
	} {
		r := &sent{secret: key, method: "POST", target: "/", header: http.Header{}, body: test.body}
		if _, early, err := r.verify(t, start, v); (err == nil) != test.ok || early {
			t.Errorf("%.200s: %v", test.body, err)
		}
	}
}

func TestTwilioForms(t *testing.T) {
	const form, hash = "application/x-www-form-urlencoded", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" // of {}
	for _, test := range []struct {
		url, target, contentType, body, signed string
		ok                                     bool
	}{
		{"https://a.example", "/", form, "B=2&A=1", "https://a.example/A1B2", true},
		{"https://a.example", "/", form + "; charset=UTF-8", "B=2&A=1", "https://a.example/A1B2", true},
		{"https://a.example", "/", form, "B=2&A=1", "https://a.exampleA1B2", true},
		{"https://a.example", "/?q=1", form, "A=1", "https://a.example?q=1A1", true},
		{"https://a.example/", "/x?q=%C3%a9'", form, "", "https://a.example/x?q=%C3%a9'", true},
		{"https://a.example", "/x", form, "", "https://a.example:443/x", true},
		{"https://a.example:8443", "/x", form, "", "https://a.example/x", true},
		{"https://a.example:8443", "/x", form, "", "https://a.example:8443/x", true},
		{"https://a.example:8443", "/x", form, "", "https://a.example:443/x", true},
		{"http://a.example", "/x", form, "", "http://a.example:80/x", true},
		{"http://u:p@[::1]:8080", "/x", form, "", "http://u:p@[::1]/x", true},
		{"https://a.example", "http://proxy.example/x?y", form, "", "https://a.example/x?y", true},
		{"https://a.example", "/x", form, "", "https://a.example:8443/x", false},
		{"https://a.example", "/x", form, "", "http://a.example/x", false},
		{"https://a.example", "/x", form, "", "https://proxy.example/x", false},
		{"https://a.example", "/x", form, "A=%zz", "https://a.example/xA%zz", false},
		{"https://a.example", "/x", form, "A&&B=b=c;d", "https://a.example/xABb=c;d", true},
		{"https://a.example", "/x", "application/json", "{}", "https://a.example/x", false},
		{"https://a.example", "/x", "", "{}", "https://a.example/x", false},
		{"https://a.example", "/x", "", "", "https://a.example/x", true},
		{"https://a.example", "/x?bodySHA256=" + hash, "application/json", "{}", "https://a.example/x?bodySHA256=" + hash, true},
		{"https://a.example", "/x?bodySHA256=" + hash, "application/json", "[]", "https://a.example/x?bodySHA256=" + hash, false},
		{"https://a.example", "/x?bodySHA256=" + hash, form, "", "https://a.example/x?bodySHA256=" + hash, true},
		{"https://a.example", "/x?bodySHA256=" + hash, form, "A=1", "https://a.example/x?bodySHA256=" + hash + "A1", true}, // by its parameters
		{"https://a.example", "/x?bodySHA256=" + hash, form, "{}", "https://a.example/x?bodySHA256=" + hash, false},
		{"https://a.example", "/x?bodySHA256=" + hash + "&a=1", "application/json", "{}", "https://a.example/x?bodySHA256=" + hash + "&a=1", false},
		{"https://a.example", "/x?a=1&bodySHA256=" + hash, "application/json", "{}", "https://a.example/x?a=1&bodySHA256=" + hash, true},
		{"https://a.example", "/x?tBody&bodySHA256=" + hash + "&From1", "application/json", "{}", "https://a.example/x?tBody&bodySHA256=" + hash + "&From1", false},
		{"https://a.example", "/x", form, "%3Fa=1", "https://a.example/x?a1", false}, // moved from the URL to a name
		{"https://a.example", "/x", form, "s%26bodySHA256%3D1=", "https://a.example/xs&bodySHA256=1", false},
		{"https://a.example", "/x?bodySHA256=" + hash + "&bodySHA256=" + hash, "", "{}", "https://a.example/x?bodySHA256=" + hash + "&bodySHA256=" + hash, false},
		{"https://a.example", "/x?bodySHA256=" + hash + "&bodySHA256=" + hash, form, "A=1", "https://a.example/x?bodySHA256=" + hash + "&bodySHA256=" + hash + "A1", true},
		{"https://a.example", "/x", "application/json", "{}", "https://a.example/x{}", false},
		{"https://a.example", "/x", "application/json", "\x00{}", "https://a.example/x", false},
		{"https://a.example", "/x?bodySHA256=", "", "{}", "https://a.example/x?bodySHA256=", false},
	} {
		v := senders["twilio"].verifier(t, "twilio", func(c *signature.Config) { c.URLs = []string{test.url} })
		method := "POST"
		if test.body == "" && test.ok {
			method = "GET"
			post := &sent{secret: textSecret, method: "POST", target: test.target, header: http.Header{"X-Twilio-Signature": {inBase64(digest(newSHA1, textSecret, test.signed))}}}
			if _, _, err := post.verify(t, start, v); err == nil {
				t.Errorf("%+v: a POST without a body is verified", test)
			}
		}
		r := &sent{secret: textSecret, method: method, target: test.target, body: test.body, header: http.Header{"Content-Type": {test.contentType}}}
		r.header.Set("X-Twilio-Signature", inBase64(digest(newSHA1, textSecret, test.signed)))
		if _, _, err := r.verify(t, start, v); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestConvoyModes(t *testing.T) {
	v := senders["convoy"].verifier(t, "convoy")
	const raw, compact = "{ \"a\" : [1, 2 ]}\n", `{"a":[1,2]}`
	stamp := seconds(start)
	for _, test := range []struct {
		header, body string
		ok           bool
	}{
		{inHex(digest(sha256.New, textSecret, raw)), raw, true},
		{inHex(digest(sha256.New, textSecret, compact)), raw, true},
		{inBase64(digest(sha256.New, textSecret, compact)), raw, true},
		{inHex(digest(sha512.New, textSecret, compact)), raw, true},
		{inBase64(digest(sha512.New, textSecret, raw)), raw, true},
		{"v2=" + inBase64(digest(sha512.New, textSecret, stamp, ",", compact)) + ", t=" + stamp, raw, true},
		{"v2=" + inBase64(digest(sha512.New, textSecret, stamp, ",", compact)), raw, false},
		{"t=" + stamp + ",v1=" + inHex(digest(sha512.New, textSecret, compact)), raw, false},
		{"t=" + stamp, raw, false},
		{"t=1764201600,t=" + stamp + ",v1=" + inHex(digest(sha256.New, textSecret, stamp, ",", raw)), raw, false},
		{"t=,v1=" + inHex(digest(sha256.New, textSecret, ",", raw)), raw, false},
		{inHex(digest(newSHA1, textSecret, raw)), raw, false},
		{inHex(digest(sha256.New, textSecret, "not JSON")), "not JSON", true},
		{inHex(digest(sha256.New, textSecret, "notJSON")), "not JSON", false},
	} {
		r := &sent{secret: textSecret, method: "POST", target: "/", body: test.body, header: http.Header{"X-Convoy-Signature": {test.header}}}
		if _, _, err := r.verify(t, start, v); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.header, err)
		}
	}
}

// A signing token and a plain token: the signature, where there is one, decides.
func TestGitLabTokens(t *testing.T) {
	signing, plain := "whsec_"+inBase64("key"), "plain-token"
	s := senders["gitlab"]
	signed := func(r *sent) { r.secret = signing }
	for _, test := range []struct {
		name    string
		secrets []string
		do      func(r *sent)
		ok      bool
	}{
		{"signed", []string{signing, plain}, func(*sent) {}, true},
		{"the token alone", []string{plain, signing}, func(r *sent) { r.header = http.Header{"X-Gitlab-Token": {plain}} }, true},
		{"the token alone, and none is configured", []string{signing}, func(r *sent) { r.header = http.Header{"X-Gitlab-Token": {plain}} }, false},
		{"a signing token sent as it is", []string{signing, plain}, func(r *sent) { r.header = http.Header{"X-Gitlab-Token": {signing}} }, false},
		{"a wrong signature beside the right token", []string{signing, plain}, func(r *sent) { r.body += " "; r.header.Set("X-Gitlab-Token", plain) }, false},
		{"an empty signature beside the right token", []string{signing, plain}, func(r *sent) { r.header["Webhook-Signature"] = []string{""}; r.header.Set("X-Gitlab-Token", plain) }, false},
		{"another token", []string{plain}, func(r *sent) { r.header.Set("X-Gitlab-Token", "plain-tokex") }, false},
		{"a token, and only that is configured", []string{plain}, func(r *sent) { r.header.Set("X-Gitlab-Token", plain) }, true},
	} {
		r := s.request(signed)
		test.do(r)
		found, _, err := r.verify(t, start, s.verifier(t, "gitlab", func(c *signature.Config) { c.Secrets = test.secrets }))
		if (err == nil) != test.ok || (found.ID == r.id) != (test.name == "signed") {
			t.Errorf("%s: %+v, %v", test.name, found, err)
		}
	}
}

// What else single providers have of their own.
func TestProviderSpecificForms(t *testing.T) {
	body := textBody
	sum := digest(sha256.New, textSecret, body)
	for _, test := range []struct {
		provider string
		secrets  []string
		target   string
		header   map[string]string
		ok       bool
	}{
		{"openai", []string{"as text"}, "/", map[string]string{"webhook-id": "1", "webhook-timestamp": seconds(start), "webhook-signature": "v1," + inBase64(digest(sha256.New, "as text", "1.", seconds(start), ".", body))}, true},
		{"svix", []string{"whsec_YQ"}, "/", map[string]string{"svix-id": "1", "svix-timestamp": seconds(start), "svix-signature": "v1," + inBase64(digest(sha256.New, "a", "1.", seconds(start), ".", body))}, true},
		{"forgejo", nil, "/", map[string]string{"X-Gitea-Signature": inHex(sum)}, true},
		{"forgejo", nil, "/", map[string]string{"X-Gitea-Signature": inHex(sum), "X-Forgejo-Signature": ""}, false},
		{"fourthwall", nil, "/", map[string]string{"X-Fourthwall-Hmac-Apps-SHA256": inBase64(sum)}, true},
		{"shopify", nil, "/", map[string]string{"shopify-hmac-sha256": inBase64(sum)}, true},
		{"hugging_face", nil, "/?secret=" + url.QueryEscape(textSecret), nil, true},
		{"hugging_face", nil, "/?secret=x", nil, false},
		{"hugging_face", nil, "/?secret=" + url.QueryEscape(textSecret), map[string]string{"X-Webhook-Secret": "x"}, false},
		{"hugging_face", nil, "/?secret=x&secret=" + url.QueryEscape(textSecret), nil, false},
		{"pandadoc", nil, "/?signature=" + inHex(sum), nil, true},
		{"pandadoc", nil, "/?signature=" + inHex(sum) + "&signature=" + inHex(sum), nil, false},
		{"pandadoc", nil, "/?signature=", nil, false},
		{"pandadoc", nil, "/", nil, false},
		{"github", nil, "/", map[string]string{"X-Hub-Signature": "sha1=" + inHex(digest(newSHA1, textSecret, body))}, false},
		{"github", nil, "/", map[string]string{"X-Hub-Signature-256": "sha1=" + inHex(digest(newSHA1, textSecret, body))}, false},
		{"postmark", []string{"user:pass"}, "/", map[string]string{"Authorization": "basic " + inBase64("user:pass")}, true},
		{"postmark", []string{"user:pass"}, "/", map[string]string{"Authorization": "Bearer " + inBase64("user:pass")}, false},
		{"okta", []string{"Bearer x"}, "/", map[string]string{"Authorization": "Bearer x"}, true},
		{"box", []string{"a", "b"}, "/", box("1", "HmacSHA256", "x", "b"), true},
		{"box", []string{"a", "b"}, "/", box("1", "HmacSHA256", "a", "x"), true},
		{"box", []string{"a", "b"}, "/", box("1", "HmacSHA256", "x", "x"), false},
		{"box", []string{"b"}, "/", without(box("1", "HmacSHA256", "a", "b"), "BOX-SIGNATURE-PRIMARY"), true},
		{"box", []string{"a"}, "/", without(box("1", "HmacSHA256", "a", "b"), "BOX-SIGNATURE-PRIMARY"), false},
		{"box", []string{"a", "b"}, "/", box("2", "HmacSHA256", "a", "b"), false},
		{"box", []string{"a", "b"}, "/", box("1", "HmacSHA1", "a", "b"), false},
		{"square", nil, "/", map[string]string{"x-square-hmacsha256-signature": inBase64(digest(sha256.New, textSecret, squareURL, "/other", body))}, true},
		{"square", nil, "/", map[string]string{"x-square-hmacsha256-signature": inBase64(digest(sha256.New, textSecret, "https://example.com/", body))}, false},
		{"linear", nil, "/", map[string]string{"Linear-Signature": inHex(sum), "Linear-Timestamp": seconds(start) + "000"}, false},
	} {
		s := senders[test.provider]
		v := s.verifier(t, test.provider, func(c *signature.Config) {
			if test.secrets != nil {
				c.Secrets = test.secrets
			}
		})
		r := &sent{secret: textSecret, method: "POST", target: test.target, body: body, header: http.Header{}}
		for name, value := range test.header {
			r.header.Set(name, value)
		}
		if _, _, err := r.verify(t, start, v); (err == nil) != test.ok {
			t.Errorf("%s, %s, %v: %v", test.provider, test.target, test.header, err)
		}
	}
}

func without(header map[string]string, field string) map[string]string {
	delete(header, field)
	return header
}

func box(version, algorithm, primary, secondary string) map[string]string {
	const stamp = "2026-11-26T12:00:00Z"
	return map[string]string{
		"BOX-SIGNATURE-VERSION": version, "BOX-SIGNATURE-ALGORITHM": algorithm, "BOX-DELIVERY-TIMESTAMP": stamp,
		"BOX-SIGNATURE-PRIMARY":   inBase64(digest(sha256.New, primary, textBody, stamp)),
		"BOX-SIGNATURE-SECONDARY": inBase64(digest(sha256.New, secondary, textBody, stamp)),
	}
}

// What is done before the secret is known to be right is bounded: no body is needed in one piece, parsed
// or sorted, but for the few senders whose signature is over a parsed body, and these have a limit.
func TestBoundedWorkBeforeTheSignature(t *testing.T) {
	limits := map[string]int{"twilio": 1 << 20, "adyen": 1 << 20, "convoy": 1 << 20}
	wholes := []string{"discord", "sendgrid"} // need it for a public key
	for name, s := range senders {
		v := s.verifier(t, name)
		large := strings.Repeat("abc&1f0&", (2700<<10)/8)
		if name == "adyen" {
			large = `{"notificationItems":[` + strings.Repeat("0,", 1350<<10) + `0]}`
		}
		for _, size := range []int{len(large), 4 << 20} {
			r := s.request(func(r *sent) {})
			r.body = large[:min(size, len(large))]
			pending, err := signature.Verifiers{v}.Begin(signature.Request{Method: r.method, Target: r.target, Header: r.header, HasBody: true}, start)
			if err != nil {
				continue // nothing is read
			}
			read, reserved, whole := 0, 0, false
			_, _ = pending.Verify(signature.Body{
				Pieces:  func(yield func([]byte) bool) { read += len(r.body); yield([]byte(r.body)) },
				Whole:   func() ([]byte, error) { whole = true; return []byte(r.body), nil },
				Reserve: func(n int) error { reserved += n; return nil },
			})
			if limit, limited := limits[name]; limited && len(r.body) > limit && (whole || reserved > 0) {
				t.Errorf("%s: %d bytes are parsed before the signature is known", name, len(r.body))
			}
			if whole && limits[name] == 0 && !slices.Contains(wholes, name) || reserved > 2*len(r.body) || read > 8*len(r.body) {
				t.Errorf("%s: of %d bytes, %d are read and %d reserved; whole: %v", name, len(r.body), read, reserved, whole)
			}
		}
	}
	v := senders["twilio"].verifier(t, "twilio")
	for what, body := range map[string]string{"1,001 pairs": strings.Repeat("a=1&", 1000), "over 1 MiB": "a=" + strings.Repeat("x", 1<<20)} {
		r := senders["twilio"].request(func(r *sent) { r.body = body })
		if _, _, err := r.verify(t, start, v); err == nil || !strings.Contains(err.Error(), "1048576 bytes or 1000 pairs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The secret that fits is told apart, of several the first of the configuration.
func TestVerifiedSecret(t *testing.T) {
	label := func(v *signature.Verifier, secret string) string {
		r := senders["github"].request(func(r *sent) { r.secret = secret })
		found, _, err := r.verify(t, start, v)
		if err != nil {
			t.Fatal(err)
		}
		return found.Secret
	}
	with := func(secrets ...string) *signature.Verifier {
		v, err := signature.New(signature.Config{Provider: "github", Secrets: secrets})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	old, next := label(with("old"), "old"), label(with("next"), "next")
	if old == next || old == "" || strings.Contains(old, "old") {
		t.Errorf("the labels are %q and %q", old, next)
	}
	both := with("old", "next")
	if label(both, "old") != old || label(both, "next") != next || label(with("next", "old"), "old") != old {
		t.Error("a label depends on the other secrets")
	}
}
