package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// catalogue has every provider, sorted by name. The tables do not set
// [Source.Provider]: complete does that.
//
// A provider claims no request that a site's own API may get, as far as its sender leaves a
// choice: [Provider.Signs] has the field that every delivery carries.
//
// There is one table for each kind of place where a delivery ID can be. A comment
// beside an entry says what would go wrong with another source that looks right.
var catalogue = sortedByName(knownByHeader, knownByMember, knownBySeveral, knownByContent)

func sortedByName(tables ...[]Provider) []Provider {
	all := slices.Concat(tables...)
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// alike are the providers whose requests look the same.
var alike = [][]string{
	{"clerk", "resend", "svix"},
	{"cloudevents", "eventarc", "knative"},
	{"forgejo", "gitea"},
	{"meta", "whatsapp"},
	{"openai", "replicate", "standard_webhooks"},
}

// CheckDistinct returns an error if the requests of two of the providers look the same: the first
// one would take the deliveries of both.
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

// The days on which the facts that have a date were read.
const (
	firstReading  = "2026-11-21"
	secondReading = "2026-11-22"
)

// codeHosts are fields of the senders that sign as GitHub does.
var codeHosts = []Sign{{Header: "X-GitHub-Delivery"}, {Header: "X-Gitea-Delivery"}}

func headerSource(name string, scope ...string) Source {
	return Source{Kind: KindHeader, Header: name, ScopeHeaders: scope}
}

// inScope is a source with header fields that the provider adds to the scope.
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
	noteRoute       = "Every endpoint gets the same ID: keep host and path in the scope. If endpoints differ in the query alone, write `scope` with `{http.request.orig_uri}`."
	noteBatch       = "A request carries several events; its key is made of all their IDs, in order."
	noteCloudEvents = "binary, structured and batched, these by the content type application/cloudevents. " + noteBatch
	noteMeta        = "It retries for up to seven days, and the retention is longer than that. "
	noteContent     = "The deliveries have no ID; the key is a hash of the body."
	noteRepeats     = "A body says only that something changed, and the next change may send the same bytes: " +
		"within the retention, a second change goes unseen. " +
		"Where that is worse than a duplicate, set a shorter retention, or leave this provider out."
)
