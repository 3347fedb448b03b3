package signature_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

func TestOwnSchemes(t *testing.T) {
	stamp := seconds(start)
	sum := func(parts ...string) string { return inHex(digest(sha256.New, textSecret, parts...)) }
	// The last bits of base64 stand for nothing, and have to be 0.
	strict := inBase64(digest(sha256.New, textSecret, textBody))
	strict = strict[:42] + string(strict[42]+1) + "="
	for _, test := range []struct {
		scheme signature.Scheme
		header map[string]string
		ok     bool
	}{
		{signature.Scheme{Header: "X-Sig"}, map[string]string{"X-Sig": sum(textBody)}, true},
		{signature.Scheme{Header: "x-sig"}, map[string]string{"X-Sig": sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig"}, map[string]string{"X-Sig": sum(textBody + "x")}, false},
		{signature.Scheme{Header: "X-Sig"}, map[string]string{"X-Sig": sum("x") + ", " + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Format: "sha256={signature}"}, map[string]string{"X-Sig": "sha256=" + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Format: "sha256={signature}"}, map[string]string{"X-Sig": sum(textBody)}, false},
		{signature.Scheme{Header: "X-Sig", Format: "v1={signature}"}, map[string]string{"X-Sig": "v1=" + sum("x") + ",v1=" + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Format: "{signature},v1={signature}"}, map[string]string{"X-Sig": "v1=" + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Encoding: "base64", Signed: "{body}"}, map[string]string{"X-Sig": strict}, false},
		{signature.Scheme{Header: "X-Sig", Format: "v1,{signature} v1,{signature}"}, map[string]string{"X-Sig": "v1," + sum("x") + " v1," + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Format: "Signature keyId=a,{signature}"}, map[string]string{"X-Sig": "Signature keyId=a," + sum(textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Algorithm: "sha512", Encoding: "base64"}, map[string]string{"X-Sig": inBase64(digest(sha512.New, textSecret, textBody))}, true},
		{signature.Scheme{Header: "X-Sig", Algorithm: "sha1"}, map[string]string{"X-Sig": inHex(digest(newSHA1, textSecret, textBody))}, true},
		{signature.Scheme{Header: "X-Sig", Signed: "v0:{body}:end"}, map[string]string{"X-Sig": sum("v0:", textBody, ":end")}, true},
		{signature.Scheme{Header: "X-Sig", Format: "t={timestamp},v1={signature}", Signed: "{timestamp}.{body}"}, map[string]string{"X-Sig": "v1=" + sum("x") + ", v1=" + sum(stamp, ".", textBody) + ", t=" + stamp}, true},
		{signature.Scheme{Header: "X-Sig", Format: "t={timestamp};v1={signature}", Signed: "{timestamp}.{body}"}, map[string]string{"X-Sig": "t=" + stamp + ";v1=" + sum(stamp, ".", textBody)}, true},
		{signature.Scheme{Header: "X-Sig", Format: "t={timestamp},v1={signature}", Signed: "{timestamp}.{body}"}, map[string]string{"X-Sig": "v1=" + sum(stamp, ".", textBody)}, false},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Unit: "ms", Signed: "{body}.{timestamp}"}, map[string]string{"X-Sig": sum(textBody, ".", stamp, "000"), "X-Time": stamp + "000"}, true},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Unit: "ms", Signed: "{body}.{timestamp}"}, map[string]string{"X-Sig": sum(textBody, ".", stamp), "X-Time": stamp}, false},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Unit: "rfc3339", Signed: "{body}.{timestamp}"}, map[string]string{"X-Sig": sum(textBody, ".2026-11-26T12:05:00.5+00:00"), "X-Time": "2026-11-26T12:05:00.5+00:00"}, false}, // the default is 5m
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Unit: "rfc3339", Signed: "{body}.{timestamp}"}, map[string]string{"X-Sig": sum(textBody, ".2026-11-26T14:05:00+02:00"), "X-Time": "2026-11-26T14:05:00+02:00"}, true},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Signed: "{timestamp}{body}"}, map[string]string{"X-Sig": sum(stamp, textBody), "X-Time": stamp}, true},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Unit: "ms", Signed: "{timestamp}{body}"}, map[string]string{"X-Sig": sum(stamp, "000", textBody), "X-Time": stamp + "000"}, true},
		{signature.Scheme{Header: "X-Sig", TimeHeader: "X-Time", Signed: "{body}{timestamp}"}, map[string]string{"X-Sig": sum(textBody, stamp), "X-Time": stamp}, true},
		{signature.Scheme{Header: "X-Sig", Signed: "{http.request.header.X-Id}.{body}"}, map[string]string{"X-Sig": sum("id.", textBody), "X-Id": "id"}, true},
		{signature.Scheme{Header: "X-Sig", Signed: "{http.request.header.X-Id}.{body}"}, map[string]string{"X-Sig": sum("i.d.", textBody), "X-Id": "i.d"}, false},
		{signature.Scheme{Header: "X-Sig", Signed: "{http.request.header.X-Id}::{body}"}, map[string]string{"X-Sig": sum("i:d::", textBody), "X-Id": "i:d"}, true},
		{signature.Scheme{Header: "X-Sig", Signed: "{http.request.header.X-Id}::{body}"}, map[string]string{"X-Sig": sum("i:::", textBody), "X-Id": "i:"}, false},
		{signature.Scheme{Header: "X-Sig", Signed: "{body}::{http.request.header.X-Id}"}, map[string]string{"X-Sig": sum(textBody, ":::i"), "X-Id": ":i"}, false},
		{signature.Scheme{Header: "X-Sig", Signed: "{body}.{http.request.header.X-Id}"}, map[string]string{"X-Sig": sum(textBody, ".i.d"), "X-Id": "i.d"}, false},
		{signature.Scheme{Header: "X-Sig", Signed: "{body}.{http.request.header.X-Id}"}, map[string]string{"X-Sig": sum(textBody, ".")}, false},
		{signature.Scheme{Header: "X-Sig", Signed: "{body}.{http.request.header.X-Id}"}, map[string]string{"X-Sig": sum(textBody, "."), "X-Id": ""}, false},
	} {
		v, err := signature.New(signature.Config{Scheme: &test.scheme, Secrets: []string{"other", textSecret}})
		if err != nil {
			t.Errorf("%+v: %v", test.scheme, err)
			continue
		}
		r := &sent{secret: textSecret, method: "PUT", target: "/", body: textBody, header: http.Header{}}
		for name, value := range test.header {
			r.header.Set(name, value)
		}
		found, _, err := r.verify(t, start, v)
		if (err == nil) != test.ok || found.Provider != "" || found.ID != "" {
			t.Errorf("%+v, %v: %v", test.scheme, test.header, err)
		}
	}
}

