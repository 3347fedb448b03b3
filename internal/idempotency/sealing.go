package idempotency

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
)

// SealingKeySize is the size of a key that a [Sealer] takes, in bytes: that of
// AES-256.
const SealingKeySize = 32

// Sealer encrypts what a store need not read of a key: the responses of its runs
// and the delivery ID of its record. It is AES-256-GCM with a random nonce of 96
// bits. Every record has a key of its own, derived from the configured one (HKDF,
// RFC 5869), so that the number of messages after which random nonces would
// repeat is never reached. The record's key and, for a response, the run's token
// are bound as additional data: what was moved to another place does not open.
//
// The first of its keys seals; all of them open. A nil Sealer seals nothing, and
// opens nothing that is sealed.
type Sealer struct{ keys []sealingKey }

// sealingKey is one configured key and what is derived from it.
type sealingKey struct {
	// id names the key beside what it has sealed. It says nothing of the key.
	id string
	// root is what the records' own keys are derived from.
	root []byte
	// secret is the one of the hashes (names.go).
	secret []byte
}

// Labels of what is derived and bound. A new form has a new label.
const (
	keyIDLabel          = "caddy-dedup encryption key ID v1"
	hashSecretLabel     = "caddy-dedup hash secret v1"
	recordKeyLabel      = "caddy-dedup record encryption v1"
	sealedIDLabel       = "caddy-dedup delivery ID v1"
	sealedResponseLabel = "caddy-dedup response v1"
)

// keyIDSize is that of a key's ID, in bytes. It need only tell a few keys apart.
const keyIDSize = 8

// NewSealer returns a sealer of these keys, nil without any. A key of another
// size than [SealingKeySize], or one that stands twice, is an error that names
// its place, counted from 1, and never the key.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	s := new(Sealer)
	for i, key := range keys {
		if len(key) != SealingKeySize {
			return nil, fmt.Errorf("key %d has %d bytes; a key has %d", i+1, len(key), SealingKeySize)
		}
		next := newSealingKey(key)
		for j, other := range s.keys {
			if other.id == next.id {
				return nil, fmt.Errorf("keys %d and %d are the same; each key stands once", j+1, i+1)
			}
		}
		s.keys = append(s.keys, next)
	}
	return s, nil
}

