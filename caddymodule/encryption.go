package caddymodule

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/seal"
	"github.com/caddyserver/caddy/v2"
)

// keyPlaceholder is where an encryption key may come from. A key in the
// configuration itself would lie in its backups, in the admin API's answers and in
// Caddy's autosave.
var keyPlaceholder = regexp.MustCompile(`^\{(env|file)\.[^{}]+\}$`)

// checkEncryptionKey refuses what is no placeholder. It does not show it, for it
// may be a key.
func checkEncryptionKey(i int, text string) error {
	if !keyPlaceholder.MatchString(text) {
		return fmt.Errorf("encrypt: argument %d is not one placeholder {env.NAME} or {file./path}; keys do not stand in the configuration", i+1)
	}
	return nil
}

// checkEncryptionKeys checks the places of all keys.
func checkEncryptionKeys(texts []string) error {
	for i, text := range texts {
		if err := checkEncryptionKey(i, text); err != nil {
			return err
		}
		if slices.Contains(texts[:i], text) {
			return fmt.Errorf("encrypt: %s stands twice", text)
		}
	}
	return nil
}

// newSealer reads the keys. Errors name their placeholders, and never a value.
func newSealer(texts []string) (*seal.Sealer, error) {
	if err := checkEncryptionKeys(texts); err != nil {
		return nil, err
	}
	var keys [][]byte
	for _, text := range texts {
		key, err := encryptionKey(caddy.NewReplacer().ReplaceAll(text, ""))
		if err != nil {
			return nil, fmt.Errorf("encrypt: %s %w; a key is %d random bytes in base64, such as `openssl rand -base64 %[3]d` prints",
				text, err, seal.KeySize)
		}
		keys = append(keys, key)
	}
	sealer, err := seal.New(keys...)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return sealer, nil
}

// encryptionKey decodes a key. Both alphabets of base64 are accepted (RFC 4648,
// sections 4 and 5), with padding or without, and white space around it.
func encryptionKey(text string) ([]byte, error) {
	text = strings.TrimRight(strings.TrimSpace(text), "=")
	if text == "" {
		return nil, errors.New("is empty")
	}
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	key, err := base64.RawStdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("has %d characters that are not base64", len(text))
	case len(key) != seal.KeySize:
		return nil, fmt.Errorf("has %d bytes in base64", len(key))
	}
	return key, nil
}
