package commands

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
)

// written is the Caddyfile that the flags stand for, and what was read from them.
type written struct {
	flags        *flags
	data         string // Caddy's data directory
	caddyAdmin   string // $CADDY_ADMIN
	text         string
	secrets      map[string]string // of the flags, by the variables that the text has for them
	warnings     []string
	site, health site
	admin        string
	handler      caddymodule.Handler // as the directive is read
	ownStore     bool                // --dedup says where the state lies
}

// caddyfile writes the Caddyfile that the flags stand for. data is the directory in
// which Caddy keeps its data, and caddyAdmin what $CADDY_ADMIN says.
func (f *flags) caddyfile(data, caddyAdmin string) (*written, error) {
	w := &written{flags: f, data: data, caddyAdmin: caddyAdmin, secrets: make(map[string]string)}
	for _, read := range []func() error{w.readSites, w.readTargets, w.readPaths, w.readDirective, w.readStore, w.readHeaders} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	w.warn()
	w.text = w.write()
	return w, nil
}

// internalCA reports whether the certificate is one of Caddy's internal CA.
func (w *written) internalCA() bool {
	return w.site.scheme == "https" && (w.flags.internalCerts || !certmagic.SubjectQualifiesForPublicCert(w.site.host))
}

// write writes the Caddyfile, in the form that `caddy fmt` gives it.
func (w *written) write() string {
	f := w.flags
	var b block
	b.open("")
	b.line("admin", quote(w.admin))
	b.line("persist_config off")
	b.line("# On shutdown, requests have as long as a run may take; then they are cut off.")
	b.line("grace_period", short(w.handler.RunLimit()))
	if f.debug {
		b.line("debug")
	}
	if f.disableRedirects && w.site.scheme == "https" {
		b.line("auto_https disable_redirects")
	}
	if w.internalCA() {
		b.line("# `caddy-dedup trust` makes this machine trust the certificates of Caddy's internal CA.")
		b.line("skip_install_trust")
	}
	b.open("servers")
	b.line("# Trust X-Forwarded-* of an ingress or a mesh in a private network.")
	b.line("trusted_proxies static private_ranges")
	b.close()
	if !w.ownStore {
		b.open("dedup")
		b.line("store", w.store())
		b.close()
	}
	b.close()
	b.line("")
	w.writeSite(&b)
	if w.site.hostOnly() {
		b.line("")
		b.line("# Otherwise Caddy answers requests for other hosts with an empty 200, which a")
		b.line("# sender of webhooks takes for success.")
		b.open(w.site.scheme + "://:" + w.site.port)
		b.bind(w.site)
		if f.accessLog {
			b.line("log")
		}
		b.line("respond", quote("this proxy serves "+w.site.host), "421")
		b.close()
	}
	if f.health.Given {
		b.line("")
		b.line("# For probes and Prometheus, without a password.")
		b.open(w.health.address())
		b.bind(w.health)
		b.line("dedup_health /live live")
		b.line("dedup_health /ready")
		b.line("metrics /metrics")
		b.close()
	}
	var head block
	head.line("# What `caddy-dedup proxy` runs for its flags. To go on from here, save it as")
	head.line("# Caddyfile, and run it: caddy-dedup run --config Caddyfile")
	if len(w.secrets) > 0 {
		head.line("# Secrets of the flags are placeholders here. Set in its environment: " + strings.Join(slices.Sorted(maps.Keys(w.secrets)), ", "))
	}
	return string(caddyfile.Format([]byte(head.String() + b.String())))
}

func (w *written) store() string {
	f := w.flags
	switch {
	case len(f.redis) > 0:
		words := []string{"redis"}
		for _, url := range f.redis {
			words = append(words, quote(w.hideURL(url)))
		}
		return strings.Join(words, " ")
	case f.file.Given:
		return "file " + quote(f.file.Text)
	default:
		return "file " + w.site.directory()
	}
}

func (w *written) writeSite(b *block) {
	f := w.flags
	b.open(w.site.address())
	b.bind(w.site)
	if f.internalCerts && w.site.scheme == "https" {
		b.line("tls internal")
	}
	if f.accessLog {
		b.line("log")
	}
	head := []string{"dedup"}
	switch paths := quoteAll(f.paths); len(paths) {
	case 0:
	case 1:
		head = append(head, paths[0])
	default:
		b.line("@dedup path", strings.Join(paths, " "))
		head = append(head, "@dedup")
	}
	directive := strings.Join(append(head, quoteAll(f.providers)...), " ")
	if lines := w.lines(); len(lines) > 0 {
		b.open(directive)
		for _, line := range lines {
			b.line(w.hideLine(line)) // `caddy fmt` indents what is in blocks of its own
		}
		b.close()
	} else {
		b.line(directive)
	}
	var inside []string
	if f.changeHost {
		inside = append(inside, "header_up Host {upstream_hostport}")
	}
	for _, field := range f.headerUp {
		name, value := splitField(field)
		inside = append(inside, "header_up "+quote(name)+" "+quote(w.hideField(name, value)))
	}
	for _, field := range f.headerDown {
		name, value := splitField(field)
		inside = append(inside, "header_down "+quote(name)+" "+quote(w.hideField(name, value)))
	}
	proxy := "reverse_proxy " + strings.Join(quoteAll(f.to), " ")
	insecure := f.insecure && w.secureTarget()
	if len(inside) == 0 && !insecure {
		b.line(proxy)
	} else {
		b.open(proxy)
		for _, line := range inside {
			b.line(line)
		}
		if insecure {
			b.open("transport http")
			b.line("tls_insecure_skip_verify")
			b.close()
		}
		b.close()
	}
	b.close()
}

// short writes a duration without the zeros at its end.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// block writes nested blocks.
type block struct {
	strings.Builder
	depth int
}

func (b *block) line(words ...string) {
	if text := strings.Join(words, " "); text != "" {
		b.WriteString(strings.Repeat("\t", b.depth) + text)
	}
	b.WriteString("\n")
}

func (b *block) open(head string) {
	b.line(strings.TrimSpace(head + " {"))
	b.depth++
}

func (b *block) close() {
	b.depth--
	b.line("}")
}

func (b *block) bind(to site) {
	if at := to.bound(); at != "" {
		b.line("bind", at)
	}
}

// quote returns a text as one word of a Caddyfile.
func quote(text string) string {
	switch {
	case text != "" && text != "{" && text != "}" && !strings.ContainsAny(text, " \t\r\n\"`#\\") && !strings.HasPrefix(text, "<<"):
		return text
	case !strings.Contains(text, "`"):
		return "`" + text + "`"
	default:
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
}

func quoteAll(texts []string) []string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return quoted
}
