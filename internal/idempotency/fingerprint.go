package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// FingerprintKind says what of a request's body makes it the same request.
type FingerprintKind string

const (
	// FingerprintNone takes no fingerprint: the key alone decides.
	FingerprintNone FingerprintKind = "none"
	// FingerprintBody takes the body's bytes.
	FingerprintBody FingerprintKind = "body"
	// FingerprintJSON takes the body's canonical form (RFC 8785), and its bytes
	// where it is not JSON.
	FingerprintJSON FingerprintKind = "json"
)

// fingerprintVersion labels the derivation, as [keyVersion] does for keys.
const fingerprintVersion = "caddy-dedup fingerprint v1"

// Fingerprint hashes what the client asked for: path and query as it sent them,
// and the body. The members that the JSON pointers in exclude name are left out of
// [FingerprintJSON], and of nothing else. The kind stands before the hash, with a
// colon between them, so that a changed setting is not taken for a changed
// request. It is empty for [FingerprintNone].
func Fingerprint(kind FingerprintKind, path, query string, body []byte, exclude ...string) string {
	if kind == FingerprintNone || kind == "" {
		return ""
	}
	if kind == FingerprintJSON {
		if canonical, err := canonicaljson.Canonicalize(body, exclude...); err == nil {
			body = canonical
		}
	}
	h := sha256.New()
	writePart(h, fingerprintVersion)
	writePart(h, path)
	writePart(h, query)
	writePart(h, body)
	return string(kind) + ":" + hex.EncodeToString(h.Sum(nil))
}

// sameFingerprint reports whether the request that claimed may be the same as one
// whose fingerprint is given in each of its forms. Only fingerprints of one form
// can be compared: of one kind, and hashed with the same key. A missing one, or
// one of another form, says nothing.
func sameFingerprint(claimed string, forms []string) bool {
	form, _, taken := strings.Cut(claimed, ":")
	if !taken {
		return true
	}
	for _, other := range forms {
		if otherForm, _, _ := strings.Cut(other, ":"); otherForm == form {
			return other == claimed
		}
	}
	return true
}
