package report

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The examples of RFC 3986, sections 5.2.4 and 6.2.2, and what is no path.
func TestNormalPath(t *testing.T) {
	for path, want := range map[string]string{
		"/":                   "/",
		"*":                   "*",
		"/a/b/c/./../../g":    "/a/g",
		"/a%2Db":              "/a-b",
		"/%7euser/%41%5f%2E1": "/~user/A_.1",
		"/a%2fb":              "/a%2Fb",
		"/a%c3%a9":            "/a%C3%A9",
		"/a/%2e%2E/b":         "/b",
		"/../a":               "/a",
		"/a/..":               "/",
		"/a/.":                "/a/",
		"/a/b/..":             "/a/",
		"/.":                  "/",
		"/..a/.b/c.":          "/..a/.b/c.",
		"//a//b":              "//a//b",
		"/a/..//b":            "//b",
		"/%":                  "/%",
		"/%2":                 "/%2",
		"/%2%2d":              "/%2-",
		"/a//./b":             "/a//b",
		"/a\xff/../%2fb":      "/%2Fb",
		"/%zz%2d":             "/%zz-",
		"/%252d":              "/%252d",
		`/a"b%2Fc`:            `/a"b%2Fc`,
		"/a;v=1/..;/b":        "/a;v=1/..;/b",
		"shop:transfer":       "shop:transfer",
	} {
		if got := normalPath(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
		if again := normalPath(normalPath(path)); again != normalPath(path) {
			t.Errorf("%s: the normal form of %s is %s", path, normalPath(path), again)
		}
	}
}

// A rewrite in front of the handler changes neither path nor query.
func TestTargetsAsSent(t *testing.T) {
	for target, want := range map[string][2]string{
		"/orders/a%2Fb?x=/":  {"/orders/a%2Fb", "x=/"},
		"http://shop.test?y": {"/", "y"},
		"shop:transfer":      {"transfer", ""},
	} {
		r := httptest.NewRequest("POST", target, nil)
		if path, query := OriginalPath(r); path != want[0] || query != want[1] {
			t.Errorf("%s: %q and %q, want %q", target, path, query, want)
		}
		original := http.Request{URL: r.URL, RequestURI: r.RequestURI}
		rewritten := httptest.NewRequest("POST", "/rewritten?z", nil)
		rewritten = rewritten.WithContext(context.WithValue(rewritten.Context(), caddyhttp.OriginalRequestCtxKey, original))
		if path, query := OriginalPath(rewritten); path != want[0] || query != want[1] {
			t.Errorf("%s, rewritten: %q and %q, want %q", target, path, query, want)
		}
	}
}