func newSealingKey(key []byte) sealingKey {
	id := sha256.Sum256(append([]byte(keyIDLabel), key...))
	root, err := hkdf.Extract(sha256.New, key, nil)
	if err != nil {
		panic("idempotency: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return sealingKey{
		id:     hex.EncodeToString(id[:keyIDSize]),
		root:   root,
		secret: derive(root, hashSecretLabel),
	}
}

func derive(root []byte, label string) []byte {
	key, err := hkdf.Expand(sha256.New, root, label, SealingKeySize)
	if err != nil {
		panic("idempotency: deriving from a key: " + err.Error()) // only a wrong size is an error
	}
	return key
}

// KeyIDs name the keys in their order, for logs. They say nothing of the keys.
func (s *Sealer) KeyIDs() []string {
	var ids []string
	for _, key := range s.all() {
		ids = append(ids, key.id)
	}
	return ids
}

func (s *Sealer) all() []sealingKey {
	if s == nil {
		return nil
	}
	return s.keys
}

// cipher returns the one of a record.
func (k sealingKey) cipher(record Key) cipher.AEAD {
	block, err := aes.NewCipher(derive(k.root, recordKeyLabel+string(record[:])))
	if err != nil {
		panic("idempotency: AES: " + err.Error()) // only a wrong size is an error
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("idempotency: GCM: " + err.Error()) // only another cipher than AES is an error
	}
	return aead
}

// binding is the additional data of what is sealed. Labels and record keys are of
// fixed lengths: nothing else reads as the same.
func binding(label string, record Key, token string) []byte {
	return append(append([]byte(label), record[:]...), token...)
}

var errSealedOff = errors.New("it is encrypted, and no key is configured with encrypt")

// open returns the text that the key with this ID has sealed.
func (s *Sealer) open(keyID string, record Key, bound, sealed []byte) ([]byte, error) {
	if len(s.all()) == 0 {
		return nil, errSealedOff
	}
	for _, key := range s.keys {
		if key.id != keyID {
			continue
		}
		text, err := key.cipher(record).Open(nil, nil, sealed, bound)
		if err != nil {
			return nil, fmt.Errorf("it does not open with the encryption key %s: it was changed, or belongs to another record", keyID)
		}
		return text, nil
	}
	return nil, fmt.Errorf("it is encrypted with the key %q, which is not configured; those of encrypt are %q", keyID, s.KeyIDs())
}

// sealResponse returns the response that is stored in place of the given one. Its
// status stays readable, for operators.
func (s *Sealer) sealResponse(record Key, token string, r *Response) *Response {
	if len(s.all()) == 0 || r == nil {
		return r
	}
	first := s.keys[0]
	text := EncodeResponse(record, token, r)
	return &Response{
		Status:   r.Status,
		SealedBy: first.id,
		Body:     first.cipher(record).Seal(nil, nil, text, binding(sealedResponseLabel, record, token)),
	}
}

// openResponse returns the response that [Sealer.sealResponse] was given; one
// that is not sealed comes back as it is.
func (s *Sealer) openResponse(record Key, token string, r *Response) (*Response, error) {
	if r == nil || r.SealedBy == "" {
		return r, nil
	}
	text, err := s.open(r.SealedBy, record, binding(sealedResponseLabel, record, token), r.Body)
	if err != nil {
		return nil, err
	}
	return DecodeResponse(record, token, text)
}

// idEncoding is how a sealed delivery ID is written. It is strict: no two texts
// are the same ID.
var idEncoding = base64.RawStdEncoding.Strict()

// sealID returns a delivery ID in the form in which it is stored, and the ID of
// the key that has sealed it; "" where nothing is sealed.
func (s *Sealer) sealID(record Key, deliveryID string) (stored, keyID string) {
	if len(s.all()) == 0 || deliveryID == "" {
		return deliveryID, ""
	}
	first := s.keys[0]
	sealed := first.cipher(record).Seal(nil, nil, []byte(deliveryID), binding(sealedIDLabel, record, ""))
	return idEncoding.EncodeToString(sealed), first.id
}

// sealRecord returns the record with its delivery ID sealed, and with that of the
// one it is to replace. What is sealed already stays as it is.
func (s *Sealer) sealRecord(key Key, r *Record) *Record {
	if len(s.all()) == 0 || r == nil {
		return r
	}
	next := *r
	if r.SealedBy == "" {
		next.DeliveryID, next.SealedBy = s.sealID(key, r.DeliveryID)
	}
	next.Replaces = s.sealRecord(key, r.Replaces)
	return &next
}

// openRecord returns the record with what is sealed of it opened, as far as that
// goes: what does not open stays sealed, and the error says why.
func (s *Sealer) openRecord(key Key, r *Record) (*Record, error) {
	if r == nil || r.SealedBy == "" && r.Replaces == nil {
		return r, nil
	}
	next := *r
	var errs [2]error
	if r.SealedBy != "" {
		var id []byte
		if id, errs[0] = s.openID(key, r); errs[0] == nil {
			next.DeliveryID, next.SealedBy = string(id), ""
		}
	}
	next.Replaces, errs[1] = s.openRecord(key, r.Replaces)
	return &next, errors.Join(errs[:]...)
}

func (s *Sealer) openID(key Key, r *Record) ([]byte, error) {
	sealed, err := idEncoding.DecodeString(r.DeliveryID)
	if err != nil {
		return nil, fmt.Errorf("its encrypted delivery ID: %w", err)
	}
	id, err := s.open(r.SealedBy, key, binding(sealedIDLabel, key, ""), sealed)
	if err != nil {
		return nil, fmt.Errorf("its delivery ID: %w", err)
	}
	return id, nil
}
