package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// Verify is how the signatures of one sender are checked. Exactly one of `provider` and `hmac` must
// be set.
type Verify struct {
	// The name of a provider in `providers`.
	Provider string `json:"provider,omitempty"`

	// The scheme of a sender that has no name here, for `keys`. One handler can have one.
	HMAC *HMAC `json:"hmac,omitempty"`

	// The secrets. Each is a placeholder, `{env.*}` or `{file.*}`, which is read when the
	// configuration is loaded; an empty one is an error. Any of them may match, so that one can
	// be replaced by the next. For Basic authentication it is `user:password`.
	Secrets []string `json:"secrets,omitempty"`

	// The public keys, for providers that sign with a private key.
	PublicKeys []string `json:"public_keys,omitempty"`

	// The public URLs to which the provider sends, if it signs them: for square the whole URL,
	// for twilio its origin.
	URLs []string `json:"urls,omitempty"`

	// The tolerance of the timestamp, in the past and in the future, if one is signed. 0 accepts
	// any (`off` in a Caddyfile). Default: that of the provider, and 5 minutes for `hmac`.
	Within *caddy.Duration `json:"within,omitempty"`
}

// HMAC is a signature by a keyed hash over the body.
type HMAC struct {
	// The header field with the signature.
	Header string `json:"header,omitempty"`

	// How the field's value is written, such as `sha256={signature}`, or
	// `t={timestamp},v1={signature}` for entries in any order, of which that of the signature may
	// repeat. Default: `{signature}`.
	Format string `json:"format,omitempty"`

	// The hash: `sha256`, `sha1` or `sha512`. Default: `sha256`.
	Algorithm string `json:"algorithm,omitempty"`

	// The encoding of the signature: `hex` or `base64`. Default: `hex`.
	Encoding string `json:"encoding,omitempty"`

	// The encoding of the secrets: `text`, `hex` or `base64`. Default: `text`.
	SecretEncoding string `json:"secret_encoding,omitempty"`

	// The bytes that are signed, with the placeholders `{body}`, which has to be there,
	// `{timestamp}` and `{http.request.header.<field>}`. Default: `{body}`.
	Signed string `json:"signed,omitempty"`

	// The header field with the timestamp, if `format` has none.
	Timestamp string `json:"timestamp,omitempty"`

	// The unit of the timestamp: `s`, `ms` or `rfc3339`. Default: `s`.
	TimestampUnit string `json:"timestamp_unit,omitempty"`
}

const (
	verifyWord = "verify"
	hmacWord   = "hmac"
)

// verifyForms are the arguments of verify.
const verifyForms = "[<provider>] and secrets such as {env.NAME} or {file./path}, <provider> { ... } or hmac { ... }"

// verifySetting adds a sender. For JSON, [Settings.check] checks all of them.
var verifySetting = word[Settings]{
	parse: func(s *Settings, d *caddyfile.Dispenser) error {
		at := *d
		v, err := s.parseVerify(d)
		s.Verify = append(s.Verify, v)
		if err == nil {
			if err = v.check(); err != nil {
				err = errorAt(&at, "%s: %w", verifyWord, err)
			}
		}
		return hideArguments(at, err) // one written as {$SECRET} has been replaced by its value
	},
	check:   anyValue[*Settings],
	isUnset: func(*Settings) bool { return true },
	repeats: true,
}

var withinSetting = periodOrOff(time.Second, "a duration such as 5m", func(v *Verify) **caddy.Duration { return &v.Within })

// verifyBlock has the words of `verify <provider>`.
var verifyBlock = block[Verify]{
	"secret":     hidden("secrets such as {env.NAME} or {file./path}", func(v *Verify) *[]string { return &v.Secrets }),
	"public_key": hidden("public keys", func(v *Verify) *[]string { return &v.PublicKeys }),
	"url":        hidden("the URL to which the provider sends", func(v *Verify) *[]string { return &v.URLs }),
	"within":     withinSetting,
}

// hmacBlock has the words of `verify hmac`.
var hmacBlock = block[Verify]{
	"secret":          verifyBlock["secret"],
	"within":          withinSetting,
	"header":          text("the name of a header field", func(v *Verify) *string { return &v.HMAC.Header }, anyValue),
	"format":          text("a text such as sha256={signature}", func(v *Verify) *string { return &v.HMAC.Format }, anyValue),
	"algorithm":       choice(func(v *Verify) *string { return &v.HMAC.Algorithm }, "sha256", "sha1", "sha512"),
	"encoding":        choice(func(v *Verify) *string { return &v.HMAC.Encoding }, "hex", "base64"),
	"secret_encoding": choice(func(v *Verify) *string { return &v.HMAC.SecretEncoding }, "text", "hex", "base64"),
	"signed":          text("a text with {body}, such as {timestamp}.{body}", func(v *Verify) *string { return &v.HMAC.Signed }, anyValue),
	"timestamp": {
		parse:   parseTimestamp,
		check:   func(*Verify) error { return nil },
		isUnset: func(v *Verify) bool { return v.HMAC.Timestamp == "" && v.HMAC.TimestampUnit == "" },
	},
}

