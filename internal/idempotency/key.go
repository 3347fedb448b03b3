package idempotency

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
)

// The labels of the hashes that make up a key. A change in how a key is derived needs a new
// label, so that no new key equals an old one.
const (
	keyVersion = "caddy-dedup key v1"
	idVersion  = "caddy-dedup ID v1"
	// forcedVersion labels that of a forced run.
	forcedVersion = "caddy-dedup forced key v1"
)

// idDigest is how many bytes of a key come from the namespace and the ID alone.
const idDigest = 8

// Key names one record in every store. Its first 8 bytes are from a SHA-256 over
// namespace and ID alone, so that an operator who knows only a delivery ID can find
// its keys. The other 24 bytes are from a SHA-256 over the whole [Identity]. A key has
// the same size whatever the client sent, and discloses no credentials of the scope.
type Key [sha256.Size]byte

// String returns the key in lower-case hex, the form in which operators see it.
func (k Key) String() string {
	text := make([]byte, 0, 2*len(k)) // on the stack
	return string(hex.AppendEncode(text, k[:]))
}

// ParseKey reads the form that [Key.String] writes.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != hex.EncodedLen(len(k)) {
		return Key{}, fmt.Errorf("key %q has %d characters; a key is %d characters of hex", s, len(s), hex.EncodedLen(len(k)))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return Key{}, fmt.Errorf("key %q is not hex: %w", s, err)
	}
	return k, nil
}

// Identity is everything that makes two requests the same operation.
type Identity struct {
	// Namespace separates installations that share a store.
	Namespace string
	// Scope separates callers and routes; its parts are ordered.
	Scope []string
	// Kind is the kind of source that the ID came from, such as "header".
	Kind string
	// Prefix separates providers: two of them may send the same ID.
	Prefix string
	// ID is the delivery ID or idempotency key as the sender wrote it. If a key has several
	// parts, it is the first one.
	ID string
	// Tuple is a hash over all parts of such a key. It takes the place of the ID in the hash over
	// the whole identity.
	Tuple string
}

// Key derives the key. It also hashes the length of every part and the number of parts of the
// scope: otherwise ("ab", "c") and ("a", "bc") would have the same key.
func (id Identity) Key() Key {
	whole := make([]byte, 0, maxOnStack)
	whole = appendPart(whole, keyVersion)
	whole = appendPart(whole, id.Namespace)
	whole = appendCount(whole, len(id.Scope))
	for _, part := range id.Scope {
		whole = appendPart(whole, part)
	}
	whole = appendPart(whole, id.Kind)
	whole = appendPart(whole, id.Prefix)
	whole = appendPart(whole, cmp.Or(id.Tuple, id.ID))

	key, prefix := Key{}, PrefixFor(id.Namespace, id.ID)
	digest := sha256.Sum256(whole)
	copy(key[:], prefix[:])
	copy(key[idDigest:], digest[:])
	return key
}

// Forced returns the key that names a forced run to the service, which would otherwise take the run for one
// that it has executed. Its prefix is that of the key; the rest is hashed from the key and from the execution
// ID of the run that is replaced, so that it is the same for every attempt to replace that run.
func (k Key) Forced(replaces string) Key {
	parts := appendPart(make([]byte, 0, maxOnStack), forcedVersion)
	parts = appendPart(parts, k[:])
	parts = appendPart(parts, replaces)
	digest := sha256.Sum256(parts)
	copy(k[idDigest:], digest[:])
	return k
}

// KeyPrefix is the prefix of all keys of one ID in one namespace. Keys of another ID have another
// prefix, except with a chance of 1 in 2^64.
type KeyPrefix [idDigest]byte

// PrefixFor returns the prefix of the keys of every [Identity] with this namespace and this ID.
func PrefixFor(namespace, id string) KeyPrefix {
	parts := make([]byte, 0, maxOnStack)
	parts = appendPart(parts, idVersion)
	parts = appendPart(parts, namespace)
	parts = appendPart(parts, id)
	digest := sha256.Sum256(parts)
	return KeyPrefix(digest[:idDigest])
}

// Prefix returns the prefix of the key.
func (k Key) Prefix() KeyPrefix { return KeyPrefix(k[:idDigest]) }

// String returns the prefix in lower-case hex, as [Key.String] starts with it.
func (b KeyPrefix) String() string { return hex.EncodeToString(b[:]) }

// SortPrefixes returns the prefixes in the order of the keys, each once.
func SortPrefixes(prefixes []KeyPrefix) []KeyPrefix {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, func(a, b KeyPrefix) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(prefixes)
}

// ObservedNamespace returns the namespace for keys of requests that are only observed. It is a hash,
// so that no configured namespace equals it.
func ObservedNamespace(namespace string) string {
	digest := sha256.Sum256(appendPart(appendPart(nil, "caddy-dedup observe v1"), namespace))
	return hex.EncodeToString(digest[:])
}

// maxOnStack is how many bytes are hashed without an allocation.
const maxOnStack = 1 << 10

// appendPart appends a text with its length before it, to be hashed.
func appendPart[T string | []byte](to []byte, part T) []byte {
	return append(appendCount(to, len(part)), part...)
}

func appendCount(to []byte, n int) []byte {
	return binary.BigEndian.AppendUint64(to, uint64(n))
}
