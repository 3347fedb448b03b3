package integration

import (
	"fmt"
	"slices"
	"testing"
)

// sent is what a test of keys sends: a body and, with it, headers.
type sent struct {
	body    string
	options []option
}

// bodies are requests that differ in their bodies.
func bodies(texts ...string) []sent {
	var all []sent
	for _, text := range texts {
		all = append(all, sent{body: text})
	}
	return all
}

func (s sent) String() string { return fmt.Sprintf(" with %.60q", s.body) }

func (p *caddy) send(t *testing.T, path string, s sent) reply {
	t.Helper()
	return p.post(t, path, "", s.body, s.options...)
}

// wantKeys fails unless the requests of each group have one key, which is no
// other group's.
func wantKeys(t *testing.T, p *caddy, path string, groups ...[]sent) {
	t.Helper()
	var firsts []reply
	for _, group := range groups {
		first := p.send(t, path, group[0])
		if first.Status != 201 || first.replayed() || first.executionID() == "" {
			t.Fatalf("%s%s: got %d %q, replayed: %v; want a run of its own", path, group[0], first.Status, shorten(first.Body), first.replayed())
		}
		firsts = append(firsts, first)
	}
	for i, group := range groups {
		for _, s := range group {
			got := p.send(t, path, s)
			if !got.replayed() || got.executionID() != firsts[i].executionID() {
				t.Errorf("%s%s: got %d %q, replayed: %v; want the answer to %s", path, s, got.Status, shorten(got.Body), got.replayed(), group[0])
			}
		}
	}
}

// wantNoKey fails unless each of the requests reaches the upstream each time, as
// it is and unclaimed.
func wantNoKey(t *testing.T, p *caddy, up *upstream, path string, requests ...[]sent) {
	t.Helper()
	for _, s := range slices.Concat(requests...) {
		for range 2 {
			before := len(up.all())
			got := p.send(t, path, s)
			if got.Status != 201 || got.replayed() || got.executionID() != "" {
				t.Errorf("%s%s: got %d %q %v; want it passed", path, s, got.Status, shorten(got.Body), got.Header)
			}
			if ran := up.all()[before:]; len(ran) != 1 || ran[0].Body != s.body {
				t.Errorf("%s%s: the upstream got %d requests", path, s, len(ran))
			}
		}
	}
}

// onPaths is a site with one dedup block for each path.
func onPaths(up *upstream, blocks map[string]string) string {
	var site []string
	for path, block := range blocks {
		site = append(site, "handle "+path+" {", block, proxyTo(up), "}")
	}
	return lines(site...)
}
