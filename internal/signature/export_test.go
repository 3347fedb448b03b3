package signature

import (
	"cmp"
	"slices"
)

// Providers returns all providers, sorted by name, including those that cannot be verified.
func Providers() (all []Provider) {
	for _, p := range catalogue {
		all = append(all, p.complete())
	}
	for name, reason := range unverifiable {
		all = append(all, Provider{Name: name, Reason: reason})
	}
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Timed reports whether requests of the provider may have a signed timestamp.
func (p Provider) Timed() bool {
	return p.has(func(s scheme) bool {
		r, err := s.compile(false)
		return err == nil && r.timed
	})
}

// BodyOf returns a Body for bytes in memory that needs no reservations.
func BodyOf(body []byte) Body {
	return Body{
		Pieces:  func(yield func([]byte) bool) { yield(body) },
		Whole:   func() ([]byte, error) { return body, nil },
		Reserve: func(int) error { return nil },
	}
}
