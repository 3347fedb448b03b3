package signature_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// vector is one request in signatures.json, made by running the vendors' own code.
type vector struct {
	Provider  string            `json:"provider"`
	Variant   string            `json:"variant"`
	Secret    string            `json:"secret"`
	Secondary string            `json:"secret_secondary"`
	PublicKey string            `json:"public_key"`
	URL       string            `json:"url"`
	Method    string            `json:"method"`
	Headers   map[string]string `json:"headers"`
	Body      []byte            `json:"body_base64"`
	Now       *int64            `json:"now"`
	Valid     bool              `json:"valid"`
	Why       string            `json:"why"`
	Strength  string            `json:"strength"`
}

// decided are the vectors on which the vendors' own SDKs differ, or which only their own accept or
// refuse, and what is done here.
var decided = map[string]bool{
	"adyen/platform-valid":                    false, // another scheme than that of notifications
	"adyen/platform-body-changed":             false,
	"clerk/webhook-names":                     false, // svix-id makes the key
	"convoy/white-space-in-payload":           true,  // compact JSON
	"forgejo/upper-case-hex":                  true,
	"forgejo/form":                            false,
	"github/malformed-no-prefix":              false,
	"linear/timestamp-as-text":                false,
	"meta/malformed-no-prefix":                false,
	"replicate/old":                           true, // under within off, as all without a time
	"replicate/empty-body":                    true, // it is signed
	"shopify/empty-body":                      true,
	"shopify/both-headers-first-wrong":        false, // the first field decides
	"slack/future-6-min":                      false, // the tolerance is both ways
	"stripe/future-6-min":                     false,
	"stripe/t-after-v1":                       true,
	"stripe/empty-body":                       true,
	"svix/white-label":                        false, // standard_webhooks
	"svix/secret-unpadded":                    true,
	"twilio/url-apostrophe-escaped-by-twilio": false, // the URL as it is sent
	"twilio/shifted-parameters":               true,  // inherent in the scheme
}

func TestVendorVectors(t *testing.T) {
	folder := os.Getenv("DEDUP_VECTORS")
	if folder == "" {
		t.Skip("DEDUP_VECTORS is not set; it names a folder with signatures.json")
	}
	text, err := os.ReadFile(filepath.Join(folder, "signatures.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, v := range vectors {
		if known, ok := signature.ProviderNamed(v.Provider); !ok || known.Reason != "" {
			continue
		}
		tried++
		want := v.Valid
		if v.Provider == "twilio" && v.Variant == "empty-body" {
			want = false // a form that was moved into the URL looks like it, and its body would be unsigned
		}
		switch v.Strength {
		case "should-refuse":
			want = false
		case "may":
			var ok bool
			if want, ok = decided[v.Provider+"/"+v.Variant]; !ok {
				t.Errorf("%s/%s (%s): nothing is decided", v.Provider, v.Variant, v.Why)
			}
		}
		if got, err := v.verify(t); got != want {
			t.Errorf("%s/%s (%s, %s): verified is %v, want %v: %v", v.Provider, v.Variant, v.Strength, v.Why, got, want, err)
		}
	}
	if tried < 300 {
		t.Errorf("only %d vectors were tried", tried)
	}
}

func (v vector) verify(t *testing.T) (bool, error) {
	config := signature.Config{Provider: v.Provider}
	for _, secret := range []string{v.Secret, v.Secondary} {
		if secret != "" {
			config.Secrets = append(config.Secrets, secret)
		}
	}
	if v.PublicKey != "" {
		config.PublicKeys = []string{v.PublicKey}
	}
	now := time.Now()
	if v.Now != nil {
		now = time.Unix(*v.Now, 0)
	} else {
		config.Within = new(time.Duration)
	}
	r := signature.Request{Method: v.Method, Target: "/webhooks", Header: http.Header{}, HasBody: len(v.Body) > 0}
	if v.URL != "" {
		config.URLs = []string{v.URL}
		u, err := url.Parse(v.URL)
		if err != nil {
			t.Fatal(err)
		}
		r.Target = cmp.Or(u.RequestURI(), "/")
	}
	for name, value := range v.Headers {
		r.Header.Add(name, value)
	}
	verifier, err := signature.New(config)
	if err != nil {
		t.Fatalf("%s/%s: %v", v.Provider, v.Variant, err)
	}
	pending, err := signature.Verifiers{verifier}.Begin(r, now)
	if err != nil {
		return false, err
	}
	_, err = pending.Verify(signature.BodyOf(v.Body))
	return err == nil, err
}
