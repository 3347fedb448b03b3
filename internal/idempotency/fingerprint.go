package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// FingerprintKind is what two bodies must have in common to be the same request.
type FingerprintKind string

const (
	// FingerprintNone takes no fingerprint: the key alone decides.
	FingerprintNone FingerprintKind = "none"
	// FingerprintBody takes the bytes of the body.
	FingerprintBody FingerprintKind = "body"
	// FingerprintJSON takes the canonical form of the body (RFC 8785), or its bytes
	// if the body is not JSON.
	FingerprintJSON FingerprintKind = "json"
)

// fingerprintVersion labels the derivation, as [keyVersion] does for keys.
const fingerprintVersion = "caddy-dedup fingerprint v1"

// Fingerprint hashes what the client asked for: path and query as it sent them,
// and the body. For [FingerprintJSON], doc is the body, nil if it is not JSON, and the members that
// the JSON pointers in exclude name are left out of it; the other kinds ignore both. The parameters
// that exclude names, each behind a ?, are left out of the query already.
//
// The result is the kind, a colon and the hash: after a change of the setting,
// old and new fingerprints are then of different kinds, and a retry is not
// refused as another request. What is excluded is a part of the setting, and so of
// the kind. It is empty for [FingerprintNone].
func Fingerprint(kind FingerprintKind, path, query string, body []byte, doc *canonicaljson.Document, exclude ...string) string {
	if kind == FingerprintNone || kind == "" {
		return ""
	}
	if kind == FingerprintJSON {
		kind += excluding(exclude)
		if doc != nil {
			h := sha256.New()
			h.Write(appendPathAndQuery(nil, path, query))
			members := slices.DeleteFunc(slices.Clone(exclude), isParameter)
			if err := doc.WriteCanonical(h, members...); err == nil {
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

// FingerprintPieces returns what [Fingerprint] does for [FingerprintBody]. The body lies in pieces.
func FingerprintPieces(path, query string, pieces iter.Seq[[]byte], exclude ...string) string {
	return fingerprintPieces(FingerprintBody+excluding(parametersIn(exclude)), path, query, pieces)
}

func isParameter(excluded string) bool { return strings.HasPrefix(excluded, "?") }

// parametersIn returns what is excluded of the query, and not of the body.
func parametersIn(exclude []string) []string {
	return slices.DeleteFunc(slices.Clone(exclude), func(word string) bool { return !isParameter(word) })
}

func fingerprintPieces(kind FingerprintKind, path, query string, pieces iter.Seq[[]byte]) string {
	h := sha256.New()
	h.Write(appendPathAndQuery(nil, path, query))
	for piece := range pieces {
		h.Write(piece)
	}
	return fingerprintText(kind, [sha256.Size]byte(h.Sum(nil)))
}

// appendPathAndQuery appends what is hashed before a body. The body is the last, and needs no
// length: a canonical form is hashed while it is written.
func appendPathAndQuery(to []byte, path, query string) []byte {
	to = appendPart(to, fingerprintVersion)
	to = appendPart(to, path)
	return appendPart(to, query)
}

// excluding names a set of what is excluded, in whatever order it stands; the empty one has
// the name "".
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
	text := make([]byte, 0, len("json-01234567")+1+2*len(digest)) // on the stack
	text = append(append(text, kind...), ':')
	return string(hex.AppendEncode(text, digest[:]))
}

// sameness is what two fingerprints say of their requests.
type sameness int

const (
	// maybeSame: nothing tells them apart.
	maybeSame sameness = iota
	// different: they are two requests.
	different
	// unknown: the one fingerprint was hashed with an encryption key that the other
	// was not hashed with.
	unknown
)

// compareFingerprints compares the fingerprint of a claim with that of a request, which
// is given in all its forms. Fingerprints can be compared only if they have the same
// form: the same kind, and the same encryption key. If one of them is missing, or is of
// another kind, there is nothing to compare, and the requests may be the same.
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
