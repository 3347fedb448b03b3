package signature

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// The encodings of secrets that only the catalogue uses.
const (
	secretWhsec       = "whsec"         // base64, with or without the prefix whsec_
	secretWhsecOrText = "whsec or text" // base64 with the prefix whsec_, else text
	secretUser        = "user:password" // for Basic authentication
)

const whsec = "whsec_"

// secretKey decodes a configured secret. No error quotes it.
func secretKey(secret, encoding string) (key []byte, err error) {
	rest, prefixed := strings.CutPrefix(secret, whsec)
	switch {
	case encoding == "hex":
		if key, err = hex.DecodeString(secret); err != nil {
			return nil, errors.New("is not in hex, two digits a byte")
		}
	case encoding == "base64":
		key, err = fromBase64(secret)
	case encoding == secretWhsec, encoding == secretWhsecOrText && prefixed:
		key, err = fromBase64(rest)
	default:
		key = []byte(secret)
	}
	switch {
	case err == nil && len(key) == 0:
		return nil, errors.New("is empty")
	case encoding == secretUser && !strings.Contains(secret, ":"):
		return nil, errors.New("has no colon; it must be user:password")
	}
	return key, err
}

// fromBase64 decodes base64 with or without its padding.
func fromBase64(text string) ([]byte, error) {
	bytes, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(text, "="))
	if err != nil || strings.ContainsAny(text, "\r\n") { // the decoder ignores line ends
		return nil, errors.New("is not in base64")
	}
	return bytes, nil
}

// publicKey reports whether a signature is valid for a message.
type publicKey func(message, signature []byte) bool

// ed25519Key parses a public key in hex.
func ed25519Key(text string) (publicKey, error) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("is not an Ed25519 key in hex, which has 64 digits")
	}
	return func(message, signature []byte) bool { return ed25519.Verify(key, message, signature) }, nil
}

// ecdsaKey parses a public key on P-256, in base64 of DER.
func ecdsaKey(text string) (publicKey, error) {
	der, err := fromBase64(text)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, is := parsed.(*ecdsa.PublicKey)
	if err != nil || !is || key.Curve != elliptic.P256() {
		return nil, errors.New("is not an ECDSA key on P-256 in base64, as the provider shows it")
	}
	return func(message, signature []byte) bool {
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], signature)
	}, nil
}
