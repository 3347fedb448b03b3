package signature

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// whsec is in front of secrets of Standard Webhooks, and of some that are not in base64.
const whsec = "whsec_"

// secretKey returns the bytes of a secret as it was given. No error quotes it.
func secretKey(secret, encoding string) ([]byte, error) {
	secret = trimLineEnd(secret)
	if secret == "" {
		return nil, errors.New("is empty")
	}
	rest, prefixed := strings.CutPrefix(secret, whsec)
	var key []byte
	var err error
	switch {
	case encoding == "hex":
		if key, err = hex.DecodeString(secret); err != nil {
			err = errors.New("is not in hex, two digits a byte")
		}
	case encoding == "base64":
		key, err = fromBase64(secret)
	case encoding == secretWhsec, encoding == secretWhsecOrText && prefixed:
		key, err = fromBase64(rest)
	case encoding == secretUser && !strings.Contains(secret, ":"):
		err = errors.New("has no colon; it must be user:password")
	default:
		key = []byte(secret)
	}
	if err == nil && len(key) == 0 {
		err = errors.New("is empty")
	}
	return key, err
}

// trimLineEnd cuts off the line end of a file with one line.
func trimLineEnd(text string) string {
	if line, ended := strings.CutSuffix(text, "\n"); ended {
		return strings.TrimSuffix(line, "\r")
	}
	return text
}

// fromBase64 decodes base64 with or without its padding.
func fromBase64(text string) ([]byte, error) {
	bytes, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(text, "="))
	if err != nil || strings.ContainsAny(text, "\r\n") { // which the decoder skips
		return nil, errors.New("is not in base64")
	}
	return bytes, nil
}

// publicKey reads a public key: an ed25519.PublicKey from hex, or an *ecdsa.PublicKey on P-256
// from base64 of its DER form.
func publicKey(text string, k kind) (any, error) {
	text = trimLineEnd(text)
	if k == publicKeyEd25519 {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, errors.New("is not an Ed25519 key in hex, which has 64 digits")
		}
		return ed25519.PublicKey(key), nil
	}
	der, err := fromBase64(text)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if key, is := parsed.(*ecdsa.PublicKey); err == nil && is && key.Curve == elliptic.P256() {
		return key, nil
	}
	return nil, errors.New("is not an ECDSA key on P-256 in base64, as the provider shows it")
}