// timestampUnits are the units of `timestamp`.
var timestampUnits = []string{"s", "ms", "rfc3339"}

// parseTimestamp reads `timestamp [<field>] [s|ms|rfc3339]`.
func parseTimestamp(v *Verify, d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if n := len(args); n > 0 && slices.Contains(timestampUnits, args[n-1]) {
		v.HMAC.TimestampUnit, args = args[n-1], args[:n-1]
	}
	if len(args) > 1 || len(args) == 0 && v.HMAC.TimestampUnit == "" {
		return errorAt(d, "timestamp takes the name of a header field, %s, or both; it has %q", delivery.Alternatives(timestampUnits), args)
	}
	v.HMAC.Timestamp = strings.Join(args, "")
	return noBlock(d, "timestamp")
}

// parseVerify reads one line `verify …`. No error shows an argument: a secret that was written as
// {$NAME} has been replaced by then.
func (s *Settings) parseVerify(d *caddyfile.Dispenser) (v Verify, err error) {
	at, args := *d, d.RemainingArgs()
	words := verifyBlock
	switch {
	case len(args) == 0:
		return v, errorAt(&at, "verify lacks its arguments; use %s", verifyForms)
	case args[0] == hmacWord:
		if v.HMAC, words = new(HMAC), hmacBlock; len(args) > 1 {
			return v, errorAt(&at, "verify hmac takes a block and no arguments; it has %d", len(args)-1)
		}
	case secretPlaceholder.MatchString(args[0]):
		if len(s.Providers) != 1 {
			return v, errorAt(&at, "verify names no provider, and the handler has %d; use verify <provider> and its secret for each, and verify hmac { ... } for key lines", len(s.Providers))
		}
		args = slices.Insert(args, 0, s.Providers[0])
		fallthrough
	default:
		p, known := signature.ProviderNamed(args[0])
		if v.Provider = args[0]; !known {
			return v, errorAt(&at, "argument 1 of verify is neither a provider nor one placeholder {env.NAME} or {file./path}, and is not shown because it may be a secret; secrets must not be in the configuration; use %s", verifyForms)
		}
		if len(args) > 1 && p.PublicKey() {
			v.PublicKeys = args[1:]
		} else if len(args) > 1 {
			v.Secrets = args[1:]
		}
	}
	if len(args) > 1 {
		return v, noBlock(d, verifyWord)
	}
	_, err = words.parse(d, verifyWord, &v)
	return v, err
}

// check returns what is wrong with one sender, before its placeholders are replaced.
func (v Verify) check() error {
	words := verifyBlock
	switch {
	case (v.Provider == "") == (v.HMAC == nil):
		return errors.New("it takes exactly one of provider and hmac")
	case v.HMAC != nil && v.HMAC.Header == "":
		return errors.New("header is missing; write the field that has the signature, such as header X-Signature")
	case v.HMAC != nil:
		words = hmacBlock
	}
	if err := words.check(&v); err != nil {
		return err
	}
	for i, secret := range v.Secrets {
		switch {
		case !secretPlaceholder.MatchString(secret):
			return fmt.Errorf("secret %d is not one placeholder {env.NAME} or {file./path}, and is not shown; secrets must not be in the configuration", i+1)
		case slices.Contains(v.Secrets[:i], secret):
			return fmt.Errorf("secret %s is named twice", secret)
		}
	}
	return v.config().Check()
}

// config converts a sender. Its placeholders stay.
func (v Verify) config() signature.Config {
	c := signature.Config{Provider: v.Provider, Secrets: v.Secrets, PublicKeys: v.PublicKeys, URLs: v.URLs}
	if v.Within != nil {
		c.Within = new(duration(*v.Within))
	}
	if h := v.HMAC; h != nil {
		c.Scheme = &signature.Scheme{
			Header: h.Header, Format: h.Format, Algorithm: h.Algorithm, Encoding: h.Encoding,
			SecretEncoding: h.SecretEncoding, Signed: h.Signed, TimeHeader: h.Timestamp, Unit: h.TimestampUnit,
		}
	}
	return c
}

// verifier reads the secrets. Errors name a placeholder or a position, and never a value.
func (v Verify) verifier() (*signature.Verifier, error) {
	c := v.config()
	for _, setting := range []struct {
		name   string
		values *[]string
	}{{"secret", &c.Secrets}, {"public_key", &c.PublicKeys}, {"url", &c.URLs}} {
		values, err := replaceAll(replacePlaceholders, setting.name, *setting.values)
		if err != nil {
			return nil, err
		}
		*setting.values = values
	}
	return signature.New(c)
}

