package caddymodule

import (
	"reflect"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Pointers and values that are valid, and that match nothing: the setting would do nothing.
func TestPointersThatMeanSomethingElse(t *testing.T) {
	const content = "key content\n"
	for line, want := range map[string]string{
		content + "exclude /sent_at,/attempt":            `exclude: JSON pointer "/sent_at,/attempt" has a comma in front of a slash or at its end, as between two pointers; write each of them by itself`,
		content + `exclude "/sent_at /attempt"`:          `exclude: JSON pointer "/sent_at /attempt" has a space`,
		content + "exclude /items[*]/at":                 "as in /items/*/at",
		content + "exclude /sent_at/":                    "ends with a slash",
		"exclude ?ts,sig":                                "write each by its name alone, such as ?ts ?sig",
		"key json /data[0]/id":                           `key: JSON pointer "/data[0]/id" has a bracket; write the number of an element between slashes, as in /data/0/id`,
		"key json /id,/other":                            "has a comma in front of a slash",
		"key json /id /other":                            `key: prefix: "/other" looks like a JSON pointer`,
		"key json /data/id/":                             "ends with a slash",
		"key json /":                                     "ends with a slash",
		`key json "/order id"`:                           "has a space",
		"key parts p {\njson /a[0]\n}":                   "key parts: JSON pointer \"/a[0]\" has a bracket",
		"key parts p {\njson /a\njson /b,/c optional\n}": "has a comma in front of a slash",
		"key value {http.dedup.json./a[0]}":              "as in /a/0",
		"key value {http.dedup.json./a/}":                "ends with a slash",
		"scope {http.dedup.json./a,/b}":                  "has a comma in front of a slash",
		"caller {http.dedup.json./a[0]/id}":              "as in /a/0/id",
		"retention_from json /a[1]":                      "retention_from: JSON pointer \"/a[1]\" has a bracket",
		"retention_from json /a/":                        "ends with a slash",
		"release_if /errors,/status":                     "release_if: JSON pointer \"/errors,/status\" has a comma",
		"release_if /errors[0]":                          "as in /errors/0",
		"release_if /status RETRY,DROP":                  `release_if: "RETRY,DROP" is no value; write the values apart, as in RETRY DROP`,
		"release_if /status 5xx":                         `release_if: "5xx" is no value; a class of statuses is a word of release_on`,
		"release_if /status OK 4XX":                      `"4XX" is no value`,
		"methods POST,PUT":                               `methods: "POST,PUT" is not a method; write each by itself, such as POST PUT`,
		"methods POST|PUT":                               "such as POST PUT",
		`methods "POST PUT"`:                             "such as POST PUT",
		content + "exclude /sent_at, /attempt":           "at its end, as between two pointers",
		"key json /id,":                                  "at its end",
		"release_if /status RETRY, DROP":                 `"RETRY," is no value; write the values apart, as in RETRY`,
		"scope {http.dedup.json./a[0]}":                  `as in /a/0`,
		"methods post,patch delete":                      "such as POST PATCH",
		"release_on 5XX":                                 `release_on: "5XX" is not accepted; write 5xx`,
		"release_on 5xx,!503":                            `release_on: "5xx,!503" is not accepted; write 5xx !503`,
		"release_on off,5xx":                             "is neither a code",
	} {
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
	for _, line := range []string{
		content + "exclude /data.sent_at /a,b", "key json /a~1b/0", "release_if /status RETRY DROP", `release_if /message "hello, world"`,
		"release_if /status 503", "release_if /version 1.5", "exclude ?filter[name] ?items[] ?a/ \"?a b\"",
	} {
		if err := handlerOf(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Names of members may have full stops and commas, but mostly a path is meant.
func TestWarningAboutPointersWithFullStops(t *testing.T) {
	h := new(Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(`dedup {
		key json /data.id
		key parts p {
			json /a.b
			value x{http.dedup.json./c.d}
		}
		key content
		exclude /data.sent_at /x,y /fine ?a.b
		release_if /error.code
		retention_from json /ttl.seconds
		scope {http.dedup.json./tenant.id}
	}`)); err != nil {
		t.Fatal(err)
	}
	core, logged := observer.New(zap.WarnLevel)
	h.warnOfPointers(zap.New(core))
	got := make(map[string]string)
	for _, line := range logged.All() {
		got[line.ContextMap()["pointer"].(string)] = line.ContextMap()["did_you_mean"].(string)
	}
	want := map[string]string{
		"/data.id": "/data/id", "/a.b": "/a/b", "/c.d": "/c/d", "/data.sent_at": "/data/sent_at", "/x,y": "/x /y",
		"/error.code": "/error/code", "/ttl.seconds": "/ttl/seconds", "/tenant.id": "/tenant/id",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the warnings are %v, want %v", got, want)
	}
}
