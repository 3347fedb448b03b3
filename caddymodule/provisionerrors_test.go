package caddymodule

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// What only the load can find wrong names the site and the word.
func TestErrorsOfProvisioningNameTheSite(t *testing.T) {
	const good, unset, word = "dedup\n", "dedup github {\nverify {env.TEST_NOT_SET}\n}\n", "verify github: secret: {env.TEST_NOT_SET} is empty"
	for name, c := range map[string]struct{ sites, want string }{
		"one host":          {"http://a.test {\n" + good + "}\nhttp://b.test {\n" + unset + "}\nhttp://c.test {\n" + good + "}", "site b.test: " + word},
		"several hosts":     {"http://a.test, http://b.test {\n" + unset + "}", "site a.test, b.test: " + word},
		"no host":           {"http://:8080 {\n" + unset + "}", "site :8080: " + word},
		"in a route":        {"http://a.test {\nroute /x {\nheader A b\nroute {\n" + unset + "}\n}\n}", "site a.test: " + word},
		"host in a site":    {"http://*.test {\n@a host a.test\n@b host b.test\nhandle @a {\n" + good + "}\nhandle @b {\n" + unset + "}\n}", "site b.test: " + word},
		"error routes":      {"http://a.test {\n" + good + "}\nhttp://b.test {\nhandle_errors {\n" + unset + "}\n}", "site b.test: " + word},
		"named route":       {"&(app) {\n" + unset + "}\nhttp://a.test {\ninvoke app\n}", "site :80: " + word},
		"hmac":              {"http://a.test {\ndedup {\nverify hmac {\nheader X-S\nsecret {env.TEST_NOT_SET}\n}\n}\n}", "site a.test: verify hmac: secret: {env.TEST_NOT_SET} is empty"},
		"lease":             {"http://a.test {\ndedup {\nlease 1s\nstore redis redis://localhost\n}\n}", "site a.test: lease: 1s is too short"},
		"store":             {"http://a.test {\ndedup {\nstore redis {env.TEST_NOT_SET}\n}\n}", "site a.test: loading the store: "},
		"the global option": {"{\ndedup {\nnamespace {env.TEST_NOT_SET}\n}\n}\nhttp://a.test {\n" + good + "}", "provision dedup: namespace: {env.TEST_NOT_SET}"},
	} {
		t.Run(name, func(t *testing.T) {
			adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(c.sites), nil)
			if err != nil {
				t.Fatal(err)
			}
			config := new(caddy.Config)
			if err := json.Unmarshal(adapted, config); err != nil {
				t.Fatal(err)
			}
			config.Admin = &caddy.AdminConfig{Disabled: true}
			config.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{WriterRaw: json.RawMessage(`{"output":"discard"}`)}}}}
			_, err = caddy.ProvisionContext(config)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.HasPrefix(c.want, "provision") && strings.Contains(err.Error(), "site a.test") {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}
