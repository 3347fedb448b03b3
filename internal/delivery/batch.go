package delivery

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// batchVersion labels the hash of a batch.
const batchVersion = "caddy-dedup batch v1"

// batch combines the IDs of all elements, in order; the first one is shown. There is no ID if the array
// is absent or empty, or if any element has no ID: a key of the other elements would be the same with
// and without that element.
func (f finder) batch(list List) (item, error) {
	doc, err := f.request.document()
	if err != nil {
		return item{}, err
	}
	b := batch{all: newTuple(batchVersion)}
	n, err := b.list(doc.Root(), list)
	if n == 0 {
		return item{}, absent("the body has no array %q with elements", list.Array)
	}
	if err != nil {
		return item{}, err
	}
	return item{kind: KindBatch, id: b.first, tuple: b.all.sum()}, f.checkLength(b.first)
}

// batch collects the IDs of the elements of a list and of the lists in them.
type batch struct {
	all   tuple
	first string
}

// list adds the elements of a list and returns their number, 0 if the array is absent.
func (b *batch) list(from canonicaljson.Value, list List) (n int, err error) {
	array, ok := from.At(list.Array)
	if ok {
		for range array.Elements() {
			n++
		}
	}
	b.all.writeCount(n)
	if n == 0 {
		return 0, nil
	}
	i := 0
	for element := range array.Elements() {
		if err := b.members(i, element, list); err != nil {
			return n, err
		}
		if err := b.lists(i, element, list); err != nil {
			return n, err
		}
		i++
	}
	return n, nil
}

func (b *batch) members(i int, element canonicaljson.Value, list List) error {
	for _, pointer := range list.Members {
		found, err := member(element, pointer)
		if missing, is := errors.AsType[missingError](err); is {
			missing.reason = fmt.Sprintf("element %d of %q: %v", i, list.Array, err)
			return missing
		}
		b.first = cmp.Or(b.first, found.id)
		b.all.writeItem(found)
	}
	for _, pointer := range list.Optional {
		found, err := member(element, pointer)
		if err != nil {
			found = item{kind: kindAbsent}
		}
		b.all.writeItem(found)
	}
	return nil
}

func (b *batch) lists(i int, element canonicaljson.Value, list List) error {
	filled := 0
	for _, inner := range list.Lists {
		n, err := b.list(element, inner)
		if err != nil {
			return err
		}
		if n > 0 {
			filled++
		}
	}
	if len(list.Lists) > 0 && filled == 0 {
		return absent("element %d of %q has no ID", i, list.Array)
	}
	return nil
}
