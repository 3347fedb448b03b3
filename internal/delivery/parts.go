package delivery

import (
	"cmp"
	"errors"
	"fmt"
)

// partsVersion labels the hash of parts.
const partsVersion = "caddy-dedup parts v1"

// kindAbsent is hashed as the kind of an absent optional part. No source has this kind, so no value
// is mistaken for an absent one.
const kindAbsent = "absent"

// parts combines the IDs of all parts; the ID of the first is shown. If a required part is absent,
// the source has no ID, whatever the other parts are: the order of the parts must not decide
// whether a request has a key. A configured source is then unusable, and not absent, if its first part
// is present. Otherwise, if a part is invalid or unusable, so is the source.
//
// An absent part is hashed as kindAbsent, so that later parts keep their positions. Whether a part
// is optional is not hashed: making a part optional changes no keys.
func (f finder) parts(source Source) (item, error) {
	parts := source.Parts
	all := newTuple(partsVersion)
	all.writeCount(len(parts))
	var values []string
	var failed error
	hasFirst := false
	for i, part := range parts {
		found, err := f.part(part)
		missing, isMissing := errors.AsType[missingError](err)
		switch {
		case isMissing:
			missing.reason = fmt.Sprintf("part %d, %s: %s", i+1, part, cmp.Or(missing.reason, "it is absent"))
			if hasFirst && !source.OfCatalogue { // the client meant the request to have a key
				missing.kind = isUnusable
			}
			return item{}, missing
		case err != nil:
			failed = cmp.Or(failed, err)
			continue
		}
		all.writeItem(found)
		hasFirst = hasFirst || i == 0
		if found.kind != kindAbsent {
			values = append(values, found.id)
		}
	}
	switch {
	case failed != nil:
		return item{}, failed
	case len(values) == 0:
		return item{}, absent("all of its parts are absent")
	}
	return item{kind: KindParts, id: values[0], parts: values[1:], tuple: all.sum()}, nil
}

// part finds the ID of one part. A part in a body that is not JSON or too large is not absent: two
// events must not share a key because neither could be read.
func (f finder) part(part Source) (item, error) {
	found, err := f.find(part)
	if missing, is := errors.AsType[missingError](err); is && missing.kind == isAbsent && part.Optional {
		return item{kind: kindAbsent}, nil
	}
	return found, err
}