// What a scheme must not be; each error has what was wrong, and what would be right.
func TestWrongSchemes(t *testing.T) {
	for _, test := range []struct {
		scheme signature.Scheme
		says   string
	}{
		{signature.Scheme{}, `header ""`},
		{signature.Scheme{Header: "X Sig"}, `"X Sig" is not the name of a header field`},
		{signature.Scheme{Header: "X", Algorithm: "md5"}, `algorithm "md5" is unknown; it must be sha256, sha1, sha512`},
		{signature.Scheme{Header: "X", Encoding: "base32"}, `encoding "base32"`},
		{signature.Scheme{Header: "X", SecretEncoding: "whsec"}, `secret_encoding "whsec"`},
		{signature.Scheme{Header: "X", Unit: "ns", TimeHeader: "T", Signed: "{timestamp}.{body}"}, `"ns" is unknown`},
		{signature.Scheme{Header: "X", TimeHeader: "a b", Signed: "{timestamp}.{body}"}, `timestamp "a b"`},
		{signature.Scheme{Header: "X", Format: "sha256="}, `format "sha256="`},
		{signature.Scheme{Header: "X", Format: "{signature}="}, `format "{signature}="`},
		{signature.Scheme{Header: "X", Format: "{sig}"}, `format "{sig}"`},
		{signature.Scheme{Header: "X", Format: "{signature}{signature}"}, `format "{signature}{signature}"`},
		{signature.Scheme{Header: "X", Format: "t={timestamp}", Signed: "{timestamp}.{body}"}, `has no {signature}`},
		{signature.Scheme{Header: "X", Format: "{timestamp},{signature}", Signed: "{timestamp}.{body}"}, `needs a name before {timestamp}`},
		{signature.Scheme{Header: "X", Format: "a={timestamp},a={signature}", Signed: "{timestamp}.{body}"}, `needs a name before {timestamp}`},
		{signature.Scheme{Header: "X", Format: "a={timestamp},b={timestamp},c={signature}", Signed: "{timestamp}.{body}"}, `two timestamps`},
		{signature.Scheme{Header: "X", Format: "t={timestamp},v1={signature}"}, `signed has no {timestamp}`},
		{signature.Scheme{Header: "X", TimeHeader: "T"}, `signed has no {timestamp}`},
		{signature.Scheme{Header: "X", TimeHeader: "T", Format: "t={timestamp},v1={signature}", Signed: "{timestamp}.{body}"}, `in format already`},
		{signature.Scheme{Header: "X", Signed: "{timestamp}.{body}"}, `neither format nor timestamp`},
		{signature.Scheme{Header: "X", Unit: "ms"}, `the unit "ms"`},
		{signature.Scheme{Header: "X", Signed: "{timestamp}"}, `has no {body}`},
		{signature.Scheme{Header: "X", Signed: "text"}, `has no {body}`},
		{signature.Scheme{Header: "X", Signed: "{timestamp}{http.request.header.A}.{body}", TimeHeader: "T"}, `directly after another placeholder`},
		{signature.Scheme{Header: "X", Signed: "{http.request.header.A}{timestamp}{body}", TimeHeader: "T"}, `directly after another placeholder`},
		{signature.Scheme{Header: "X", Signed: "{http.request.header.Host}.{body}"}, `the field Host, which a server removes`},
		{signature.Scheme{Header: "X", Signed: "{http.request.header.A}{body}"}, `{body} directly after another placeholder`},
		{signature.Scheme{Header: "X", Signed: "{body}.{body}"}, `{body} twice`},
		{signature.Scheme{Header: "X", Signed: "{body}.{url}"}, `has {url}`},
		{signature.Scheme{Header: "X", Signed: "{body}.{http.request.uri}"}, `has {http.request.uri}`},
		{signature.Scheme{Header: "X", Signed: "{body}.{http.request.header.}"}, `has {http.request.header.}`},
		{signature.Scheme{Header: "X", Signed: "{body}.{http.request.header.A"}, `has {http.request.header.A; the placeholders are`},
		{signature.Scheme{Header: "X", Signed: "{body}.{http.request.header.A B}"}, `has {http.request.header.A B}`},
	} {
		_, err := signature.New(signature.Config{Scheme: &test.scheme, Secrets: []string{textSecret}})
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v, want %s", test.scheme, err, test.says)
		}
	}
}

