package storetest

import (
	"math/rand/v2"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// binary returns a body of n random bytes, of all values.
func binary(n int) []byte {
	body := make([]byte, n)
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range body {
		body[i] = byte(random.Uint32())
	}
	return body
}

func identicalResponses(f *fixture) {
	for name, response := range map[string]*idempotency.Response{
		"no body":     {Status: 204},
		"one byte":    {Status: 200, Body: []byte{0}},
		"one page":    {Status: 201, Body: binary(4 << 10)},
		"three pages": {Status: 201, Body: binary(12 << 10)}, // with the reply to a claim, but not small
		"big":         {Status: 201, Body: binary(1 << 20)},
		"no header":   {Status: 599, Header: map[string][]string{}, Body: []byte("x")},
		"headers": {
			Status: 302,
			Header: map[string][]string{
				"Location": {"/a?b=<c>&d=\"é\""},
				"Link":     {"<a>; rel=b", "", "<c>; rel=d"},
				"Server":   {}, // a field that the run removed
				"X-Latin1": {"caf\xe9 \xff"},
				"X-Empty":  {""},
			},
			Body: []byte("see there"),
		},
		"only a header": {Status: 303, Header: map[string][]string{"Link": {strings.Repeat("x", 20<<10)}}},
		"omitted":       {Status: 200, Omitted: true, Header: map[string][]string{"Etag": {`"1"`}}},
		"failed":        {Status: 502, Failed: true},
	} {
		for _, s := range []idempotency.Settlement{complete(""), release(true, "")} {
			k := key(name + string(s.State))
			s.Response = &idempotency.Response{}
			*s.Response = *response
			claimed := f.run(k, s)
			f.sameResponse(name+", by its token", f.response(k, claimed.Token), response)
			if s.State == idempotency.Complete {
				replayed := f.claimAt(f.peer, f.newClaim(k), idempotency.ReplayKept)
				f.sameResponse(name+", replayed", replayed.Response, response)
			}
		}
	}
}

func releasedResponse(f *fixture) {
	k := key("a")
	s := release(true, "busy")
	claimed := f.run(k, s)
	f.pass(f.short())
	for _, store := range []idempotency.Store{f.store, f.peer} {
		f.sameResponse("of a released run", f.responseAt(store, k, claimed.Token), s.Response)
	}

	k = key("b")
	s.AnswerRetention = f.short()
	claimed = f.run(k, s)
	f.pass(s.AnswerRetention)
	f.noResponse(k, claimed.Token, "a released response is kept for longer than was asked")
	if record := f.lookup(k); record.State != idempotency.Released || record.Status != 503 {
		f.Errorf("the record went with the response: %+v", record)
	}
}

func responseOfToken(f *fixture) {
	k := key("a")
	claimed := f.run(k, complete("kept"))
	f.noResponse(k, "another token", "another token got the response")
	f.noResponse(key("b"), claimed.Token, "another key got the response")
}
