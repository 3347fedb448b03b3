package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

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
