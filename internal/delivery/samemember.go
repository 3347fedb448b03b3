package delivery

import (
	"fmt"
	"slices"
)

// SameMember returns an error if two of the providers cannot share a handler. They
// cannot if both read the same member of the body: then a delivery of one would be
// taken for a delivery of the other. A provider that is known by its whole body
// takes every delivery, so no other provider can come after it.
func SameMember(providers []Provider) error {
	for i, first := range providers {
		for _, second := range providers[i+1:] {
			for _, member := range first.members() {
				switch {
				case slices.Contains(second.members(), member):
					return fmt.Errorf("providers %s and %s both read %s; they need a handler each", first.Name, second.Name, member)
				case member == wholeBody:
					return fmt.Errorf("provider %s reads %s and so takes the deliveries of %s; it must be named last, or have a handler of its own", first.Name, wholeBody, second.Name)
				}
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

// members names what a provider reads of the body. A source that only the provider's
// own requests have cannot take the deliveries of another one, so it does not count.
func (p Provider) members() []string {
	var all []string
	for _, s := range p.Sources {
		if !s.OfOneSender() {
			all = append(all, s.members()...)
		}
	}
	return all
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
		return all
	default:
		return nil
	}
}
