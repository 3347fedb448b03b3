// Package seal encrypts what a store need not read of a key: responses, delivery
// IDs and fingerprints. A [Sealer] has the keys; a [Store] stands around a store
// and seals what goes into it.
//
// A key's name does not depend on encryption. So turning encryption on or off, or
// replacing a key, forgets nothing; and who must not guess names has a secret
// namespace.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// KeySize is the size of a key that a [Sealer] takes, in bytes: that of AES-256.
const KeySize = 32

// Sealer encrypts with AES-256-GCM and a random nonce of 96 bits. Every record has
// a key of its own, derived from the configured one (HKDF, RFC 5869), so that the
// number of messages after which random nonces would repeat is never reached. The
// record's key and, for a response, the run's token are bound as additional data:
// what was moved to another place does not open.
//
// The first of its keys seals; all of them open. A nil Sealer seals nothing, and
// opens nothing that is sealed.
type Sealer struct{ keys []key }

// key is one configured key and what is derived from it.
type key struct {
	// id names the key beside what it has sealed. It says nothing of the key.
	id string
	// root is what the records' own keys are derived from.
	root []byte
	// fingerprints is the secret with which fingerprints are hashed.
	fingerprints []byte
}

// Labels of what is derived and bound. A new form has a new label.
const (
	keyIDLabel          = "caddy-dedup encryption key ID v1"
	fingerprintLabel    = "caddy-dedup fingerprint secret v1"
	recordKeyLabel      = "caddy-dedup record encryption v1"
	sealedIDLabel       = "caddy-dedup delivery ID v1"
	sealedResponseLabel = "caddy-dedup response v1"
)

// keyIDSize is that of a key's ID, in bytes. It need only tell a few keys apart.
const keyIDSize = 8

// New returns a sealer of these keys, nil without any. A key of another size than
// [KeySize], or one that stands twice, is an error that names its place, counted
// from 1, and never the key.
func New(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	s := new(Sealer)
	for i, secret := range keys {
		if len(secret) != KeySize {
			return nil, fmt.Errorf("key %d has %d bytes; a key has %d", i+1, len(secret), KeySize)
		}
		next := newKey(secret)
		for j, other := range s.keys {
			if other.id == next.id {
				return nil, fmt.Errorf("keys %d and %d are the same; each key stands once", j+1, i+1)
			}
		}
		s.keys = append(s.keys, next)
	}
	return s, nil
}

