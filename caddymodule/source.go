package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// deliverySources returns the sources in the order in which they are tried:
// providers, then keys. Among the providers those that are known by a header
// field come first: a member of the body, such as /id, may be there in another
// provider's deliveries too, and be the same in several of them.
func (s *Settings) deliverySources() []delivery.Source {
	var sources []delivery.Source
	for _, provider := range s.providers() {
		sources = append(sources, provider.Sources...)
	}
	slices.SortStableFunc(sources, func(a, b delivery.Source) int {
		return cmp.Compare(certainty(a), certainty(b))
	})
	for _, key := range s.Keys {
		sources = append(sources, key.source())
	}
	if len(sources) == 0 {
		sources = append(sources, KeySource{Header: delivery.IdempotencyKeyHeader}.source())
	}
	return sources
}

// certainty is 0 for a source that only its own provider's requests have, 1 for a
// member of the body, and 2 for what every request has.
func certainty(s delivery.Source) int {
	switch {
	case s.OfOneSender():
		return 0
	case s.MadeOfContent():
		return 2
	default:
		return 1
	}
}

// providers returns the entries of the catalogue that are named; an unknown
// name is left out, which check reports.
func (s *Settings) providers() []delivery.Provider {
	var providers []delivery.Provider
	for _, name := range s.Providers {
		if provider, ok := delivery.ProviderNamed(name); ok {
			providers = append(providers, provider)
		}
	}
	return providers
}

// source returns what package delivery reads the key by.
func (k KeySource) source() delivery.Source {
	source := delivery.Source{Prefix: k.Prefix, Optional: k.Optional}
	switch {
	case k.Header != "":
		source.Kind, source.Header = delivery.KindHeader, k.Header
	case k.JSON != "":
		source.Kind, source.Pointer = delivery.KindJSON, k.JSON
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

// check finds what is wrong with the source.
func (k KeySource) check() error {
	set := 0
	for _, is := range []bool{k.Header != "", k.JSON != "", k.Value != "", k.Content, len(k.Parts) > 0} {
		if is {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("a key source has %d of header, json, value, content and parts; it takes exactly one", set)
	}
	for _, part := range k.Parts {
		part.Optional = false // which parts alone may be
		if err := part.check(); err != nil {
			return err
		}
	}
	if err := k.checkField(); err != nil {
		return err
	}
	return delivery.CheckSource(k.source())
}

// credentialFields are never a key: the store holds delivery IDs in a form that
// operators can read.
var credentialFields = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key"}

// checkField refuses fields that carry credentials, and those that never arrive.
func (k KeySource) checkField() error {
	for _, field := range credentialFields {
		placeholder := "{http.request.header." + strings.ToLower(field) + "}"
		if strings.EqualFold(k.Header, field) || strings.Contains(strings.ToLower(k.Value), placeholder) {
			return fmt.Errorf("%s carries a credential, and keys are stored readable; callers are kept apart by scope, see its default", field)
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
	if isDedupHeader(k.Header) || strings.EqualFold(k.Header, "Host") {
		return fmt.Errorf("header %s never arrives as a field; use a field that the sender chooses", k.Header)
	}
	return nil
}

// shadowedBy reports whether another source reads the same and comes first.
func (k KeySource) shadowedBy(first KeySource) bool {
	return strings.EqualFold(k.Header, first.Header) && reflect.DeepEqual(k.Parts, first.Parts) &&
		k.JSON == first.JSON && k.Value == first.Value && k.Content == first.Content
}

// checkKeys finds what is wrong with the sources of a handler together.
func (s *Settings) checkKeys() error {
	var errs []error
	for i, key := range s.Keys {
		name := fmt.Sprintf("keys[%d]", i)
		errs = append(errs, checkNamed(name, key.check()))
		if slices.ContainsFunc(s.Keys[:i], key.shadowedBy) {
			errs = append(errs, fmt.Errorf("%s: %s is read twice; the second one would never be reached", name, key.source()))
		}
	}
	return errors.Join(errs...)
}