// No error has a secret, a key or a URL in it.
func TestWrongConfigurations(t *testing.T) {
	const word = "pAssw0rd"
	private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	own := &signature.Scheme{Header: "X-Sig"}
	minute, negative := time.Minute, -time.Minute
	for _, test := range []struct {
		config signature.Config
		says   string
	}{
		{signature.Config{Secrets: []string{word}}, "a provider or a scheme"},
		{signature.Config{Provider: "github", Scheme: own, Secrets: []string{word}}, "not both"},
		{signature.Config{Provider: "githup", Secrets: []string{word}}, `provider "githup" is unknown`},
		{signature.Config{Provider: "mailgun", Secrets: []string{word}}, "mailgun cannot be verified: it signs a timestamp and a token"},
		{signature.Config{Provider: "github"}, "github needs a secret"},
		{signature.Config{Scheme: own}, "hmac needs a secret"},
		{signature.Config{Provider: "github", Secrets: []string{word}, PublicKeys: []string{word}}, "no use for a public_key"},
		{signature.Config{Provider: "discord", Secrets: []string{word}}, "discord has no use for a secret"},
		{signature.Config{Provider: "discord"}, "discord needs a public_key"},
		{signature.Config{Provider: "discord", PublicKeys: []string{word}}, "public_key 1 of discord is not an Ed25519 key"},
		{signature.Config{Provider: "sendgrid", PublicKeys: []string{word + "!"}}, "public_key 1 of sendgrid is not in base64"},
		{signature.Config{Provider: "sendgrid", PublicKeys: []string{inBase64(word)}}, "public_key 1 of sendgrid is not an ECDSA key"},
		{signature.Config{Provider: "sendgrid", PublicKeys: []string{inBase64(string(der))}}, "public_key 1 of sendgrid is not an ECDSA key on P-256"},
		{signature.Config{Provider: "svix", Secrets: []string{"whsec_" + bareBase64, "whsec_" + word + "!"}}, "secret 2 of svix is not in base64"},
		{signature.Config{Provider: "svix", Secrets: []string{"whsec_"}}, "secret 1 of svix is empty"},
		{signature.Config{Provider: "gitlab", Secrets: []string{"whsec_" + word + "!"}}, "secret 1 of gitlab is not in base64"},
		{signature.Config{Provider: "adyen", Secrets: []string{word}}, "secret 1 of adyen is not in hex"},
		{signature.Config{Provider: "adyen", Secrets: []string{"abc"}}, "secret 1 of adyen is not in hex"},
		{signature.Config{Provider: "chargebee", Secrets: []string{word}}, "secret 1 of chargebee has no colon"},
		{signature.Config{Scheme: &signature.Scheme{Header: "X", SecretEncoding: "hex"}, Secrets: []string{word}}, "secret 1 of hmac is not in hex"},
		{signature.Config{Scheme: &signature.Scheme{Header: "X", SecretEncoding: "base64"}, Secrets: []string{word + "\n\n"}}, "secret 1 of hmac is not in base64"},
		{signature.Config{Provider: "square", Secrets: []string{word}}, "square needs the url"},
		{signature.Config{Provider: "square", Secrets: []string{word}, URLs: []string{squareURL, "/" + word}}, "url 2 of square is not a URL"},
		{signature.Config{Provider: "square", Secrets: []string{word}, URLs: []string{"ftp://" + word}}, "url 1 of square is not a URL"},
		{signature.Config{Provider: "twilio", Secrets: []string{word}, URLs: []string{squareURL, squareURL}}, "twilio needs one url"},
		{signature.Config{Provider: "github", Secrets: []string{word}, URLs: []string{squareURL}}, "github has no use for the url"},
		{signature.Config{Provider: "github", Secrets: []string{word}, Within: &minute}, "within needs a signed timestamp"},
		{signature.Config{Provider: "gitlab", Secrets: []string{word}, Within: &minute}, "within needs a signed timestamp"},
		{signature.Config{Scheme: own, Secrets: []string{word}, Within: &minute}, "hmac has none"},
		{signature.Config{Provider: "stripe", Secrets: []string{word}, Within: &negative}, "must not be negative"},
	} {
		_, err := signature.New(test.config)
		if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), word) {
			t.Errorf("%+v: %v, want %s", test.config, err, test.says)
		}
	}
}
