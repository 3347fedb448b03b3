package integration

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// submits is a key as a service has it whose requests may leave the namespace out.
func submits(l ...string) string {
	return dedupBlock("key parts submits {", "header X-Delivery", "json /namespace optional", "json /ref/name", "}", lines(l...))
}

// submitted is a request with this delivery ID and body.
func submitted(id, body string) sent { return sent{"", body, []option{header("X-Delivery", id)}} }

func TestOptionalPart(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: store, site: onPaths(up, map[string]string{
			"/api":  submits("fingerprint none"),
			"/hook": submits("mode webhook"),
		})})
		for _, path := range []string{"/api", "/hook"} {
			wantKeys(t, p, path,
				[]sent{submitted("1", `{"ref":{"name":"deploy"}}`), submitted("1", `{"ref":{"name":"deploy"},"namespace":null}`), submitted("1", `{"ref":{"name":"deploy"},"namespace":""}`)},
				[]sent{submitted("1", `{"ref":{"name":"deploy"},"namespace":"shop"}`), submitted(`"1"`, `{"namespace":"shop","ref":{"name":"deploy"},"more":1}`)},
				[]sent{submitted("1", `{"ref":{"name":"deploy"},"namespace":"deploy"}`)},
				[]sent{submitted("1", `{"ref":{"name":"shop"},"namespace":"deploy"}`)},
				[]sent{submitted("1:shop", `{"ref":{"name":"deploy"}}`)},
				[]sent{submitted("1", `{"ref":{"name":"shop:deploy"}}`)},
				[]sent{submitted("2", `{"ref":{"name":"deploy"}}`)},
			)
			// What is no namespace is not as good as none: another request may have another.
			wantNoKey(t, p, up, path, []sent{
				submitted("1", `{"ref":{"name":"deploy"},"namespace":{"name":"shop"}}`), submitted("1", `{"ref":{"name":"deploy"},"namespace":["shop"]}`),
				submitted("1", `{"ref":{"name":"deploy"},"namespace":true}`), submitted("1", `{"ref":{"name":"deploy"},"namespace":"`+strings.Repeat("n", 256)+`"}`),
				submitted("1", `{"namespace":"shop"}`), submitted("1", `deploy`), {body: `{"ref":{"name":"deploy"}}`},
			})
		}
	})
}

// beginning returns how the keys of a delivery ID begin, as docs/behaviour.md says.
func beginning(namespace, id string) string {
	h := sha256.New()
	for _, text := range []string{"caddy-dedup ID v1", namespace, id} {
		fmt.Fprintf(h, "\x00\x00\x00\x00\x00\x00\x00%c%s", len(text), text) // as the texts are short
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// A delivery is found by its first part, in the log and by the beginning of its key, which is
// one SCAN in Redis. Its record has the other parts.
func TestKeyOfPartsIsFoundByItsValues(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: shown(submits("fingerprint none"), up)})
	keys := map[string]string{}
	for body, want := range map[string]struct{ id, parts string }{
		`{"ref":{"name":"deploy"}}`:                     {"1", "[deploy]"},
		`{"ref":{"name":"deploy"},"namespace":"shop"}`:  {"1", "[shop deploy]"},
		`{"ref":{"name":"shop:deploy"}}`:                {"1", "[shop:deploy]"},
		`{"ref":{"name":"naïve"},"namespace":12345678}`: {"2", "[12345678 naïve]"},
	} {
		id := want.id
		first := p.send(t, "/", submitted(id, body))
		key := first.Header.Get("X-Key")
		if !strings.HasPrefix(key, beginning("default", id)) {
			t.Errorf("%s: the key %s does not begin with %s", body, key, beginning("default", id))
		}
		if record := p.operator(t, http.MethodGet, key, 200); record["delivery_id"] != id || fmt.Sprint(record["parts"]) != want.parts {
			t.Errorf("%s: the record is %v, want %v", body, record, want)
		}
		p.awaitLog(t, "the access log of "+id, func(e entry) bool { return e.text("dedup_key") == key && e.text("dedup_delivery_id") == id })
		keys[key] = id
	}
	found, err := redisClient(t, server).Keys(t.Context(), "dedup:{"+beginning("default", "1")+"*").Result()
	records := map[string]bool{}
	for _, name := range found {
		key, _, _ := strings.Cut(strings.TrimPrefix(name, "dedup:{"), "}")
		if keys[key] != "1" {
			t.Errorf("Redis has %s of the ID %q", name, keys[key])
		}
		records[key] = true
	}
	if err != nil || len(records) != 3 || len(keys) != 4 {
		t.Errorf("by the beginning, %d of %d keys are found: %v, %v; want 3 of 4", len(records), len(keys), found, err)
	}
}
