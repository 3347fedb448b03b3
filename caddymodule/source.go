package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

// deliverySources returns the sources in the order in which they are tried: providers, then keys.
// Providers that are identified by a header field come first: deliveries of others may contain
// the same body members, such as /id, with values that are not unique.
func (s *Settings) deliverySources() []delivery.Source {
	var sources []delivery.Source
	for _, provider := range s.providers() {
		sources = append(sources, provider.Sources...)
	}
	byHeader := slices.DeleteFunc(slices.Clone(sources), func(s delivery.Source) bool { return !s.OfOneSender() })
	sources = append(byHeader, slices.DeleteFunc(sources, delivery.Source.OfOneSender)...)
	for _, key := range s.Keys {
		sources = append(sources, key.source())
	}
	if len(sources) == 0 {
		sources = append(sources, KeySource{Header: delivery.IdempotencyKeyHeader}.source())
	}
	for i := range sources {
		sources[i] = sources[i].WithPrefix()
	}
	return sources
}

// providers returns the catalogue entries of the configured names. Unknown names, which check
// reports, are skipped.
func (s *Settings) providers() []delivery.Provider {
	var providers []delivery.Provider
	for _, name := range s.Providers {
		if provider, ok := delivery.ProviderNamed(name); ok {
			providers = append(providers, provider)
		}
	}
	return providers
}

// source converts the source.
func (k KeySource) source() delivery.Source {
	source := delivery.Source{Provider: k.Prefix, Optional: k.Optional}
	switch {
	case k.Header != "":
		source.Kind, source.Header = delivery.KindHeader, k.Header
	case k.JSON != "":
		source.Kind, source.Pointer = delivery.KindJSON, k.JSON
	case k.Form != "":
		source.Kind, source.Field = delivery.KindForm, k.Form
	case k.Value != "":
		source.Kind, source.Text = delivery.KindValue, k.Value
	case k.Content:
		source.Kind = delivery.KindContent
	default:
		source.Kind = delivery.KindParts
		for _, part := range k.Parts {
			source.Parts = append(source.Parts, part.source())
		}
	}
	return source
}

// check returns what is wrong with the source.
func (k KeySource) check() error {
	if err := k.checkAsPart(); err != nil {
		return err
	}
	if k.isConstant() {
		return fmt.Errorf("%s is the same in all requests, which would share one key; use a placeholder that differs, such as %s", k.source(), examplePlaceholder)
	}
	return nil
}

// checkAsPart returns what is wrong with a source that may be a part.
func (k KeySource) checkAsPart() error {
	set := 0
	for _, is := range []bool{k.Header != "", k.JSON != "", k.Form != "", k.Value != "", k.Content, len(k.Parts) > 0} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("a key source has %d of header, json, form, value, content and parts; it takes exactly one", set)
	}
	for i, part := range k.Parts {
		part.Optional = false // allowed only for parts
		if slices.ContainsFunc(k.Parts[:i], part.shadowedBy) {
			return fmt.Errorf("%s is repeated among the parts; leave one of them out", part.source())
		}
		if err := part.checkAsPart(); err != nil {
			return err
		}
	}
	if err := k.checkField(); err != nil {
		return err
	}
	if err := checkPrefix(k.Prefix); err != nil {
		return err
	}
	if err := checkPointerText(k.JSON); err != nil {
		return err
	}
	return delivery.CheckSource(k.source())
}

// credentialFields cannot be keys: the store holds delivery IDs in a form that operators can read.
var credentialFields = append([]string{"Proxy-Authorization", "Cookie"}, identify.CredentialFields...)

// checkHeader refuses a header field that never reaches the handler.
func checkHeader(name string) error {
	if httpfield.IsDedup(name) || strings.EqualFold(name, "Host") {
		return fmt.Errorf("header %s never arrives as a field; use a field that the sender chooses", name)
	}
	return nil
}

// checkField refuses header fields that carry credentials or never reach the handler.
func (k KeySource) checkField() error {
	for _, field := range credentialFields {
		if reads(delivery.Source{Header: k.Header, Text: k.Value}, field) {
			return fmt.Errorf("%s carries a credential, and keys are stored readable; scope separates callers, by default too", field)
		}
	}
	if strings.Contains(k.Value, "{http.request.cookie.") {
		return fmt.Errorf("value %s: a cookie may be a credential, and keys are stored readable", k.Value)
	}
	if k.Value != "" {
		if err := checkKeyText(k.Value); err != nil {
			return err
		}
	}
	return checkHeader(k.Header)
}

