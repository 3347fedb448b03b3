package toolcall

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestEventIDs(t *testing.T) {
	key := idempotency.Identity{ID: "k"}.Key()
	for _, id := range []string{"1", "-7", `"a\u0062"`, `""`} {
		text := eventID(key, []byte(id))
		if gotKey, got, ok := parseEventID(text); !ok || gotKey != key || string(got) != id {
			t.Errorf("%s: %q is read as %v, %s, %v", id, text, gotKey, got, ok)
		}
	}
	if got := eventID(key, []byte(`"`+strings.Repeat("x", 1<<10)+`"`)); got != "" {
		t.Errorf("a long id has events with the id %q", got)
	}
	ours := eventIDPrefix + key.String()
	for _, text := range []string{"", "1", "dedup:", ours, ours + ":", ours + ":e30", ours + ":MS4w", ours + ":Ilwi", ours + ":MQ=", "x" + ours + ":MQ", ours[:30] + ":MQ"} {
		if _, id, ok := parseEventID(text); ok {
			t.Errorf("%q is read as one of %s", text, id)
		}
	}
}

// Each id of a stream is replaced or removed, however its bytes come, and an event with data and no id gets one.
// All else stays.
func TestReplacedEventIDs(t *testing.T) {
	for stream, want := range map[string]string{
		"id: 7\ndata: x\n\n":                           "ID\ndata: x\n\n",
		"data: x\nid:7\n\nid\ndata: y\n\n":             "data: x\nID\n\nID\ndata: y\n\n",
		"id: a:b\r\nid\r\rdata: id: 7\r\ndata\r\n\r\n": "ID\r\nID\r\rdata: id: 7\r\ndata\r\n+\r\n",
		"id: 7\r\ndata: x\r\n\r\ndata: y\r\n\r\n":      "ID\r\ndata: x\r\n\r\ndata: y\r\n+\r\n",
		"idx: 7\ni: 7\n id: 7\nID: 7\n: id\nid :\n":    "idx: 7\ni: 7\n id: 7\nID: 7\n: id\nid :\n",
		"dat: 7\ndatas\n: data\n data: 7\n\n":          "dat: 7\ndatas\n: data\n data: 7\n\n",
		"\n\r\n\nid: 7\n\n":                            "\n\r\n\nID\n\n",
		"event: a\ndata: x\n\n: data\n\ndata\n\n":      "event: a\ndata: x\n+\n: data\n\ndata\n+\n",
	} {
		for id, lines := range map[string][]string{"ours": {"id: ours", "id: ours\n"}, "": {":", ""}} {
			for size := range 6 {
				for _, settled := range []bool{false, true} {
					ids, got := eventIDs{id: id, settled: settled}, ""
					for piece := range slices.Chunk([]byte(stream), size+1) {
						got += string(ids.replace(piece))
					}
					added := lines[1]
					if settled {
						added = ""
					}
					if want := strings.NewReplacer("ID\n", lines[0]+"\n", "ID\r", lines[0]+"\r", "+", added).Replace(want); got != want {
						t.Errorf("%q with %q in pieces of %d: got %q, want %q", stream, id, size+1, got, want)
					}
				}
			}
		}
	}
}
