package toolcall

import (
	"bytes"
	"cmp"
	"errors"
	"slices"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

const (
	// markerName marks a replay, with the value true.
	markerName = "caddy-dedup/replayed"
	marker     = `"` + markerName + `":true`
	// typedSince is the first revision of the protocol in which a result has to have a resultType.
	typedSince = "2026-07-28"
)

// ErrNoResponse is the error of [ToolCall.Replay] for a text that is no response.
var ErrNoResponse = errors.New("what is kept is no JSON-RPC response")

// Replay returns the response to the call by the one that is kept. The call's id takes the place of the
// kept one, the marker is added to the result's _meta, and, for a version that needs it, a resultType to a
// result without one. All else stays byte for byte. An error has no result, and so no marker.
//
// The parts, one after the other, are the response. They share the memory of kept, which may be large
// and have several readers, and of the id.
func (c *ToolCall) Replay(kept []byte) (parts [][]byte, err error) {
	r, err := readResponse(kept)
	if err != nil || r.isNone() {
		return nil, ErrNoResponse
	}
	edits := make([]edit, 0, 3)
	if r.id != (span{}) {
		edits = append(edits, edit{r.id, c.ID})
	} else {
		inside := bytes.IndexByte(kept, '{') + 1
		edits = append(edits, edit{span{inside, inside}, slices.Concat([]byte(`"id":`), c.ID, []byte(","))})
	}
	edits = appendMarking(edits, kept, r.result, c.Version)
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.begin, b.begin) })
	parts, at := make([][]byte, 0, 2*len(edits)+1), 0
	for _, e := range edits {
		parts = append(parts, kept[at:e.begin], e.text)
		at = e.end
	}
	return append(parts, kept[at:]), nil
}

// edit puts a text in the place of a part of another one.
type edit struct {
	span
	text []byte
}

// appendMarking appends the edits of a result. One that is no object has no place for them.
func appendMarking(edits []edit, kept []byte, result span, version string) []edit {
	text := result.of(kept)
	members, typed, meta := 0, false, span{}
	if canonicaljson.Members(text, func(name []byte, begin, end int) {
		members++
		switch {
		case canonicaljson.IsString(name, "resultType"):
			typed = true
		case canonicaljson.IsString(name, "_meta"):
			meta = span{result.begin + begin, result.begin + end}
		}
	}) != nil {
		return edits
	}
	var added string
	inMeta, marked := 0, false
	switch {
	case meta == (span{}):
		added = `,"_meta":{` + marker + `}`
	case canonicaljson.Members(meta.of(kept), func(name []byte, _, _ int) {
		inMeta, marked = inMeta+1, marked || canonicaljson.IsString(name, markerName)
	}) != nil: // it is null
		edits = append(edits, edit{meta, []byte("{" + marker + "}")})
	case !marked: // by another dedup behind
		edits = append(edits, insertion(marker, meta.begin, inMeta))
	}
	if version >= typedSince && !typed { // versions are dates
		added += `,"resultType":"complete"`
	}
	if added == "" {
		return edits
	}
	return append(edits, insertion(added[1:], result.begin, members))
}

// insertion adds members to an object, in front of those that it has.
func insertion(members string, object, has int) edit {
	if has > 0 {
		members += ","
	}
	return edit{span{object + 1, object + 1}, []byte(members)}
}
