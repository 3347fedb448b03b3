package integration

import (
	"strings"
	"testing"
)

// Who chose that requests pass without protection is reminded where, before the store
// fails.
func TestPassingWhenTheStoreFailsIsToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", sites: lines(
		"http://shop.test:PORT {",
		"handle /hooks/* {", "dedup github {", "store_errors pass", "}", proxyTo(up), "}",
		"handle /api/* {", dedupBlock("store_errors reject"), proxyTo(up), "}",
		"}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "store_errors pass: ") }
	line := p.awaitLog(t, "that requests pass", told)
	for field, want := range map[string]string{
		"level": "warn", "logger": "dedup", "host": "[shop.test]", "path": "[/hooks/*]", "listen": "[",
		"providers": "[github]", "store": "memory store",
	} {
		if !strings.HasPrefix(line.text(field), want) {
			t.Errorf("%s is %q, want %q", field, line.text(field), want)
		}
	}
	if n := len(p.log.find(told)); n != 1 {
		t.Errorf("the start tells %d times that requests pass, want once", n)
	}
}

// Two directives do not choose between two senders: both run.
func TestTwoDedupsOnOneRouteAreToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", sites: lines(
		"http://twice.test:PORT {", "@hooks path /hooks", "dedup @hooks github", "dedup @hooks stripe", proxyTo(up), "}",
		"http://apart.test:PORT {", "dedup /github github", "dedup /stripe stripe", "handle /api {", "dedup", proxyTo(up), "}", proxyTo(up), "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "two dedup handlers") }
	line := p.awaitLog(t, "the two dedups", told)
	if line.text("level") != "warn" || line.text("host") != "[twice.test]" || line.text("path") != "[/hooks]" || line.text("providers") != "[stripe]" {
		t.Errorf("the line is %v", line)
	}
	if n := len(p.log.find(told)); n != 1 {
		t.Errorf("the start tells %d times of two dedups, want once", n)
	}
}

// In a route, directives run in the order in which they stand.
func TestDedupBehindItsProxyIsToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	proxy := proxyTo(up)
	p := start(t, conf{store: "store memory", sites: lines(
		"http://behind.test:PORT {", "route {", proxy, "dedup github", "}", "}",
		"http://within.test:PORT {", "route {", "handle {", proxy, "}", "dedup stripe", "}", "}",
		"http://sorted.test:PORT {", proxy, "dedup", "}",
		"http://some.test:PORT {", "route {", "reverse_proxy /others "+up.addr, "dedup", proxy, "}", "}",
		"http://asked.test:PORT {", "route {", "forward_auth "+up.addr+" {", "uri /auth", "}", "dedup", proxy, "}", "}",
		"http://passing.test:PORT {", "route {", "handle /passing {", "header X-Passing 1", "}", "handle {", proxy, "}", "dedup", proxy, "}", "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "dedup protects nothing") }
	p.awaitLog(t, "the dedup of behind.test", func(e entry) bool {
		return told(e) && e.text("level") == "warn" && e.text("host") == "[behind.test]" && e.text("providers") == "[github]"
	})
	p.awaitLog(t, "the dedup of within.test", func(e entry) bool { return told(e) && e.text("host") == "[within.test]" })
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d dedups that protect nothing, want 2: %v", len(all), all)
	}
}

// Without anything behind it, Caddy answers: with an empty 200, which nobody has executed, and
// which is not kept.
func TestDedupWithNothingBehindItIsToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	proxy := proxyTo(up)
	p := start(t, conf{store: "store memory", sites: lines(
		"http://alone.test:PORT {", "dedup github", "}",
		"http://block.test:PORT {", "handle /hooks/* {", "dedup stripe", "}", "handle {", proxy, "}", "}",
		"http://behind.test:PORT {", "dedup", proxy, "}",
		"http://some.test:PORT {", "dedup", "respond /others 204", "}",
		"http://after.test:PORT {", "route {", "route {", "dedup", "}", proxy, "}", "}",
		"http://handled.test:PORT {", "dedup", "handle /a {", proxy, "}", "}",
		"&(named) {", "dedup", "}", "http://named.test:PORT {", "invoke named", proxy, "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "nothing stands behind dedup") }
	p.awaitLog(t, "the dedup of alone.test", func(e entry) bool {
		return told(e) && e.text("level") == "warn" && e.text("host") == "[alone.test]" && e.text("providers") == "[github]"
	})
	p.awaitLog(t, "the dedup of block.test", func(e entry) bool {
		return told(e) && e.text("host") == "[block.test]" && e.text("path") == "[/hooks/*]"
	})
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d dedups with nothing behind them, want 2: %v", len(all), all)
	} else if said := all[0].text("msg"); !strings.Contains(said, "executes and keeps nothing") {
		t.Errorf("the start does not say that nothing is kept: %s", said)
	}
}

// A body for which there is never room is refused with "repeat the request later", each time.
func TestBodiesForWhichThereIsNeverRoomAreToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", dedup: limits("buffered 1MiB"), sites: lines(
		"http://large.test:PORT {", dedupBlock("max_request_body 2MiB"), proxyTo(up), "}",
		"http://most.test:PORT {", dedupBlock("max_request_body 943719"), proxyTo(up), "}",
		"http://fits.test:PORT {", dedupBlock("max_request_body 943718"), proxyTo(up), "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "max_request_body is more than") }
	for name, size := range map[string]string{"large.test": "2.097152e+06", "most.test": "943719"} {
		p.awaitLog(t, name, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == "["+name+"]" && e.text("max_request_body") == size && e.text("room") == "943719"
		})
	}
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d handlers, want 2: %v", len(all), all)
	}
}

