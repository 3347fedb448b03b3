package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The example that the README starts with works as it says, and its lines that are comments run as
// soon as they are none.
func TestExampleCaddyfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	for name, c := range map[string]struct {
		instead  []string
		requests []asked
	}{
		"as it is": {nil, []asked{
			{"/payments", "amount=10", "Idempotency-Key: order-1", 201, "payment "},
			{"/payments", "amount=10", "Idempotency-Key: order-1", 201, "Idempotent-Replayed: true"},
			{"/payments", "amount=11", "Idempotency-Key: order-1", 422, "idempotency_key_reused"},
			{"/payments", "amount=10", "Idempotency-Key: order-3\nFail: 503", 503, ""},
			{"/payments", "amount=10", "Idempotency-Key: order-3", 201, "payment "},
			{"/webhooks/github", "{}", "X-GitHub-Delivery: delivery-1", 201, ""},
			{"/webhooks/github", "{}", "X-GitHub-Delivery: delivery-1", 201, "Idempotent-Replayed: true"},
		}},
		"uncommented": {[]string{"localhost:6379", redis.Addr, "\t\tstore file\n", "", "\t\t#store", "\t\tstore", "\t\t#\tprefix", "\t\t\tprefix", "\t\t#}", "\t\t}", "\t#on_missing", "\ton_missing"}, []asked{
			{"/payments", "amount=10", "Idempotency-Key: order-1", 201, "payment "},
			{"/payments", "amount=10", "Idempotency-Key: order-1", 201, "Idempotent-Replayed: true"},
			{"/payments", "amount=10", "", 400, "idempotency_key_missing"},
		}},
	} {
		port := freeport.Of(t)
		// Only its ports are taken elsewhere, for other tests run beside this one.
		caddyfile := strings.NewReplacer(append(c.instead, "8080", fmt.Sprint(port), "8081", fmt.Sprint(freeport.Of(t)), "2019", fmt.Sprint(freeport.Of(t)))...).Replace(string(text))
		p := startCaddyfile(t, shortTempDir(t), port, caddyfile)
		if warnings := p.log.find(func(e entry) bool { return e.text("level") != "info" }); len(warnings) != 0 {
			t.Errorf("%s: the start warns: %v", name, warnings)
		}
		ask(t, p, c.requests)
	}
	if keys, _ := redis.Do("KEYS", "shop:dedup:*").([]any); len(keys) == 0 {
		t.Error("no key of Redis has the prefix")
	}
}
