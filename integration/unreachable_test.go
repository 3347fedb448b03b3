package integration

import (
	"strings"
	"testing"
)

// The option order has put dedup behind reverse_proxy in each site: one warning names the site, and
// the site that has it in front by a route gets none.
func TestUnreachableDedup(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", global: "order dedup after reverse_proxy", sites: lines(
		"http://wrong.test:PORT {", "dedup /a", "dedup /b", proxyTo(up), "}",
		"http://right.test:PORT {", "route {", "dedup", proxyTo(up), "}", "}", "")})
	warned := p.log.find(func(e entry) bool { return strings.HasPrefix(e.text("msg"), "no request reaches dedup") })
	if len(warned) != 1 || warned[0].text("level") != "warn" || warned[0].text("site") != "wrong.test" || warned[0].text("handler") != "reverse_proxy" {
		t.Errorf("warned %v", warned)
	}
}