// Of a request that no dedup has seen, a placeholder is its own text: one key for all.
func TestPlaceholdersBesideAMatcherAreToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	proxy := lines("reverse_proxy "+up.addr+" {", "header_up X-Run-Key {http.dedup.key}", "}")
	p := start(t, conf{store: "store memory", sites: lines(
		"http://beside.test:PORT {", "dedup /pay/* github", proxy, "}",
		"http://partly.test:PORT {", "route {", "handle /pay/* {", "dedup", "}", proxy, "}", "}",
		"http://behind.test:PORT {", "dedup", proxy, "}",
		"http://block.test:PORT {", "handle /pay/* {", "dedup", proxy, "}", proxyTo(up), "}",
		"http://within.test:PORT {", "route {", "route {", "dedup", "}", "header X-A 1", proxy, "}", "}",
		"http://failed.test:PORT {", "dedup", proxyTo(up), "handle_errors {", proxy, "}", "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "a reverse_proxy sends a placeholder") }
	for _, name := range []string{"beside.test", "partly.test"} {
		p.awaitLog(t, name, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == "["+name+"]"
		})
	}
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d proxies, want 2: %v", len(all), all)
	}
}

// A header field that Caddy removes from every request is no key: nothing would be protected.
func TestHeaderFieldsThatCaddyRemovesAreToldAtStart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{global: lines("servers {", "expected_underscore_headers known_* x_tenant", "expected_dot_headers a.b", "}"), store: "store memory", sites: lines(
		"http://dropped.test:PORT {", "dedup {", "key header X_Order_Id", "key value {http.request.header.a.c}-{http.request.header.a.b}", "key parts x {", "header x.part", "}",
		"scope {header.X_Tenant} {header.Host} {header.Known-Tenant}", "retention_from header X_Seconds", "force Force_It", "}", proxyTo(up), "}",
		"http://there.test:PORT {", "dedup {", "key header Known_Id", "key header X-Order.Id", "}", "dedup_health /health", proxyTo(up), "}",
		"http://fine.test:PORT {", "dedup {", "key header a.b", "key header Known_Id", "scope {header.X-Other} {header.x_tenant}", "}", proxyTo(up), "}")})
	told := func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "dedup reads a header field that no request has")
	}
	for name, fields := range map[string]string{
		"dropped.test": "[X_Order_Id x.part Force_It X_Seconds Host Known-Tenant a.c]",
		"there.test":   "[X-Order.Id]",
	} {
		p.awaitLog(t, name, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == "["+name+"]" && e.text("fields") == fields
		})
	}
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d handlers, want 2: %v", len(all), all)
	}
}

