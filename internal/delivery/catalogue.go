package delivery

import (
	"cmp"
	"slices"
)

// catalogue holds every provider, sorted by name. An entry's sources need only
// say what they read: the provider is filled in for whoever asks.
//
// The tables behind it are split by where a provider's delivery ID stands. A
// comment in them says what would go wrong with the next best choice.
var catalogue = sortedByName(knownByHeader, knownByMember, knownBySeveral, knownByContent)

func sortedByName(tables ...[]Provider) []Provider {
	all := slices.Concat(tables...)
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Where the facts that no documentation confirmed come from.
const (
	secondarySource  = "secondary source"
	generalKnowledge = "general knowledge"
)

func inHeader(name string, scope ...string) Source {
	return Source{Kind: KindHeader, Header: name, ScopeHeaders: scope}
}

func inMember(pointer string) Source {
	return Source{Kind: KindJSON, Pointer: pointer}
}

func inContent() Source { return Source{Kind: KindContent} }

func together(parts ...Source) Source {
	return Source{Kind: KindParts, Parts: parts}
}

func ofEach(list List) Source {
	return Source{Kind: KindBatch, Batch: list}
}

// Notes that several entries share.
const (
	noteRoute = "Every endpoint of the provider gets the same ID, so that host and path must stay in the scope."
	noteBatch = "A request carries several events; its key is made of all their IDs, in order. " +
		"The same events cut into other requests are not recognised."
	noteContent = "The deliveries have no ID; the key is a hash of the body."
	noteRepeats = "A body says only that something changed, and the next change may send the very same bytes: " +
		"so the retention is a minute, within which a second change goes unseen. " +
		"Leave this provider out where that hurts more than a duplicate."
)
