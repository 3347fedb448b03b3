package caddymodule

import (
	"maps"
	"testing"
)

// A dedup that no request can reach is one warning for its site, at the start.
func TestUnreachableDedup(t *testing.T) {
	const proxy = "reverse_proxy localhost:9\n"
	for name, c := range map[string]struct {
		order, lines string
		want         map[string]string // by site, the handler that the warning names
	}{
		"written first":                 {"", "route {\ndedup\n" + proxy + "}", nil},
		"order of directives":           {"", proxy + "dedup", nil},
		"reverse_proxy first":           {"", "route {\n" + proxy + "dedup\n}", map[string]string{":80": "reverse_proxy"}},
		"order last":                    {"order dedup last", "dedup\n" + proxy, map[string]string{":80": "reverse_proxy"}},
		"order after reverse_proxy":     {"order dedup after reverse_proxy", "dedup\n" + proxy, map[string]string{":80": "reverse_proxy"}},
		"every path first":              {"", "route {\nreverse_proxy * localhost:9\ndedup\n}", map[string]string{":80": "reverse_proxy"}},
		"respond first":                 {"", "route {\nrespond 404\ndedup\n}", map[string]string{":80": "respond or redir"}},
		"early hints first":             {"", "route {\nrespond 103\ndedup\n" + proxy + "}", nil},
		"redir first":                   {"", "redir https://other.test\ndedup\n" + proxy, map[string]string{":80": "respond or redir"}},
		"file_server first":             {"", "route {\nfile_server\ndedup\n}", map[string]string{":80": "file_server"}},
		"file_server pass_thru first":   {"", "route {\nfile_server {\npass_thru\n}\ndedup\n" + proxy + "}", nil},
		"in a later block":              {"", "route {\nroute {\n" + proxy + "}\nhandle /x {\ndedup\n}\n}", map[string]string{":80": "reverse_proxy"}},
		"two of one site":               {"", "route {\n" + proxy + "dedup /a\ndedup /b\n}", map[string]string{":80": "reverse_proxy"}},
		"only the second":               {"", "route {\ndedup\n" + proxy + "dedup\n}", map[string]string{":80": "reverse_proxy"}},
		"forward_auth first":            {"", "route {\nforward_auth localhost:9 {\nuri /auth\n}\ndedup\n" + proxy + "}", nil},
		"handle_response first":         {"", "route {\nreverse_proxy localhost:9 {\nhandle_response {\nvars a b\n}\n}\ndedup\n" + proxy + "}", nil},
		"reverse_proxy of a path first": {"", "route {\nreverse_proxy /static/* localhost:9\ndedup\n" + proxy + "}", nil},
		"block of a path first":         {"", "route {\nroute /a {\n" + proxy + "}\ndedup\n" + proxy + "}", nil},
		"other handlers first":          {"", "route {\nheader X-A b\nvars a b\nrewrite * /x\nencode gzip\ndedup\n" + proxy + "}", nil},
		"in the first handle":           {"", "handle /api/* {\ndedup\n" + proxy + "}\nhandle {\n" + proxy + "}", nil},
		"in the last handle":            {"", "handle /api/* {\n" + proxy + "}\nhandle {\ndedup\n" + proxy + "}", nil},
		"behind a handle of all":        {"", "route {\nhandle {\n" + proxy + "}\nhandle /api/* {\ndedup\n" + proxy + "}\n}", map[string]string{":80": "reverse_proxy"}},
		"behind handles, one continues": {"", "route {\nhandle /api/* {\nheader X-A b\n}\nhandle {\n" + proxy + "}\ndedup\n" + proxy + "}", nil},
		"behind handles, all answer":    {"", "route {\nhandle /api/* {\nrespond ok\n}\nhandle {\n" + proxy + "}\ndedup\n}", map[string]string{":80": "reverse_proxy"}},
		"error routes":                  {"", "dedup\n" + proxy + "handle_errors {\nrespond failed\n}", nil},
		"named route":                   {"", "invoke app\n}\n&(app) {\nroute {\n" + proxy + "dedup\n}", map[string]string{":80": "reverse_proxy"}},
		"one site of three": {"", "dedup\n" + proxy + "}\nhttp://b.test, http://c.test {\nroute {\n" + proxy + "dedup\n}\n}\nhttp://d.test {\n" + proxy,
			map[string]string{"b.test, c.test": "reverse_proxy"}},
		"host in a site": {"", "@a host a.test\nroute @a {\n" + proxy + "dedup\n}\ndedup\n" + proxy, map[string]string{"a.test": "reverse_proxy"}},
	} {
		t.Run(name, func(t *testing.T) {
			serveLogged(t, "", "}\n"+c.order+"\nservers {", c.lines)
			warned := book.about("no request reaches dedup")
			got := make(map[string]string)
			for _, line := range warned {
				got[line.text("site")] = line.text("handler")
			}
			if !maps.Equal(got, c.want) || len(warned) != len(c.want) {
				t.Errorf("warned %v; want %v", warned, c.want)
			}
		})
	}
}