func newKey(secret []byte) key {
	id := sha256.Sum256(append([]byte(keyIDLabel), secret...))
	root, err := hkdf.Extract(sha256.New, secret, nil)
	if err != nil {
		panic("seal: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return key{
		id:           hex.EncodeToString(id[:keyIDSize]),
		root:         root,
		fingerprints: derive(root, fingerprintLabel),
	}
}

func derive(root []byte, label string) []byte {
	secret, err := hkdf.Expand(sha256.New, root, label, KeySize)
	if err != nil {
		panic("seal: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return secret
}

// KeyIDs name the keys in their order, for logs. They say nothing of the keys.
func (s *Sealer) KeyIDs() []string {
	var ids []string
	for _, key := range s.all() {
		ids = append(ids, key.id)
	}
	return ids
}

func (s *Sealer) all() []key {
	if s == nil {
		return nil
	}
	return s.keys
}

// keyNamed returns the key with this ID. The error says that it is not configured.
func (s *Sealer) keyNamed(id string) (key, error) {
	if len(s.all()) == 0 {
		return key{}, errors.New("it is encrypted, and no key is configured with encrypt")
	}
	for _, key := range s.keys {
		if key.id == id {
			return key, nil
		}
	}
	return key{}, fmt.Errorf("it is encrypted with the key %q, which is not configured; those of encrypt are %q", id, s.KeyIDs())
}

// Fingerprints returns a request's fingerprint in all forms in which an earlier
// claim of the record may have written it, the one for a new claim first: hashed
// with the secret of each key (HMAC, RFC 2104) together with the record's key, and
// plain, as it was before encryption was turned on. A keyed form names its key
// behind its kind: "body/<key ID>:<hash>". It is empty for an empty fingerprint.
func (s *Sealer) Fingerprints(record idempotency.Key, fingerprint string) []string {
	if fingerprint == "" {
		return nil
	}
	kind, _, _ := strings.Cut(fingerprint, ":")
	var forms []string
	for _, key := range s.all() {
		h := hmac.New(sha256.New, key.fingerprints)
		h.Write(record[:]) // of a fixed size: nothing else reads as the same
		h.Write([]byte(fingerprint))
		forms = append(forms, kind+"/"+key.id+":"+hex.EncodeToString(h.Sum(nil)))
	}
	return append(forms, fingerprint)
}

// keyOfFingerprint returns the ID of the key in a fingerprint's form, "" for a
// plain one.
func keyOfFingerprint(fingerprint string) string {
	form, _, _ := strings.Cut(fingerprint, ":")
	_, id, _ := strings.Cut(form, "/")
	return id
}

// check says why a record cannot be read with these keys.
func (s *Sealer) check(r *idempotency.Record) error {
	if r == nil {
		return nil
	}
	for _, id := range []string{r.SealedBy, keyOfFingerprint(r.Fingerprint)} {
		if id == "" {
			continue
		}
		if _, err := s.keyNamed(id); err != nil {
			return err
		}
	}
	return nil
}

// cipherOf returns the cipher of one record.
func (k key) cipherOf(record idempotency.Key) cipher.AEAD {
	block, err := aes.NewCipher(derive(k.root, recordKeyLabel+string(record[:])))
	if err != nil {
		panic("seal: AES: " + err.Error()) // only a wrong size is an error
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("seal: GCM: " + err.Error()) // only another cipher than AES is an error
	}
	return aead
}

// binding is the additional data of what is sealed. Labels and record keys are of
// fixed lengths: nothing else reads as the same.
func binding(label string, record idempotency.Key, token string) []byte {
	return append(append([]byte(label), record[:]...), token...)
}

// open returns the text that the key with this ID has sealed.
func (s *Sealer) open(keyID string, record idempotency.Key, bound, sealed []byte) ([]byte, error) {
	key, err := s.keyNamed(keyID)
	if err != nil {
		return nil, err
	}
	text, err := key.cipherOf(record).Open(nil, nil, sealed, bound)
	if err != nil {
		return nil, fmt.Errorf("it does not open with the encryption key %s: it was changed, or belongs to another record", keyID)
	}
	return text, nil
}

// sealResponse returns the response that is stored in place of the given one. Its
// status stays readable, for operators.
func (s *Sealer) sealResponse(record idempotency.Key, token string, r *idempotency.Response) *idempotency.Response {
	if len(s.all()) == 0 || r == nil {
		return r
	}
	first := s.keys[0]
	text := idempotency.EncodeResponse(record, token, r)
	return &idempotency.Response{
		Status:   r.Status,
		SealedBy: first.id,
		Body:     first.cipherOf(record).Seal(nil, nil, text, binding(sealedResponseLabel, record, token)),
	}
}

// openResponse returns the response that [Sealer.sealResponse] was given; one
// that is not sealed comes back as it is.
func (s *Sealer) openResponse(record idempotency.Key, token string, r *idempotency.Response) (*idempotency.Response, error) {
	if r == nil || r.SealedBy == "" {
		return r, nil
	}
	text, err := s.open(r.SealedBy, record, binding(sealedResponseLabel, record, token), r.Body)
	if err != nil {
		return nil, err
	}
	return idempotency.DecodeResponse(record, token, text)
}

// idEncoding is how a sealed delivery ID is written. It is strict: no two texts
// are the same ID.
var idEncoding = base64.RawStdEncoding.Strict()

// sealID returns a delivery ID in the form in which it is stored, and the ID of
// the key that has sealed it; "" where nothing is sealed.
func (s *Sealer) sealID(record idempotency.Key, deliveryID string) (stored, keyID string) {
	if len(s.all()) == 0 {
		return deliveryID, ""
	}
	first := s.keys[0]
	sealed := first.cipherOf(record).Seal(nil, nil, []byte(deliveryID), binding(sealedIDLabel, record, ""))
	return idEncoding.EncodeToString(sealed), first.id
}

// openRecord returns the record as operators read it, with its delivery ID opened,
// and that of the record which it is to replace.
func (s *Sealer) openRecord(record idempotency.Key, r *idempotency.Record) (*idempotency.Record, error) {
	if err := s.check(r); err != nil || r == nil {
		return nil, err
	}
	opened := *r
	if r.SealedBy != "" {
		sealed, err := idEncoding.DecodeString(r.DeliveryID)
		if err != nil {
			return nil, fmt.Errorf("its encrypted delivery ID: %w", err)
		}
		id, err := s.open(r.SealedBy, record, binding(sealedIDLabel, record, ""), sealed)
		if err != nil {
			return nil, fmt.Errorf("its delivery ID: %w", err)
		}
		opened.DeliveryID, opened.SealedBy = string(id), ""
	}
	replaced, err := s.openRecord(record, r.Replaces)
	if err != nil {
		return nil, fmt.Errorf("the record that it replaces: %w", err)
	}
	opened.Replaces = replaced
	return &opened, nil
}
