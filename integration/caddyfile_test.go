package integration

import (
	"fmt"
	"path/filepath"
	"strings"
)

// conf describes a Caddyfile with one plain HTTP site on a port of its own.
type conf struct {
	// store and dedup are lines of the global option `dedup`.
	store, dedup string
	// global are further global options.
	global string
	// site is the block of the one site; or sites are whole site blocks, in
	// which PORT stands for the port.
	site, sites string
	// dir is the home of an earlier process whose state this one takes on.
	dir string
	// port of an earlier process, 0 for a free one.
	port int
	// under is the beginning of a command that runs the binary, such as with other limits.
	under []string
}

func (c conf) caddyfile(dir string, port int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{\n\tadmin unix/%s\n\tdefault_bind 127.0.0.1\n\tauto_https off\n\tpersist_config off\n", adminSocket(dir))
	fmt.Fprintln(&b, c.global)
	if c.store+c.dedup != "" {
		fmt.Fprintf(&b, "\tdedup {\n%s\n%s\n}\n", c.store, c.dedup)
	}
	fmt.Fprintln(&b, "}")
	if c.sites != "" {
		b.WriteString(strings.ReplaceAll(c.sites, "PORT", fmt.Sprint(port)))
	} else {
		fmt.Fprintf(&b, "http://:%d {\n%s\n}\n", port, c.site)
	}
	return b.String()
}

func adminSocket(dir string) string { return filepath.Join(dir, "admin.sock") }

// lines joins the lines of a Caddyfile block.
func lines(l ...string) string { return strings.Join(l, "\n") }

// dedupBlock is a dedup directive with these lines.
func dedupBlock(l ...string) string { return "dedup {\n" + lines(l...) + "\n}" }

// proxyTo is the directive that leads to the upstream.
func proxyTo(u *upstream) string { return "reverse_proxy " + u.addr }

// limits are those of the global option.
func limits(l ...string) string { return "limits {\n" + lines(l...) + "\n}" }
