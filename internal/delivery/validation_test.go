package delivery_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestCheckExclude(t *testing.T) {
	for pointer, right := range map[string]bool{"/sent_at": true, "/a/0": true, "": false, "sent_at": false, "/~": false,
		"/*": true, "/items/*/sent_at": true, "/*/*": true, "/a-b": true, "/-": false, "/items/-": false, "/items/-/a": false, "/sent*": false, "/items/**/a": false,
		"?ts": true, "?*": true, "?a[]": true, "?t%73": true, "?": false, "?ts*": false, "?ts=1": false, "?ts&sig": false, "??ts": false, "ts": false} {
		if err := delivery.CheckExclude(pointer); (err == nil) != right {
			t.Errorf("%q: %v", pointer, err)
		}
	}
}

func TestNeedsBody(t *testing.T) {
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-Id"}
	value := delivery.Source{Kind: delivery.KindValue, Text: "{a}"}
	for name, c := range map[string]struct {
		source        delivery.Source
		body, content bool
	}{
		"header": {header, false, false}, "value": {value, false, false}, "json": {inBody("/id"), true, false},
		"content": {contentSource, true, true}, "batch": {delivery.Source{Kind: delivery.KindBatch}, true, false},
		"parts without body": {inParts(header, value), false, false}, "parts with json": {inParts(header, inBody("/a")), true, false},
		"parts with content": {inParts(header, contentSource), true, true},
	} {
		if c.source.NeedsBody() != c.body || c.source.MadeOfContent() != c.content {
			t.Errorf("%s: needs the body %v, is made of content %v", name, c.source.NeedsBody(), c.source.MadeOfContent())
		}
	}
}
