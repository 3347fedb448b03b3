package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Each line about a run says which delivery it was and where it went, and under encrypt neither.
func TestLogLinesNameTheDeliveryAndItsRoute(t *testing.T) {
	for name, keys := range map[string]string{"plain": "", "encrypted": "a"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newShared(t)
				crashed, a := newReplica(t, store), newReplica(t, store)
				for _, r := range []*replica{crashed, a} {
					r.Configure(engine.Settings{Sealer: sealing(t, keys)})
				}
				req := someRequest()
				req.Origin = idempotency.Origin{
					Provider: "github", DeliveryID: "uid-1", Parts: []string{"mail"}, Method: "POST", Host: "shop.test", Path: "/hooks",
				}
				crashed.run(req)
				crashed.link.fail(refused, "renew")
				time.Sleep(2 * someLease)
				hold := req
				hold.Policy.Hold = true
				for _, req := range []engine.Request{req, hold} {
					ended(a.run(req), idempotency.End{How: idempotency.Unknown, Reason: "EOF"})
				}
				must(t, a.Release(context.Background(), req.Key, idempotency.Precondition{}))
				for _, message := range []string{"lapsed: ", "released: ", "held: ", "an operator released"} {
					lines := a.logged.FilterMessageSnippet(message).All()
					if len(lines) != 1 {
						t.Fatalf("%d lines are %q, want 1", len(lines), message)
					}
					want := map[string]any{
						"key": req.Key, "provider": "github", "delivery_id": "uid-1", "parts": []string{"mail"}, "method": "POST", "host": "shop.test", "path": "/hooks",
					}
					if message == "an operator released" {
						want["reason"] = "EOF"
					}
					for field, value := range want {
						if keys != "" && field != "key" && (field != "provider" || message == "an operator released") { // whose record stays sealed
							value = nil
						}
						if got := lines[0].ContextMap()[field]; fmt.Sprint(got) != fmt.Sprint(value) {
							t.Errorf("%q has the %s %v, want %v", message, field, got, value)
						}
					}
				}
			})
		})
	}
}
