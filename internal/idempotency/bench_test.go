package idempotency_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// BenchmarkKey is what it costs to derive the key of an API's request, with the scope that
// a handler has by default, and with one so large that it is not hashed on the stack.
func BenchmarkKey(b *testing.B) {
	ordinary := idempotency.Identity{
		Namespace: "default", Scope: []string{"POST", "api.example.com", "/v1/payments", "Bearer " + strings.Repeat("t", 40)},
		Kind: "header", Prefix: "idempotency-key", ID: "72d3162e-cc78-11e3-81ab-4c9367dc0958",
	}
	large := ordinary
	large.Scope = []string{strings.Repeat("t", 4096)}
	for name, id := range map[string]idempotency.Identity{"ordinary": ordinary, "large": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				id.Key()
			}
		})
	}
}

// BenchmarkFingerprint hashes bodies of an API, by their bytes and by their canonical form.
func BenchmarkFingerprint(b *testing.B) {
	small := []byte(`{"order":"2026-0815","amount":{"value":"129.90","currency":"EUR"},"customer":"c-4711"}`)
	large := []byte(`{"lines":["` + strings.Repeat("x", 64<<10) + `"]}`)
	for _, kind := range []idempotency.FingerprintKind{idempotency.FingerprintBody, idempotency.FingerprintJSON} {
		for name, body := range map[string][]byte{"small": small, "64 KiB": large} {
			b.Run(string(kind)+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					fingerprint(kind, "/v1/payments", "", body)
				}
			})
		}
	}
}

// BenchmarkDecide asks the claim table about a duplicate.
func BenchmarkDecide(b *testing.B) {
	now := time.Now()
	claimed := fingerprint(idempotency.FingerprintBody, "/v1/payments", "", []byte("{}"))
	terms := idempotency.Terms{Lease: 30 * time.Second, Retention: time.Hour}
	first := idempotency.Claim{Token: "a", ExecutionID: "a", Fingerprints: []string{claimed}, Terms: terms}
	kept := first.Record(nil, now).Settled(idempotency.Settlement{State: idempotency.Complete, Counted: true, Retention: time.Hour,
		Response: &idempotency.Response{Status: 201}}, now)
	again := idempotency.Claim{Token: "b", ExecutionID: "b", Fingerprints: []string{claimed}, Terms: terms}
	b.ReportAllocs()
	for b.Loop() {
		if got := idempotency.Decide(kept, again, now); got != idempotency.ReplayKept {
			b.Fatalf("the duplicate gets %v", got)
		}
	}
}
