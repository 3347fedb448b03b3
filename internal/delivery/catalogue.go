package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// catalogue has every provider, sorted by name.
//
// Where its sender allows it, a provider does not claim requests of a site's own API:
// [Provider.Signs] has the field that every delivery carries.
//
// There is one table per location of the delivery ID. A comment beside an entry says why a source
// that seems right would be wrong.
var catalogue = complete(knownByHeader, knownByMember, knownBySeveral, knownByContent)

// complete merges tables, and sets in all sources what they have from their provider.
func complete(tables ...[]Provider) []Provider {
	all := slices.Concat(tables...)
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range all {
		for i := range p.Sources {
			s := &p.Sources[i]
			s.Provider, s.OfCatalogue = p.Name, true
			if s.Signs.isZero() {
				s.Signs = p.Signs
			}
		}
	}
	return all
}

// alike has the groups of providers whose requests are indistinguishable.
var alike = [][]string{
	{"clerk", "resend", "svix"},
	{"cloudevents", "eventarc", "knative"},
	{"forgejo", "gitea"},
	{"meta", "whatsapp"},
	{"openai", "replicate", "standard_webhooks"},
}

// CheckDistinct returns an error if the requests of two of the providers are indistinguishable: the
// first would claim the deliveries of both.
func CheckDistinct(names []string) error {
	for _, group := range alike {
		var named []string
		for _, name := range names {
			if slices.Contains(group, name) {
				named = append(named, name)
			}
		}
		if len(named) > 1 {
			return fmt.Errorf("the requests of %s look the same, so that one handler cannot tell them apart; name one of them, which serves them all, or give each a route and a handler of its own",
				strings.Join(named, " and "))
		}
	}
	return nil
}

// The dates on which facts were read.
const (
	firstReading  = "2026-11-21"
	secondReading = "2026-11-22"
)

// codeHosts are the fields of senders that sign as GitHub does.
var codeHosts = []Sign{{Header: "X-GitHub-Delivery"}, {Header: "X-Gitea-Delivery"}}

func headerSource(name string, scope ...string) Source {
	return Source{Kind: KindHeader, Header: name, ScopeHeaders: scope}
}

// inScope returns the source with header fields that the provider adds to the scope.
func inScope(s Source, fields ...string) Source {
	s.ScopeHeaders = fields
	return s
}

func memberSource(pointer string) Source {
	return Source{Kind: KindJSON, Pointer: pointer}
}

func contentSource() Source { return Source{Kind: KindContent} }

func partsSource(parts ...Source) Source {
	return Source{Kind: KindParts, Parts: parts}
}

func batchSource(list List) Source {
	return Source{Kind: KindBatch, Batch: list}
}

// Notes that several entries share.
const (
	noteRoute       = "Every endpoint gets the same ID: keep host and path in the scope."
	noteCloudEvents = "binary, structured and batched."
	noteMeta        = "It retries for up to seven days."
	noteRepeats     = "The next change may send the same bytes, and counts as a duplicate within the retention: set a shorter one if that hurts."
)
