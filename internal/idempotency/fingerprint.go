package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// FingerprintKind is what two bodies have in common if they are the same request.
type FingerprintKind string

const (
	// FingerprintNone takes no fingerprint: the key alone decides.
	FingerprintNone FingerprintKind = "none"
	// FingerprintBody takes the bytes of the body.
	FingerprintBody FingerprintKind = "body"
	// FingerprintJSON takes the canonical form of the body (RFC 8785), or its bytes
	// if the body is not JSON.
	FingerprintJSON FingerprintKind = "json"
	// FingerprintCall takes what a tool call asks for ([CallFingerprint]).
	FingerprintCall FingerprintKind = "call"
)

// fingerprintVersion labels the derivation, as [keyVersion] does for keys.
const fingerprintVersion = "caddy-dedup fingerprint v1"

// Fingerprint hashes what the client asked for: path and query as it sent them, and the body. For
// [FingerprintJSON], doc is the body, nil if it is not JSON, and the hash leaves out the members
// that exclude names by JSON pointers. The other kinds ignore doc and these pointers. The caller
// has removed the parameters that exclude names, each as ?name, from the query.
//
// The result is the kind, a colon and the hash; it is empty for [FingerprintNone]. The kind includes
// what is excluded. So after a change of these settings, old and new fingerprints are of
// different kinds, and a retry is not refused as another request.
func Fingerprint(kind FingerprintKind, path, query string, body []byte, doc *canonicaljson.Document, exclude ...string) string {
	if kind == FingerprintNone || kind == "" {
		return ""
	}
	if kind == FingerprintJSON {
		kind += excluding(exclude)
		if doc != nil {
			h := sha256.New()
			h.Write(appendPathAndQuery(nil, path, query))
			if err := doc.WriteCanonical(h, exclude...); err == nil { // no parameter is a JSON pointer
				return fingerprintText(kind, [sha256.Size]byte(h.Sum(nil)))
			}
		}
	} else {
		kind += excluding(parametersIn(exclude))
	}
	if len(body) <= maxOnStack {
		parts := appendPathAndQuery(make([]byte, 0, 2*maxOnStack), path, query)
		return fingerprintText(kind, sha256.Sum256(append(parts, body...)))
	}
	return fingerprintPieces(kind, path, query, func(yield func([]byte) bool) { yield(body) })
}

// noted is the prefix of the kinds of fingerprints that refuse nothing.
const noted FingerprintKind = "noted-"

// NotedFingerprint hashes a body for [Claim.Differs]: with doc its canonical form without the members
// that exclude names, or its bytes if it has none. A request with another one is not refused.
func NotedFingerprint(body iter.Seq[[]byte], doc *canonicaljson.Document, exclude ...string) string {
	h := sha256.New()
	var digest [sha256.Size]byte
	if doc != nil && doc.WriteCanonical(h, exclude...) == nil {
		return fingerprintText(noted+FingerprintJSON+excluding(exclude), [sha256.Size]byte(h.Sum(digest[:0])))
	}
	h.Reset()
	for piece := range body {
		h.Write(piece)
	}
	return fingerprintText(noted+FingerprintBody, [sha256.Size]byte(h.Sum(digest[:0])))
}

// isNoted reports whether a fingerprint refuses nothing.
func isNoted(fingerprint string) bool { return strings.HasPrefix(fingerprint, string(noted)) }

// FingerprintPieces is [Fingerprint] for [FingerprintBody] and a body in pieces.
func FingerprintPieces(path, query string, pieces iter.Seq[[]byte], exclude ...string) string {
	return fingerprintPieces(FingerprintBody+excluding(parametersIn(exclude)), path, query, pieces)
}

// CallFingerprint is [Fingerprint] for a tool call: it hashes the query and what write writes, without
// the path. Its errors are those of write.
func CallFingerprint(query string, exclude []string, write func(io.Writer) error) (string, error) {
	h := sha256.New()
	h.Write(appendPart(appendPart(nil, fingerprintVersion), query))
	if err := write(h); err != nil {
		return "", err
	}
	return fingerprintText(FingerprintCall+excluding(exclude), [sha256.Size]byte(h.Sum(nil))), nil
}

// parametersIn returns the words that exclude a parameter of the query.
func parametersIn(exclude []string) []string {
	return slices.DeleteFunc(slices.Clone(exclude), func(word string) bool { return !strings.HasPrefix(word, "?") })
}

func fingerprintPieces(kind FingerprintKind, path, query string, pieces iter.Seq[[]byte]) string {
	h := sha256.New()
	h.Write(appendPathAndQuery(nil, path, query))
	for piece := range pieces {
		h.Write(piece)
	}
	return fingerprintText(kind, [sha256.Size]byte(h.Sum(nil)))
}

// appendPathAndQuery appends what is hashed before the body. The body is last and has no length
// before it: a canonical form is hashed while it is written.
func appendPathAndQuery(to []byte, path, query string) []byte {
	to = appendPart(to, fingerprintVersion)
	to = appendPart(to, path)
	return appendPart(to, query)
}

// excluding returns a name for a set of excluded words, in any order; "" for the empty set.
func excluding(words []string) FingerprintKind {
	if len(words) == 0 {
		return ""
	}
	var parts []byte
	for _, word := range slices.Sorted(slices.Values(words)) {
		parts = appendPart(parts, word)
	}
	digest := sha256.Sum256(parts)
	return FingerprintKind("-" + hex.EncodeToString(digest[:4]))
}

func fingerprintText(kind FingerprintKind, digest [sha256.Size]byte) string {
	text := make([]byte, 0, len("noted-json-01234567")+1+2*len(digest)) // on the stack
	text = append(append(text, kind...), ':')
	return string(hex.AppendEncode(text, digest[:]))
}

// sameness is the result of comparing two fingerprints.
type sameness int

const (
	// maybeSame: nothing distinguishes the requests.
	maybeSame sameness = iota
	// different: the requests differ.
	different
	// unknown: the fingerprints were hashed with different encryption keys.
	unknown
)

// compareFingerprints compares the fingerprint of a claim with all forms of that of a request.
// Only fingerprints of the same form, kind and encryption key, can be compared. If one is
// missing, or their kinds differ, the requests may be the same.
func compareFingerprints(claimed string, forms []string) sameness {
	form, _, taken := strings.Cut(claimed, ":")
	if !taken {
		return maybeSame
	}
	kind, _, keyed := strings.Cut(form, "/")
	result := maybeSame
	for _, other := range forms {
		otherForm, _, _ := strings.Cut(other, ":")
		otherKind, _, _ := strings.Cut(otherForm, "/")
		switch {
		case otherForm == form && other == claimed:
			return maybeSame
		case otherForm == form:
			return different
		case keyed && otherKind == kind:
			result = unknown
		}
	}
	return result
}