// Every request with a body has a content: no other key counts behind it.
func TestKeysBehindTheContentAreToldAtStart(t *testing.T) {
	t.Parallel()
	proxy := proxyTo(startUpstream(t, answers201))
	p := start(t, conf{store: "store memory", sites: lines(
		"http://first.test:PORT {", dedupBlock("key content", "key header Idempotency-Key"), proxy, "}",
		"http://provider.test:PORT {", "dedup lemon_squeezy {", "key json /id", "}", proxy, "}",
		"http://last.test:PORT {", dedupBlock("key header Idempotency-Key", "key content"), proxy, "}",
		"http://signed.test:PORT {", "dedup zoom {", "key header Idempotency-Key", "}", proxy, "}",
		"http://parts.test:PORT {", dedupBlock("key parts a {", "header X-A", "content", "}", "key header X-B"), proxy, "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "keys stand behind one of the content") }
	for host, key := range map[string]string{"[first.test]": "[header Idempotency-Key]", "[provider.test]": "[json /id]"} {
		p.awaitLog(t, "the keys of "+host, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == host && e.text("keys") == key
		})
	}
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d dedups with keys behind the content, want 2: %v", len(all), all)
	}
}

// Caddy sorts request_header in front of dedup: what it makes the same in all requests tells
// nobody apart.
func TestFieldsMadeAlikeAreToldAtStart(t *testing.T) {
	t.Parallel()
	proxy := proxyTo(startUpstream(t, answers201))
	p := start(t, conf{store: "store memory", sites: lines(
		"http://caller.test:PORT {", `request_header Authorization "Bearer service"`, "dedup", proxy, "}",
		"http://some.test:PORT {", "request_header /some Remote-User all", "request_header X-Api-Key {env.HOME}", "handle {", "dedup", proxy, "}", "}",
		"http://host.test:PORT {", "request_header Host internal.test", "dedup github", proxy, "}",
		"http://fine.test:PORT {", "request_header Remote-User {http.auth.user.id}", "request_header X-Other 1", "request_header -Authorization", "dedup", proxy, "}",
		"http://hooks.test:PORT {", "request_header Authorization 1", "dedup stripe", proxy, "}",
		"http://scope.test:PORT {", "request_header Host internal.test", dedupBlock("scope {http.auth.user.id}"), proxy, "}",
		"http://behind.test:PORT {", "route {", "dedup", "request_header Authorization 1", proxy, "}", "}",
		"http://apart.test:PORT {", "handle /a {", "request_header Authorization 1", proxy, "}", "handle {", "dedup", proxy, "}", "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "request_header in front of dedup") }
	for host, fields := range map[string]string{"[caller.test]": "[Authorization]", "[some.test]": "[X-Api-Key Remote-User]", "[host.test]": "[Host]"} {
		p.awaitLog(t, "the fields of "+host, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == host && e.text("fields") == fields
		})
	}
	if all := p.log.find(told); len(all) != 3 {
		t.Errorf("the start tells of %d dedups, want 3: %v", len(all), all)
	}
}

// What a dedup says of a request it does not know yet when it looks for the key.
func TestPlaceholdersOfItsOwnAreToldAtStart(t *testing.T) {
	t.Parallel()
	proxy := proxyTo(startUpstream(t, answers201))
	p := start(t, conf{store: "store memory", sites: lines(
		"http://scope.test:PORT {", dedupBlock("scope {http.dedup.provider} {http.request.host}"), proxy, "}",
		"http://parts.test:PORT {", dedupBlock("key parts a {", "value {http.dedup.delivery_id}", "header X-A", "}"), proxy, "}",
		"http://second.test:PORT {", "route {", "dedup", dedupBlock("key value {http.dedup.key}"), proxy, "}", "}")})
	told := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "dedup reads placeholders of its own") }
	for host, names := range map[string]string{"[scope.test]": "[{http.dedup.provider}]", "[parts.test]": "[{http.dedup.delivery_id}]"} {
		p.awaitLog(t, "the placeholders of "+host, func(e entry) bool {
			return told(e) && e.text("level") == "warn" && e.text("host") == host && e.text("placeholders") == names
		})
	}
	if all := p.log.find(told); len(all) != 2 {
		t.Errorf("the start tells of %d dedups, want 2: %v", len(all), all)
	}
}