// shadowedBy reports whether an earlier source reads the same value.
func (k KeySource) shadowedBy(first KeySource) bool {
	return strings.EqualFold(k.Header, first.Header) && reflect.DeepEqual(k.Parts, first.Parts) &&
		k.JSON == first.JSON && k.Form == first.Form && k.Value == first.Value && k.Content == first.Content
}

// checkKey returns what is wrong with a source, given the sources before it.
func (s *Settings) checkKey(i int) error {
	key := s.Keys[i]
	if err := key.check(); err != nil {
		return err
	}
	if slices.ContainsFunc(s.Keys[:i], key.shadowedBy) {
		return fmt.Errorf("%s is read twice; the second one would never be reached", key.source())
	}
	return nil
}

// RetentionSource is where a request sets its retention: a number of seconds in a header field
// or in a member of the body. Exactly one of the two must be set. Without a number in the request,
// `retention` applies.
//
// Both a JSON number and a string of digits are accepted; fractions are rounded up to whole
// seconds. A value above `max` is reduced to `max`. A value that is not a number, zero or negative
// is ignored, so it cannot disable the protection. Both are logged, and never an error to the
// sender.
type RetentionSource struct {
	// The name of a request header field.
	Header string `json:"header,omitempty"`

	// The JSON pointer (RFC 6901) to a number, or to a string of digits, in the body. A body
	// that is not JSON contains none. A body larger than `max_request_body` is not read, which
	// is logged.
	JSON string `json:"json,omitempty"`

	// The maximum retention that a request can set. Default: 30 days.
	Max caddy.Duration `json:"max,omitempty"`
}

// defaultMaxRetention is the default of [RetentionSource.Max].
const defaultMaxRetention = 30 * 24 * time.Hour

// source converts the source.
func (r *RetentionSource) source() delivery.Source {
	if r.Header != "" {
		return delivery.Source{Kind: delivery.KindHeader, Header: r.Header}
	}
	return delivery.Source{Kind: delivery.KindJSON, Pointer: r.JSON}
}

// check returns what is wrong with the source. A zero maximum is the default.
func (r *RetentionSource) check() error {
	switch {
	case (r.Header == "") == (r.JSON == ""):
		return errors.New("it takes exactly one of header and json")
	case slices.ContainsFunc(credentialFields, func(field string) bool { return strings.EqualFold(field, r.Header) }):
		return fmt.Errorf("header %s carries a credential, and a value that is not a number is logged; use a field of its own, such as X-Retention", r.Header)
	}
	if err := cmp.Or(checkHeader(r.Header), delivery.CheckSource(r.source()), checkPointerText(r.JSON)); err != nil || r.Max == 0 {
		return err
	}
	return r.checkMax()
}

func (r *RetentionSource) checkMax() error { return named("max", checkDuration(r.Max, time.Second)) }

// retentionForms are the arguments of retention_from.
const retentionForms = "header <field> [<max>] or json <JSON pointer> [<max>]"

// parseRetentionFrom reads `retention_from header <field>|json <JSON pointer> [<max>]`.
func parseRetentionFrom(d *caddyfile.Dispenser) (*RetentionSource, error) {
	const name = "retention_from"
	args := d.RemainingArgs()
	switch {
	case len(args) == 0:
		return nil, errorAt(d, "%s lacks its source; use %s", name, retentionForms)
	case args[0] != delivery.KindHeader && args[0] != delivery.KindJSON:
		return nil, errorAt(d, "%s: %q is not accepted; use %s", name, args[0], retentionForms)
	case len(args) < 2 || len(args) > 3:
		return nil, errorAt(d, "%s %s has the wrong number of arguments, %q; use %s", name, args[0], args[1:], retentionForms)
	case args[1] == "":
		return nil, errorAt(d, "%s %s is empty; use %s", name, args[0], retentionForms)
	}
	from := &RetentionSource{Header: args[1]}
	if args[0] == delivery.KindJSON {
		from = &RetentionSource{JSON: args[1]}
	}
	if len(args) == 3 {
		var err error
		if from.Max, err = parseDuration(d, name+": max", args[2]); err != nil {
			return nil, err
		}
		if from.Max == 0 { // it would be the default
			return nil, errorAt(d, "%s: %w", name, from.checkMax())
		}
	}
	return from, noBlock(d, name)
}
