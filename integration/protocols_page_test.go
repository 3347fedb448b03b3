package integration

import (
	"crypto/rand"
	"strings"
	"testing"
)

// A protocol's site on the page runs a request once, and refuses another one with its key as the
// protocol does.
func TestSitesOfTheProtocols(t *testing.T) {
	t.Parallel()
	const reused = `"code":"idempotency_key_reused"`
	idempotencyKey := header("Idempotency-Key", "k")
	protocols := map[string]struct {
		path                 string
		options              []option
		first, repeat, other string
		status               int    // the other one's
		says                 string // its body
		field, value         string // its header
	}{
		"acp":         {"/checkout_sessions", []option{idempotencyKey}, `{"a": 1, "b": 2}`, `{"b": 2, "a": 1}`, `{"a": 1}`, 422, `"code": "idempotency_conflict"`, "Idempotency-Key", "k"},
		"ucp":         {"/checkout-sessions/1", []option{idempotencyKey, method("PUT")}, `{}`, `{}`, `{ }`, 409, "", "", ""},
		"stripe":      {"/v1/charges", []option{idempotencyKey}, "amount=1", "amount=1", "amount=2", 400, `"type": "idempotency_error"`, "Content-Type", "application/json"},
		"adyen":       {"/payments", []option{idempotencyKey, header("X-Api-Key", "a")}, `{"n": 1}`, `{"n": 1}`, `{"n": 2}`, 422, reused, "Idempotency-Key", "k"},
		"square":      {"/v2/payments", nil, `{"idempotency_key": "k", "n": 1}`, `{"idempotency_key": "k", "n": 1}`, `{"idempotency_key": "k", "n": 2}`, 422, reused, "", ""},
		"aws":         {"/", []option{header("X-Amz-Target", "Svc.Create")}, `{"clientToken": "k", "n": 1}`, `{"n": 1, "clientToken": "k"}`, `{"clientToken": "k", "n": 2}`, 422, reused, "", ""},
		"aws, a form": {"/", nil, "Action=RunInstances&ClientToken=k&n=1", "Action=RunInstances&ClientToken=k&n=1", "Action=RunInstances&ClientToken=k&n=2", 422, reused, "", ""},
		"aip":         {"/v1/books?requestId=k", nil, `{"title": "a"}`, `{"title": "a"}`, `{"title": "b"}`, 422, reused, "", ""},
		"a2a":         {"/tenant/message:send", nil, `{"message": {"messageId": "k", "n": 1}}`, `{"message": {"n": 1, "messageId": "k"}}`, `{"message": {"messageId": "k"}}`, 422, reused, "", ""},
		"iceberg":     {"/v1/namespaces", []option{idempotencyKey}, `{"namespace": ["a"]}`, `{"namespace": ["a"]}`, `{"namespace": ["b"]}`, 422, reused, "", ""},
		"graphql":     {"/graphql", nil, `{"variables": {"input": {"clientMutationId": "k", "n": 1}}}`, `{"variables": {"input": {"n": 1, "clientMutationId": "k"}}}`, `{"variables": {"input": {"clientMutationId": "k"}}}`, 422, reused, "", ""},
		"azure":       {"/emails:send", []option{header("Repeatability-Request-ID", "k")}, `{}`, `{}`, `[]`, 400, "", "Repeatability-Result", "rejected"},
	}
	up := startUpstream(t, answers201)
	var sites strings.Builder
	for name := range protocols {
		if strings.Contains(name, ", ") {
			continue // another form of a protocol
		}
		site := caddyfileWith(t, name+".example.com {")
		sites.WriteString("http://" + strings.NewReplacer(".example.com {", ".example.com:PORT {", "localhost:3000", up.addr).Replace(site))
	}
	p := start(t, conf{store: "store memory", sites: sites.String()})
	for name, protocol := range protocols {
		site, form, _ := strings.Cut(name, ", ")
		send := func(body string) reply {
			protocol.options = append(protocol.options, host(site+".example.com"))
			if form != "" {
				protocol.options = append(protocol.options, header("Content-Type", "application/x-www-form-urlencoded"))
			}
			if site == "aws" { // each request has a signature of its own
				protocol.options = append(protocol.options, header("Authorization", "AWS4-HMAC-SHA256 Credential=AKIA1/20260101/eu/svc/aws4_request, Signature="+rand.Text()))
			}
			return p.post(t, protocol.path, "", body, protocol.options...)
		}
		first, repeat, other := send(protocol.first), send(protocol.repeat), send(protocol.other)
		if first.Status != 201 || first.replayed() || !repeat.replayed() || repeat.executionID() != first.executionID() {
			t.Errorf("%s: got %d, replayed: %v, and then %d, replayed: %v", name, first.Status, first.replayed(), repeat.Status, repeat.replayed())
		}
		if other.Status != protocol.status || !strings.Contains(other.Body, protocol.says) || other.Header.Get(protocol.field) != protocol.value {
			t.Errorf("%s: another request got %d %q %v", name, other.Status, shorten(other.Body), other.Header)
		}
	}
}
