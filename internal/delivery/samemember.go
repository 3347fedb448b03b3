package delivery

import (
	"fmt"
	"slices"
	"strings"
)

// SameMember returns an error if two of the providers cannot share a handler. They
// cannot if both read the same member of the body: then a delivery of one would be
// taken for a delivery of the other. A provider that is known by its whole body
// takes every delivery, so no other provider can come after it. Signs keep providers
// apart, unless they are the same: then the second one would never be reached.
func SameMember(providers []Provider) error {
	for i, first := range providers {
		for _, second := range providers[i+1:] {
			if err := first.sameMember(second); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p Provider) sameMember(second Provider) error {
	for _, source := range p.Sources {
		others := second.membersBeside(source)
		for _, member := range source.members() {
			switch {
			case slices.Contains(others, member):
				return fmt.Errorf("providers %s and %s both read %s; they need a handler each", p.Name, second.Name, member)
			case member == wholeBody && (!source.OfOneSender() || len(others) > 0):
				return fmt.Errorf("provider %s reads %s and so takes the deliveries of %s; it must be named last, or have a handler of its own", p.Name, wholeBody, second.Name)
			}
		}
	}
	return nil
}

// What a provider reads of the body, in the words of the error.
const (
	wholeBody = "the whole body"
	theMember = "the member "
)

// membersBeside names what a provider reads of the body in requests that may be those of
// another one's source. A source that only a provider's own requests have cannot take the
// deliveries of another provider, unless that one's requests look the same.
func (p Provider) membersBeside(other Source) []string {
	var all []string
	for _, s := range p.Sources {
		if s.OfOneSender() == other.OfOneSender() && (!s.OfOneSender() || slices.Equal(s.marks(), other.marks())) {
			all = append(all, s.members()...)
		}
	}
	return all
}

// marks are what must be, and what must not be, in a request that has the source, each
// once and sorted.
func (s Source) marks() []string {
	var all []string
	for _, sign := range s.Signs.AnyOf {
		all = append(all, strings.ToLower("any of "+sign.String()))
	}
	for _, sign := range s.Signs.NoneOf {
		all = append(all, strings.ToLower("none of "+sign.String()))
	}
	for _, part := range s.Parts {
		if part.Kind == KindHeader && !part.Optional {
			all = append(all, strings.ToLower("part "+part.Header))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s Source) members() []string {
	switch s.Kind {
	case KindJSON:
		return []string{theMember + s.Pointer}
	case KindContent:
		return []string{wholeBody}
	case KindBatch:
		all := s.Batch.paths("")
		for i := range all {
			all[i] = theMember + all[i]
		}
		return all
	case KindParts:
		var all []string
		for _, part := range s.Parts {
			all = append(all, part.members()...)
		}
		if slices.ContainsFunc(s.Parts, func(part Source) bool { return part.Kind == KindJSON && !part.Optional }) {
			// Only a body with these members has the source.
			all = slices.DeleteFunc(all, func(member string) bool { return member == wholeBody })
		}
		return all
	default:
		return nil
	}
}
