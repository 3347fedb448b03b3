package delivery_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// An optional member is part of the ID where it is there, and its absence is too.
func TestOptionalMembersOfABatch(t *testing.T) {
	source := delivery.Source{Kind: delivery.KindBatch, Provider: "x", Batch: delivery.List{
		Array: "/all", Members: []string{"/id"}, Optional: []string{"/a", "/b"},
	}}
	if err := delivery.CheckSource(source); err != nil {
		t.Fatal(err)
	}
	same := [][]string{ // each line is one key
		{`[{"id":1}]`, `[{"id":1,"a":null,"b":""}]`, `[{"id":1,"a":{},"b":[]}]`, `[{"id":1,"c":"x"}]`},
		{`[{"id":1,"a":"x"}]`, `[{"a":"x","id":1,"b":null}]`},
		{`[{"id":1,"b":"x"}]`},
		{`[{"id":1,"a":"x","b":"x"}]`},
		{`[{"id":1,"a":1}]`},
		{`[{"id":1,"a":"1"}]`},
		{`[{"id":1},{"id":1,"a":"x"}]`},
		{`[{"id":1,"a":"x"},{"id":1}]`},
		{`[{"id":1,"a":"x","b":"1"}]`},
	}
	keys := map[string]int{}
	for n, bodies := range same {
		for _, body := range bodies {
			found, err := delivery.Find([]delivery.Source{source}, withBody(`{"all":`+body+`}`), maxLength)
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if other, ok := keys[found.ID]; ok && other != n {
				t.Errorf("%s has the key of %s", body, same[other][0])
			} else if !ok && body != bodies[0] {
				t.Errorf("%s does not have the key of %s", body, bodies[0])
			}
			keys[found.ID] = n
		}
	}
	wrong := source
	wrong.Batch.Optional = []string{"a"}
	if delivery.CheckSource(wrong) == nil {
		t.Error("an optional member may be no JSON pointer")
	}
}
