package signature_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// FuzzRequest sends arbitrary requests to all verifiers. None may be verified, because none is
// signed, and a reason has nothing of the request.
func FuzzRequest(f *testing.F) {
	var all signature.Verifiers
	fields := map[string]bool{"Content-Type": true}
	for name, s := range senders {
		all = append(all, s.verifier(f, name))
		for field := range s.request().header {
			fields[field] = true
		}
	}
	for _, value := range []string{"", "t=1764201600,v1=" + strings.Repeat("0", 64), "ts=1;h1=", "v0=a,b", "v1,AAAA v1a,AAAA", "sha256=" + strings.Repeat("f", 64), "Basic YTpi", "1764158400", "2026-11-26T12:00:00Z"} {
		f.Add("POST", "/?signature=00", value, value, []byte(textBody))
	}
	f.Add("GET", "/?hub.challenge=1&bodySHA256=%", "a", "b", []byte(`{"notificationItems":[{"NotificationRequestItem":{}}]}`))
	f.Fuzz(func(t *testing.T, method, target, value, other string, body []byte) {
		header := http.Header{}
		for field := range fields {
			header[field] = []string{value}
			if strings.HasSuffix(field, "Timestamp") || strings.HasSuffix(field, "Id") {
				header[field] = []string{other}
			}
		}
		for _, v := range all {
			pending, err := signature.Verifiers{v}.Begin(signature.Request{Method: method, Target: target, Header: header, HasBody: len(body) > 0}, start)
			if err == nil && pending.Challenge == "" {
				_, err = pending.Verify(signature.BodyOf(body))
				if err == nil {
					t.Fatalf("%s verifies what nobody has signed", v.Provider())
				}
			}
			if err != nil && len(value) > 12 && strings.Contains(err.Error(), value) {
				t.Errorf("%s: the reason %q has the request's text", v.Provider(), err)
			}
		}
	})
}

// FuzzScheme reads arbitrary schemes. One that is accepted verifies a request that is signed by it,
// and no other body.
func FuzzScheme(f *testing.F) {
	for _, seed := range [][3]string{
		{"sha256={signature}", "{body}", ""}, {"t={timestamp},v1={signature}", "{timestamp}.{body}", ""}, {"v1,{signature} v1,{signature}", "v0:{timestamp}:{body}", "X-Time"},
		{"v0={signature},{signature}", "{http.request.header.X-Id}.{body}", ""}, {"{signature", "{body}{", "a b"}, {"a;{signature}", "}{body}", ""},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, format, signed, timeHeader string) {
		v, err := signature.New(signature.Config{
			Scheme: &signature.Scheme{Header: "X-Sig", Format: format, Signed: signed, TimeHeader: timeHeader}, Secrets: []string{textSecret}, Within: new(time.Duration),
		})
		if err != nil {
			return
		}
		if strings.Count(signed, "{body}") != 1 && signed != "" || strings.Contains(signed, "{body}{") || strings.Contains(signed, "{timestamp}{") {
			t.Fatalf("signed %q is accepted", signed)
		}
		r := sent{secret: textSecret, method: "POST", target: "/", body: textBody, header: http.Header{}}
		if timeHeader != "" {
			r.header.Set(timeHeader, seconds(start))
		}
		text := strings.NewReplacer("{body}", textBody, "{timestamp}", seconds(start)).Replace(signed)
		if strings.Contains(text, "{http.request.header.") {
			return // the tables have them
		}
		if signed == "" {
			text = textBody
		}
		value := inHex(digest(newSHA256, textSecret, text))
		if format != "" {
			value = strings.NewReplacer("{signature}", value, "{timestamp}", seconds(start)).Replace(format)
		}
		if len(value) > 4096 || strings.Count(format, "{signature}") > 10 || http.CanonicalHeaderKey(timeHeader) == "X-Sig" {
			return
		}
		r.header.Set("X-Sig", value)
		if _, _, err := r.verify(t, start, v); err != nil {
			t.Errorf("%q over %q: %v", value, signed, err)
		}
		r.body += "x"
		if _, _, err := r.verify(t, start, v); err == nil {
			t.Errorf("%q over %q: another body is verified", value, signed)
		}
	})
}
