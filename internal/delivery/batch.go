package delivery

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// batchVersion labels the hash of a batch.
const batchVersion = "caddy-dedup batch v1"

// batch combines the IDs of all elements, in their order, into one ID. There is no
// ID if the array is absent or empty, or if a single element has no ID: a key made
// of the other elements alone would not name that element, and a request that has
// it and one that has not would be the same.
func (f finder) batch(list List) (item, error) {
	doc, err := f.request.parsed.document(f.request.Body)
	if err != nil {
		return item{}, err
	}
	array := elements(doc.Root(), list)
	if len(array) == 0 {
		return item{}, absent("the body has no array %q with elements", list.Array)
	}
	b := batch{all: newTuple(batchVersion)}
	if err := b.list(array, list); err != nil {
		return item{}, err
	}
	return item{kind: KindBatch, id: summary(b.count, "ids", b.first, b.all)}, nil
}

// batch collects the IDs of the elements of a list and of the lists in them.
type batch struct {
	all   tuple
	count int
	first string
}

// elements returns the elements of a list, none if there is no such array.
func elements(from canonicaljson.Value, list List) []canonicaljson.Value {
	array, ok := from.At(list.Array)
	if !ok || array.Kind() != jsontext.KindBeginArray {
		return nil
	}
	var all []canonicaljson.Value
	for element := range array.Elements() {
		all = append(all, element)
	}
	return all
}

func (b *batch) list(array []canonicaljson.Value, list List) error {
	b.all.writeCount(len(array))
	for i, element := range array {
		if err := b.members(i, element, list); err != nil {
			return err
		}
		if err := b.lists(i, element, list); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) members(i int, element canonicaljson.Value, list List) error {
	for m, pointer := range list.Members {
		found, err := member(element, pointer)
		if err != nil {
			return absent("element %d of %q: %v", i, list.Array, err)
		}
		if b.count == 0 && m == 0 {
			b.first = found.id
		}
		b.all.writeItem(found)
	}
	for _, pointer := range list.Optional {
		b.optional(element, pointer)
	}
	if len(list.Members) > 0 {
		b.count++
	}
	return nil
}

// optional adds a value if it is there. It counts too that none is: else the value of
// the one pointer could stand for that of the next.
func (b *batch) optional(element canonicaljson.Value, pointer string) {
	found, err := member(element, pointer)
	if err != nil {
		b.all.writeCount(0)
		return
	}
	b.all.writeCount(1)
	b.all.writeItem(found)
}

func (b *batch) lists(i int, element canonicaljson.Value, list List) error {
	filled := 0
	for _, inner := range list.Lists {
		array := elements(element, inner)
		if len(array) > 0 {
			filled++
		}
		if err := b.list(array, inner); err != nil {
			return err
		}
	}
	if len(list.Lists) > 0 && filled == 0 {
		return absent("element %d of %q has no ID", i, list.Array)
	}
	return nil
}
