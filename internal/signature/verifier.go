package signature

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Config is one `verify` of a handler.
type Config struct {
	// Provider is a name of the catalogue; or Scheme is one of the user's own.
	Provider string
	Scheme   *Scheme
	// Secrets are as they were given; any of them may match, so that one can be replaced by the
	// next. A line end at the end is cut off, and missing padding of base64 is added.
	Secrets []string
	// PublicKeys are in place of secrets for the providers that need them.
	PublicKeys []string
	// URLs are where the provider sends to, for the providers that sign it.
	URLs []string
	// Within is the tolerance of a timestamp, in the past and in the future. Nil is the default,
	// and 0 is none at all.
	Within *time.Duration
}

// Verifier checks the requests of one provider. It is safe for use by several goroutines.
type Verifier struct {
	provider  string
	schemes   []*keyed
	foreign   []string
	challenge challenge
}

// Provider returns the name of the provider, and "" for a scheme of the user's own.
func (v *Verifier) Provider() string { return v.provider }

func (v *Verifier) label() string { return cmp.Or(v.provider, "hmac") }

// keyed is a scheme with the secrets or public keys of a configuration.
type keyed struct {
	*compiled
	keys    [][]byte
	publics []any
	urls    []string
	within  time.Duration
}

// ownWithin is the default tolerance of a scheme of the user's own, if it has a timestamp.
const ownWithin = 5 * time.Minute

// New returns the verifier of a configuration. An error names the position of what is wrong among
// those of its kind, and never a secret, a key or a URL, which may have a password.
func New(config Config) (*Verifier, error) {
	row := provider{within: ownWithin}
	if (config.Provider == "") == (config.Scheme == nil) {
		return nil, errors.New("a verifier needs a provider or a scheme, and not both")
	}
	if config.Scheme != nil {
		row.schemes = []scheme{{Scheme: *config.Scheme}}
		switch config.Scheme.SecretEncoding {
		case "", "text", "hex", "base64":
		default:
			return nil, fmt.Errorf("secret_encoding %q is unknown; it must be text, hex or base64", config.Scheme.SecretEncoding)
		}
	} else if known, err := providerNamed(config.Provider); err != nil {
		return nil, err
	} else {
		row = known
	}
	v := &Verifier{provider: row.name, foreign: row.foreign, challenge: row.challenge}
	if err := row.check(config, v.label()); err != nil {
		return nil, err
	}
	timed := false
	for _, s := range row.schemes {
		c, err := s.compile(config.Scheme == nil)
		if err != nil {
			return nil, err
		}
		k := &keyed{compiled: c, urls: config.URLs, within: row.within}
		if config.Within != nil {
			k.within = *config.Within
		}
		if err := k.addKeys(config, v.label()); err != nil {
			return nil, err
		}
		if len(k.keys)+len(k.publics) > 0 {
			v.schemes = append(v.schemes, k)
			timed = timed || c.timed()
		}
	}
	if config.Within != nil && *config.Within != 0 && !timed {
		return nil, fmt.Errorf("within needs a timestamp that is signed, and %s has none", v.label())
	}
	return v, nil
}

// check says what a configuration has too much or too little of.
func (p provider) check(config Config, label string) error {
	s := p.schemes[0]
	needsURL := s.kind == ofTwilio || strings.Contains(s.Signed, "{url}")
	switch public := s.kind == publicKeyEd25519 || s.kind == publicKeyECDSA; {
	case public && len(config.Secrets) > 0:
		return fmt.Errorf("%s is verified with a public_key, not with a secret", label)
	case public && len(config.PublicKeys) == 0:
		return fmt.Errorf("%s needs a public_key", label)
	case !public && len(config.PublicKeys) > 0:
		return fmt.Errorf("%s is verified with a secret, not with a public_key", label)
	case !public && len(config.Secrets) == 0:
		return fmt.Errorf("%s needs a secret", label)
	case needsURL && len(config.URLs) == 0:
		return fmt.Errorf("%s signs the URL to which it sends, and needs it as url", label)
	case !needsURL && len(config.URLs) > 0:
		return fmt.Errorf("%s does not sign the URL; leave url out", label)
	case s.kind == ofTwilio && len(config.URLs) > 1:
		return fmt.Errorf("%s needs one url, because it signs path and query of the request line behind it", label)
	case config.Within != nil && *config.Within < 0:
		return fmt.Errorf("within %s must not be negative", *config.Within)
	}
	for i, text := range config.URLs {
		if _, _, err := splitOrigin(text); err != nil {
			return fmt.Errorf("url %d of %s %w", i+1, label, err)
		}
	}
	return nil
}

// addKeys adds the secrets and public keys that are of this scheme.
func (k *keyed) addKeys(config Config, label string) error {
	for i, secret := range config.Secrets {
		if k.takes != nil && !k.takes(secret) {
			continue
		}
		key, err := secretKey(secret, k.SecretEncoding)
		if err != nil {
			return fmt.Errorf("secret %d of %s %w", i+1, label, err)
		}
		k.keys = append(k.keys, key)
	}
	for i, text := range config.PublicKeys {
		key, err := publicKey(text, k.kind)
		if err != nil {
			return fmt.Errorf("public_key %d of %s %w", i+1, label, err)
		}
		k.publics = append(k.publics, key)
	}
	return nil
}
