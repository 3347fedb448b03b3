package delivery_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestCheckSource(t *testing.T) {
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-Id"}
	value := delivery.Source{Kind: delivery.KindValue, Text: "{http.request.uri.path}"}
	for _, right := range []delivery.Source{
		header, inBody(""), inBody("/a/0"), value, {Kind: delivery.KindValue, Text: "nightly"}, contentSource,
		inParts(header, inBody("/a"), value, contentSource), inParts(header),
		inParts(inBody("/a"), optional(header), optional(value), optional(contentSource)),
		{Kind: delivery.KindParts, Provider: "shop", Parts: []delivery.Source{header}},
		{Kind: delivery.KindBatch, Provider: "shop", Batch: inner},
	} {
		if err := delivery.CheckSource(right); err != nil {
			t.Errorf("%+v: %v", right, err)
		}
	}
	prefixed := header
	prefixed.Prefix = "mine"
	for name, c := range map[string]struct {
		source delivery.Source
		hints  []string
	}{
		"no kind":             {delivery.Source{}, []string{`""`, "header, json, form, value, content or parts"}},
		"unknown kind":        {delivery.Source{Kind: "cookie"}, []string{`"cookie"`, "header, json, form, value, content or parts"}},
		"no field":            {delivery.Source{Kind: delivery.KindHeader}, []string{`""`, "X-Request-Id"}},
		"no field name":       {delivery.Source{Kind: delivery.KindHeader, Header: "X Id"}, []string{`"X Id"`, "letters"}},
		"other fields' names": {delivery.Source{Kind: delivery.KindHeader, Header: "X-*"}, []string{`"X-*"`, "letters"}},
		"no pointer":          {inBody("id"), []string{`"id"`, "start with a slash"}},
		"a bad escape":        {inBody("/a~b"), []string{`"/a~b"`, "~0"}},
		"no text":             {delivery.Source{Kind: delivery.KindValue}, []string{"empty", "placeholders"}},
		"text not UTF-8":      {delivery.Source{Kind: delivery.KindValue, Text: "\xff"}, []string{"UTF-8"}},
		"no parts":            {inParts(), []string{"empty", "header, json, form, value or content"}},
		"parts, no prefix":    {delivery.Source{Kind: delivery.KindParts, Parts: []delivery.Source{header}}, []string{"no prefix"}},
		"parts in parts":      {inParts(header, inParts(header)), []string{"part 2", `"parts"`, "header, json, form, value or content"}},
		"a batch in parts":    {inParts(delivery.Source{Kind: delivery.KindBatch, Provider: "shop"}), []string{"part 1", `"batch"`}},
		"a wrong part":        {inParts(header, inBody("id")), []string{"part 2", `"id"`, "slash"}},
		"a part with prefix":  {inParts(prefixed), []string{"part 1", `"mine"`}},
		"optional alone":      {optional(header), []string{"optional", "only for parts"}},
		"optional parts":      {optional(inParts(header)), []string{"optional", "only for parts"}},
		"all are optional":    {inParts(optional(header), optional(value)), []string{"first part is optional", "delivery ID"}},
		"every element":       {inBody("/items/*/id"), []string{`"/items/*/id"`, "only in exclude", "such as /items/0/id"}},
		"a star in a name":    {inParts(header, inBody("/id*")), []string{"part 2", `"/id*"`, "only in exclude"}},
		"a wrong optional":    {inParts(header, optional(inBody("id"))), []string{"part 2", `"id"`, "slash"}},
		"a batch of one's":    {delivery.Source{Kind: delivery.KindBatch, Batch: two}, []string{`"batch"`, "header, json, form, value, content or parts"}},
		"a batch of nothing":  {delivery.Source{Kind: delivery.KindBatch, Provider: "shop"}, []string{"no members"}},
		"a wrong batch":       {delivery.Source{Kind: delivery.KindBatch, Provider: "shop", Batch: delivery.List{Members: []string{"id"}}}, []string{`"id"`}},
		"a wrong inner batch": {delivery.Source{Kind: delivery.KindBatch, Provider: "shop", Batch: delivery.List{Lists: []delivery.List{{Array: "x", Members: []string{"/id"}}}}}, []string{`"x"`}},
	} {
		t.Run(name, func(t *testing.T) {
			err := delivery.CheckSource(c.source)
			if err == nil {
				t.Fatal("it is right")
			}
			for _, hint := range c.hints {
				if !strings.Contains(err.Error(), hint) {
					t.Errorf("got %q; want %q in it", err, hint)
				}
			}
		})
	}
}

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
