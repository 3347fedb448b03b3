package file

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// A run that ends after the iterator of a page was created is on the page.
func TestListHasRunThatEndsMeanwhile(t *testing.T) {
	s := openStore(t, newMemory(), storePath)
	record := claimed(t, s, claimOf("a"))
	it := &keyIterator{claimed: s.keys.claimed(nil)}
	var err error
	it.values, err = s.database.db.NewIter(&pebble.IterOptions{LowerBound: []byte{valueTable}, UpperBound: []byte{valueTable + 1}})
	must(t, err)
	defer it.values.Close()
	it.seek(nil)
	must(t, s.Settle(t.Context(), key("a"), record, completeAs("body")))
	listed := s.listed(s.database, it, key("a"))
	if listed.Unreadable != nil || listed.Record == nil || listed.Record.State != "complete" {
		t.Errorf("it is listed as %+v", listed)
	}
}
