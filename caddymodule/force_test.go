package caddymodule

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestForcedRunNamesTheClientBehindTrustedProxies(t *testing.T) {
	address, _ := upstream(t, answers(201, "done"))
	s := serveWith(t, "}\nservers {\ntrusted_proxies static private_ranges", "dedup {", "force X-Force", "}", "reverse_proxy "+address)
	core, logged := observer.New(zap.InfoLevel)
	s.handler().exchange.Logger = zap.New(core)
	s.mustPost("k", "body")
	s.mustPost("k", "body", "X-Force", "true", "X-Forwarded-For", "192.0.2.7")
	lines := logged.FilterMessageSnippet("forced: ").All()
	if len(lines) != 1 || lines[0].ContextMap()["client_ip"] != "192.0.2.7" {
		t.Errorf("the audit lines are %v", lines)
	}
}
