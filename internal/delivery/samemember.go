package delivery

import (
	"fmt"
	"slices"
)

// SameMember says which two providers cannot share a handler, because they read
// the same member of the body: a delivery of one would be taken for the
// other's. One that is known by its whole body takes every delivery, so that
// none can stand behind it.
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

// What a provider reads of the body, in the error's words.
const (
	wholeBody = "the whole body"
	theMember = "the member "
)

// members names what a provider reads of the body. A source that needs a header
// field beside it takes nobody else's deliveries, and so does not count.
func (p Provider) members() []string {
	var all []string
	for _, s := range p.Sources {
		all = append(all, s.members()...)
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
			if part.Kind == KindHeader {
				return nil
			}
			all = append(all, part.members()...)
		}
		return all
	default:
		return nil
	}
}
