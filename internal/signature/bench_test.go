package signature_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// BenchmarkVerify measures both steps for a body of 2 kB.
func BenchmarkVerify(b *testing.B) {
	for _, name := range []string{"github", "stripe", "standard_webhooks", "linear", "convoy", "adyen", "twilio", "discord", "sendgrid", "telegram"} {
		b.Run(name, func(b *testing.B) {
			s := senders[name]
			v := signature.Verifiers{s.verifier(b, name)}
			r := s.request(func(r *sent) {
				if s.body == "" {
					r.body = `{"id":"` + strings.Repeat("x", 2000) + `"}`
				}
			})
			request, body := signature.Request{Method: r.method, Target: r.target, Header: r.header, HasBody: true}, signature.BodyOf([]byte(r.body))
			b.ReportAllocs()
			for b.Loop() {
				pending, err := v.Begin(request, start)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := pending.Verify(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
