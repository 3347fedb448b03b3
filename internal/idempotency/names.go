package idempotency

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Name is what the record of an operation lies under in the store, with the
// request's fingerprint as it stands there.
type Name struct {
	Key         Key
	Fingerprint string
}

// Names returns the name under which a request claims, and the others under which
// an operation may have a record. Without encryption there is one name, made of
// plain hashes. Under it the hashes are keyed (HMAC, RFC 2104), each name with the
// secret of one key and the first key's first: who reads the store cannot try out
// IDs and bodies. While keys are rotated, processes differ in which key is their
// first, and so in the name under which they claim.
func (s *Sealer) Names(id Identity, fingerprint string) (Name, []Name) {
	if len(s.all()) == 0 {
		return Name{Key: id.Key(), Fingerprint: fingerprint}, nil
	}
	var names []Name
	for _, key := range s.keys {
		names = append(names, Name{
			Key:         id.keyedWith(key.secret),
			Fingerprint: keyedFingerprint(key.secret, fingerprint),
		})
	}
	return names[0], names[1:]
}

// keyedWith is [Identity.Key] with a secret.
func (id Identity) keyedWith(secret []byte) Key {
	h := hmac.New(sha256.New, secret)
	id.write(h)
	return Key(h.Sum(nil))
}

// keyedFingerprint hashes a fingerprint again, with a secret. Its kind stays
// before it.
func keyedFingerprint(secret []byte, fingerprint string) string {
	kind, _, taken := strings.Cut(fingerprint, ":")
	if !taken {
		return fingerprint
	}
	h := hmac.New(sha256.New, secret)
	writePart(h, fingerprintVersion)
	writePart(h, fingerprint)
	return kind + ":" + hex.EncodeToString(h.Sum(nil))
}
