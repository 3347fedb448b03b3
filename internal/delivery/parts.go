package delivery

import (
	"cmp"
	"errors"
)

// partsVersion labels the hash of parts.
const partsVersion = "caddy-dedup parts v1"

// kindAbsent is what is hashed as the kind of an optional part that is absent. No
// source has this kind, so that no value is taken for an absent one.
const kindAbsent = "absent"

// parts combines the IDs of all parts into one, which is shown as that of the first. If a part is absent that is not
// optional, so is the whole, whatever the others are: the order of the parts does not
// decide whether a request has a key. Else, if one part is invalid or unusable, so is the
// whole.
//
// The kind of an absent part is hashed in its place, so that the parts behind it are
// not read as those before. Whether a part is optional is not hashed: a part that
// becomes optional in a new configuration leaves all keys as they are.
func (f finder) parts(parts []Source) (item, error) {
	all := newTuple(partsVersion)
	all.writeCount(len(parts))
	var values []string
	var failed error
	for i, part := range parts {
		found, err := f.part(part)
		switch {
		case isMissing(err):
			return item{}, unusable("part %d, %s: %s", i+1, part, cmp.Or(err.Error(), "it is not there"))
		case err != nil:
			failed = cmp.Or(failed, err)
			continue
		}
		all.writeItem(found)
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

// part finds the ID of one part. A part in a body that is not JSON, or too large to be
// read, is not absent: two events must not have one key because neither could be read.
func (f finder) part(part Source) (item, error) {
	found, err := f.find(part)
	if _, gone := errors.AsType[absentError](err); gone && part.Optional {
		return item{kind: kindAbsent}, nil
	}
	return found, err
}
