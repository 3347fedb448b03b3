package exchange

import "testing"

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
