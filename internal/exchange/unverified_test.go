package exchange

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// Bodies that are not verified take at most half of a budget. The one that has been read for the
// longest makes room, and others wait until it has given its room back.
func TestUnverifiedBodiesTakeHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100 << 10)
		var interrupted []int
		var bodies [4]*Allowance
		for i := range bodies {
			bodies[i] = &Allowance{Budget: b}
			bodies[i].beginUnverified(func() { interrupted = append(interrupted, i) })
		}
		for i := range 2 {
			if err := bodies[i].Admit(20 << 10); err != nil {
				t.Fatal(err)
			}
		}
		admitted := make(chan error, 1)
		go func() { admitted <- bodies[2].Admit(20 << 10) }()
		synctest.Wait()
		if len(interrupted) != 1 || interrupted[0] != 0 || len(admitted) > 0 {
			t.Fatalf("%v are interrupted, and %d is admitted before there is room", interrupted, len(admitted))
		}
		if err := bodies[0].Admit(1); !errors.Is(err, errCut) {
			t.Errorf("the first body goes on with %v", err)
		}
		if err := bodies[0].endReading(); !errors.Is(err, errCut) {
			t.Errorf("the first body ends with %v", err)
		}
		bodies[0].ReleaseAll()
		if err := <-admitted; err != nil {
			t.Errorf("the third body got %v", err)
		}
		// One that is read is no longer ended, and counts until it is verified.
		if err := bodies[1].endReading(); err != nil {
			t.Fatal(err)
		}
		go func() { admitted <- bodies[3].Admit(20 << 10) }()
		synctest.Wait()
		if len(interrupted) != 1 || len(admitted) > 0 {
			t.Fatalf("%v are interrupted while a body is being verified", interrupted)
		}
		bodies[1].endUnverified()
		if err := <-admitted; err != nil {
			t.Errorf("the fourth body got %v", err)
		}
		wantUsed(t, b, 60<<10)
		if err := bodies[3].Admit(40 << 10); !errors.Is(err, delivery.ErrBodyTooLarge) || !strings.Contains(err.Error(), "more than half") {
			t.Errorf("a body larger than the half got %v", err)
		}
		for _, body := range bodies[1:] {
			body.ReleaseAll()
		}
		if wantUsed(t, b, 0); b.unverified != 0 {
			t.Errorf("%d bytes count as not verified", b.unverified)
		}
	})
}

// The body that has read for the longest ends if it is the one that needs more.
func TestOldestUnverifiedBodyEndsItself(t *testing.T) {
	b := NewBudget(100 << 10)
	first, second := &Allowance{Budget: b}, &Allowance{Budget: b}
	for _, body := range []*Allowance{first, second} {
		body.beginUnverified(func() {})
		if err := body.Admit(25 << 10); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Admit(1); !errors.Is(err, errCut) {
		t.Errorf("it goes on with %v", err)
	}
}

// Under observe, a request that verify would refuse passes, claims nothing and is counted and logged,
// with any method.
func TestObserveVerifies(t *testing.T) {
	verifier, err := signature.New(signature.Config{Scheme: &signature.Scheme{Header: "X-Signature"}, Secrets: []string{"secret"}})
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, []byte("secret"))
	_, _ = io.WriteString(mac, "body")
	signed := hex.EncodeToString(mac.Sum(nil))
	for name, c := range map[string]struct {
		method, body, signature string
		want                    []string
	}{
		"signed":             {"POST", "body", signed, []string{"executed"}},
		"unsigned":           {"POST", "body", "", []string{"signature_invalid"}},
		"another body":       {"POST", "b0dy", signed, []string{"signature_invalid"}},
		"PUT":                {"PUT", "body", "", []string{"signature_invalid"}},
		"a signed PUT":       {"PUT", "body", signed, []string{"executed"}},
		"too large":          {"POST", strings.Repeat("x", 101), signed, []string{"too_large"}},
		"too large a PUT":    {"PUT", strings.Repeat("x", 101), signed, []string{"too_large"}},
		"unsigned and large": {"POST", strings.Repeat("x", 101), "", []string{"signature_invalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObserving(t, func(c *Config) {
					c.Verify = &Verification{signature.Verifiers{verifier}, map[string]*Sender{"": {Sources: []delivery.Source{{Kind: delivery.KindHeader, Header: "Idempotency-Key"}}}}}
				})
				claimed, passed := false, ""
				o.claim = func() { claimed = true }
				r := httptest.NewRequestWithContext(context.WithValue(t.Context(), caddy.ReplacerCtxKey, caddy.NewReplacer()), c.method, "/", strings.NewReader(c.body))
				r.Header.Set("Idempotency-Key", "k")
				if c.signature != "" {
					r.Header.Set("X-Signature", c.signature)
				}
				err := o.ServeHTTP(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					body, err := io.ReadAll(r.Body)
					passed = string(body)
					w.WriteHeader(http.StatusCreated)
					return err
				}))
				if err != nil || passed != c.body {
					t.Errorf("the handlers behind got %q, %v", passed, err)
				}
				synctest.Wait()
				if strings.Join(o.counts, ",") != strings.Join(c.want, ",") {
					t.Errorf("%q are counted, want %q", o.counts, c.want)
				}
				if claimed != (strings.Join(c.want, "") == "executed") {
					t.Errorf("a claim was made: %t", claimed)
				}
				lines := int64(o.logs.FilterMessageSnippet("that verify would refuse").Len()) + o.signatureLog.leftOut() // synctest's clock is before its start
				if refused := strings.Join(c.want, "") == "signature_invalid"; refused != (lines == 1) {
					t.Errorf("%d lines say that it would be refused", lines)
				}
			})
		})
	}
}
