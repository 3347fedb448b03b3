package signature

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Config is the configuration of one `verify`.
type Config struct {
	// Provider is a name in the catalogue. Otherwise, Scheme is the scheme.
	Provider string
	Scheme   *Scheme
	// Secrets are in the encoding of the provider, base64 with or without padding. Any of them may
	// match, so that a secret can be rotated.
	Secrets []string
	// PublicKeys are for providers that sign with a private key, instead of Secrets.
	PublicKeys []string
	// URLs are those to which the provider sends, for providers that sign them.
	URLs []string
	// Within is the tolerance of timestamps, in the past and in the future. Nil means the default;
	// 0 accepts any.
	Within *time.Duration
}

// Verifier checks the requests of one provider. It is safe for use by several goroutines.
type Verifier struct {
	row     Provider
	schemes []*runner
}

// Provider returns the name of the provider, "" for a configured scheme.
func (v *Verifier) Provider() string { return v.row.Name }

// Labels returns hashes that identify the secrets and public keys.
func (v *Verifier) Labels() (labels []string) {
	for _, s := range v.schemes {
		labels = append(labels, s.labels...)
	}
	return labels
}

func (v *Verifier) label() string { return cmp.Or(v.row.Name, "hmac") }

// New returns the verifier of a configuration. An error names the position of an invalid secret, key or
// URL, and never its value: a URL may have a password.
func New(config Config) (*Verifier, error) { return newVerifier(config, true) }

// Check checks a configuration whose secrets, public keys and URLs are not known yet, such as
// placeholders.
func (c Config) Check() error {
	_, err := newVerifier(c, false)
	return err
}

// newVerifier is [New] if the secrets, public keys and URLs are known, else [Config.Check].
func newVerifier(config Config, known bool) (*Verifier, error) {
	v := &Verifier{row: Provider{Within: fiveMinutes}}
	switch own := config.Scheme; {
	case (own == nil) == (config.Provider == ""):
		return nil, errors.New("a verifier needs a provider or a scheme, and not both")
	case own != nil:
		if err := own.checkOwn(); err != nil {
			return nil, err
		}
		v.row.schemes = []scheme{{Scheme: *own}}
	default:
		var ok bool
		if v.row, ok = ProviderNamed(config.Provider); !ok {
			return nil, fmt.Errorf("provider %q is unknown", config.Provider)
		}
		if v.row.Reason != "" {
			return nil, fmt.Errorf("requests of %s cannot be verified: %s", config.Provider, v.row.Reason)
		}
	}
	if err := v.check(config, known); err != nil {
		return nil, err
	}
	within, timed := v.row.Within, false
	if config.Within != nil {
		within = *config.Within
	}
	for _, s := range v.row.schemes {
		r, err := s.compile(config.Scheme != nil)
		if err != nil {
			return nil, err
		}
		if r.urls, r.within = config.URLs, within; len(r.urls) == 0 {
			r.urls = []string{""} // no URL is signed
		}
		if known {
			if err := r.addKeys(config, v.label()); err != nil {
				return nil, err
			}
		}
		if !known || len(r.keys)+len(r.publics) > 0 {
			v.schemes = append(v.schemes, r)
			timed = timed || r.timed
		}
	}
	if config.Within != nil && within != 0 && !timed {
		return nil, fmt.Errorf("within needs a signed timestamp, and %s has none", v.label())
	}
	return v, nil
}

// check reports missing, superfluous and invalid settings.
func (v *Verifier) check(config Config, known bool) error {
	needs := func(what string, given []string, needed bool) error {
		if needed && len(given) == 0 {
			return fmt.Errorf("%s needs %s", v.label(), what)
		}
		if !needed && len(given) > 0 {
			return fmt.Errorf("%s has no use for %s", v.label(), what)
		}
		return nil
	}
	if err := cmp.Or(
		needs("a secret", config.Secrets, !v.row.PublicKey()),
		needs("a public_key", config.PublicKeys, v.row.PublicKey()),
		needs("the url to which it sends", config.URLs, config.Scheme == nil && v.row.URL()),
	); err != nil {
		return err
	}
	if v.row.Name == "twilio" && len(config.URLs) > 1 {
		return errors.New("twilio needs one url: path and query are those of the request")
	}
	for i, text := range config.URLs {
		if known && !inURL.MatchString(text) {
			return fmt.Errorf("url %d of %s is not a URL such as https://example.com/webhooks", i+1, v.label())
		}
	}
	if config.Within != nil && *config.Within < 0 {
		return fmt.Errorf("within %s must not be negative", *config.Within)
	}
	return nil
}

// labelOf returns a hash of a secret or a public key.
func labelOf(secret []byte) string {
	sum := sha256.Sum256(append([]byte("caddy-dedup verified by v1 "), secret...))
	return hex.EncodeToString(sum[:16])
}

// addKeys adds the secrets and public keys for this scheme.
func (r *runner) addKeys(config Config, label string) error {
	for i, secret := range config.Secrets {
		if r.takes != nil && !r.takes(secret) {
			continue
		}
		key, err := secretKey(secret, r.SecretEncoding)
		if err != nil {
			return fmt.Errorf("secret %d of %s %w", i+1, label, err)
		}
		r.keys, r.labels = append(r.keys, key), append(r.labels, labelOf(key))
	}
	for i, text := range config.PublicKeys {
		key, err := r.publicKey(text)
		if err != nil {
			return fmt.Errorf("public_key %d of %s %w", i+1, label, err)
		}
		r.publics, r.labels = append(r.publics, key), append(r.labels, labelOf([]byte(text)))
	}
	return nil
}