// checkSenders finds senders that the handler cannot tell apart, or that nothing verifies.
func (s *Settings) checkSenders() error {
	if len(s.Verify) == 0 {
		return delivery.CheckDistinct(s.Providers)
	}
	var verified []string
	for _, v := range s.Verify {
		switch name := v.Provider; {
		case slices.Contains(verified, name) && name == "":
			return conflictf(verifyWord, "verify hmac is repeated; write it once, and use a handler of its own for another sender")
		case slices.Contains(verified, name):
			return conflictf(verifyWord, "verify %s is repeated; write all its secrets in one", name)
		case name == "" && len(s.Providers) > 0 && len(s.Keys) == 0:
			return conflictf(verifyWord, "verify hmac is for the key lines, and the handler has none; add one, or remove it")
		case name != "" && !slices.Contains(s.Providers, name):
			return conflictf(verifyWord, "verify %s: the handler does not serve %s; add %[1]s behind dedup, or remove the line", name, name)
		}
		verified = append(verified, v.Provider)
	}
	for _, name := range s.Providers {
		if !slices.Contains(verified, name) {
			return conflictf(verifyWord, "verify: nothing verifies the requests of %s, by which anybody could get past; add verify %[1]s and its secret, or use two handlers", name)
		}
	}
	if (len(s.Keys) > 0 || len(s.Providers) == 0) && !slices.Contains(verified, "") {
		return conflictf(verifyWord, "verify: nothing verifies the requests of the key lines, by which anybody could get past; add verify hmac { ... }, or use two handlers")
	}
	if len(s.Methods) > 0 {
		return conflictf("methods "+verifyWord, "methods: beside verify, every signed request is deduplicated, whatever its method; leave methods out")
	}
	if s.Force != "" {
		return conflictf("force "+verifyWord, "force: beside verify, a captured request could be run again; use a handler without verify, or leave force out")
	}
	return nil
}

// verification reads the secrets of all senders. It returns nil if none is verified.
func (s *Settings) verification() (*identify.Verification, error) {
	if len(s.Verify) == 0 {
		return nil, nil
	}
	v := &identify.Verification{Senders: make(map[string]*identify.Sender)}
	for _, sender := range s.Verify {
		verifier, err := sender.verifier()
		if err != nil {
			return nil, named(verifyWord+" "+cmp.Or(sender.Provider, hmacWord), err)
		}
		of := &Settings{Keys: s.Keys}
		if sender.Provider != "" {
			of = &Settings{Providers: []string{sender.Provider}}
		}
		v.Verifiers = append(v.Verifiers, verifier)
		v.Senders[sender.Provider] = of.signedSender()
		v.Senders[sender.Provider].SignedCaller = sender.signedCaller()
	}
	return v, nil
}

// signedSender returns the only sender of the settings, whose requests are known by their signatures.
// Other signs of it could be left out by a forger, to have a captured delivery pass without a key; and
// a header field, which is not signed, makes no handshake.
func (s *Settings) signedSender() *identify.Sender {
	sender := &identify.Sender{Sources: s.deliverySources(), Providers: s.providers(), Unsigned: s.deliverySources()}
	for i := range sender.Sources {
		sender.Sources[i].Signs = delivery.Signs{}
	}
	for i, p := range sender.Providers {
		var passes []delivery.Pass
		for _, pass := range p.Passes {
			if pass.Header != "" {
				pass = delivery.Pass{Pointer: pass.SignedPointer}
			}
			if pass.Pointer != "" {
				passes = append(passes, pass)
			}
		}
		sender.Providers[i].Signs, sender.Providers[i].Passes = delivery.Signs{}, passes
	}
	return sender
}

// unsignedCaller returns the line `signed` to write if a captured request could run again with another
// caller: in mode api, where a sender signs none of the caller's fields, or not those of `caller`. It is ""
// otherwise.
func (s *Settings) unsignedCaller() string {
	if len(s.Verify) == 0 || s.mode() != delivery.ModeAPI || len(s.Scope) > 0 {
		return ""
	}
	for _, v := range s.Verify {
		unsigned, signed := "{http.request.header."+callerFields[0]+"}", ""
		if v.HMAC != nil {
			signed = v.HMAC.Signed
		}
		if len(v.signedCaller()) > 0 {
			unsigned = unsignedIn(s.Caller, signed)
		}
		if unsigned != "" {
			return "signed " + unsigned + "." + cmp.Or(signed, "{body}")
		}
	}
	return ""
}

// unsignedIn returns the first header field of the texts of `caller` that is not signed, as a placeholder; ""
// for none.
func unsignedIn(caller []string, signed string) string {
	for _, text := range caller {
		if strings.HasPrefix(text, "{http.request.cookie.") {
			text = "{http.request.header.Cookie}"
		}
		if strings.HasPrefix(text, "{http.request.header.") && !strings.Contains(strings.ToLower(signed), strings.ToLower(text)) {
			return text
		}
	}
	return ""
}

// signedCaller returns the header fields that name the caller and that the sender signs.
func (v Verify) signedCaller() []string {
	if v.HMAC == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(callerFields), func(field string) bool { return !reads(delivery.Source{Text: v.HMAC.Signed}, field) })
}

// equalSecrets returns two senders that have one secret, "" for none.
func equalSecrets(verifiers []*signature.Verifier) (first, second string) {
	known := make(map[string]string)
	for _, v := range verifiers {
		for _, label := range v.Labels() {
			if first, ok := known[label]; ok && first != v.Provider() {
				return first, v.Provider()
			}
			known[label] = v.Provider()
		}
	}
	return "", ""
}
