package caddymodule

import (
	"reflect"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

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
