package proxycommand

import (
	"fmt"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/certmagic"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// written is the Caddyfile that the flags stand for, and what was learnt from them.
type written struct {
	flags        *flags
	data         string // Caddy's data directory
	text         string
	warnings     []string
	site, health site
	admin        string
	handler      caddymodule.Handler // as the directive is read
	ownStore     bool                // --dedup says where the state lies
}

// caddyfile writes the Caddyfile that the flags stand for. data is the directory in
// which Caddy keeps its data.
func (f *flags) caddyfile(data string) (*written, error) {
	w := &written{flags: f, data: data}
	for _, read := range []func() error{w.readSites, w.readTargets, w.readDirective, w.readStore, w.readHeaders} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	w.warn()
	w.text = w.write()
	return w, nil
}

func (w *written) readSites() (err error) {
	f := w.flags
	if w.site, err = readSite("from", f.from.text); err != nil {
		return err
	}
	switch {
	case f.admin.given && f.admin.text == "":
		return fmt.Errorf("--admin: it is empty; use an address such as localhost:2019, or off")
	case f.admin.given:
		w.admin = f.admin.text
	default:
		w.admin = admin.SocketAt(w.data, w.site.listen())
	}
	if !f.health.given {
		return nil
	}
	if w.health, err = readSite("health", f.health.text); err != nil {
		return err
	}
	switch {
	case w.health.scheme != "http" || w.health.named():
		return fmt.Errorf("--health: %q is not an address for probes, which come over HTTP and name no host; use one such as :8081 or 127.0.0.1:8081", f.health.text)
	case w.health.port == w.site.port:
		return fmt.Errorf("--health %s and --from %s have the same port; probes need one of their own", f.health.text, f.from.text)
	}
	return nil
}

func (w *written) readTargets() error {
	f := w.flags
	if len(f.to) == 0 {
		return fmt.Errorf("--to is missing: the address of the service, such as localhost:3000")
	}
	for i, to := range f.to {
		if strings.Contains(to, "://") {
			to = strings.TrimSuffix(to, "/")
			f.to[i] = to
		}
		if err := readTarget(to); err != nil {
			return fmt.Errorf("--to: %q is not the address of a service; use one such as localhost:3000, http://localhost:3000 or https://example.com: %w", to, err)
		}
	}
	if err := parse("reverse_proxy "+strings.Join(f.to, " "), "--to", new(reverseproxy.Handler)); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	return nil
}

// readTarget reads the address of a service as Caddy's directive does.
func readTarget(to string) error {
	switch {
	case to == "":
		return fmt.Errorf("it is empty")
	case strings.ContainsAny(to, "@?# \t\r\n\"`"):
		return fmt.Errorf("it has more than a scheme, a host and a port")
	case !strings.Contains(to, "://") && strings.Contains(to, "/") && !strings.HasPrefix(to, "unix"):
		return fmt.Errorf("it has a path")
	}
	return parse("reverse_proxy "+to, "--to", new(reverseproxy.Handler))
}

// readDirective reads the directive that --provider and --dedup make, each line of it
// alone first, to name the flag that is wrong.
func (w *written) readDirective() error {
	f := w.flags
	providers := strings.Join(quoteAll(f.providers), " ")
	if err := parse("dedup "+providers, "--provider", new(caddymodule.Handler)); err != nil {
		return fmt.Errorf("--provider: %w", err)
	}
	for _, line := range f.lines {
		var alone caddymodule.Handler
		if err := parse("dedup {\n"+line+"\n}", "--dedup", &alone); err != nil {
			return fmt.Errorf("--dedup %q: %w", line, err)
		}
		w.ownStore = w.ownStore || alone.StoreRaw != nil
	}
	if err := parse("dedup "+providers+" {\n"+strings.Join(f.lines, "\n")+"\n}", "--dedup", &w.handler); err != nil {
		return fmt.Errorf("--dedup and --provider: %w", err)
	}
	return nil
}

// parse has a Caddyfile's directive read, all of it.
func parse(text, from string, into caddyfile.Unmarshaler) error {
	tokens, err := caddyfile.Tokenize([]byte(text), from)
	if err != nil {
		return err
	}
	d := caddyfile.NewDispenser(tokens)
	if err := into.UnmarshalCaddyfile(d); err != nil {
		return err
	}
	if d.Next() {
		return fmt.Errorf("after its end comes %q", d.Val())
	}
	return nil
}

func (w *written) readStore() error {
	f := w.flags
	switch {
	case len(f.redis) > 0 && f.file.given:
		return fmt.Errorf("--redis %s and --file %s exclude each other: the state lies in one place", redacted(f.redis), f.file.text)
	case w.ownStore && len(f.redis) > 0:
		return fmt.Errorf("--redis %s and --dedup 'store …' exclude each other: the state lies in one place", redacted(f.redis))
	case w.ownStore && f.file.given:
		return fmt.Errorf("--file %s and --dedup 'store …' exclude each other: the state lies in one place", f.file.text)
	case f.file.given && f.file.text == "":
		return fmt.Errorf("--file: it is empty; use the path of a directory")
	}
	if len(f.redis) > 0 {
		if err := parse("dedup {\nstore "+w.store()+"\n}", "--redis", new(caddymodule.Handler)); err != nil {
			return fmt.Errorf("--redis: %w", err)
		}
	}
	if f.file.given {
		// In a Caddyfile a relative path lies in Caddy's data directory; on a command line
		// it lies where one is.
		path, err := filepath.Abs(f.file.text)
		if err != nil {
			return fmt.Errorf("--file %s: %w", f.file.text, err)
		}
		f.file.text = path
	}
	return nil
}

func (w *written) readHeaders() error {
	f := w.flags
	for flag, fields := range map[string][]string{"header-up": f.headerUp, "header-down": f.headerDown} {
		for _, field := range fields {
			name, value := splitField(field)
			// A sign in front would have another meaning in the Caddyfile.
			if !httpguts.ValidHeaderFieldName(name) || strings.ContainsAny(name[:1], "+-") || value == "" || !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("--%s: %q is not a header field; use one such as \"Field: value\"", flag, field)
			}
			if f.changeHost && flag == "header-up" && textproto.CanonicalMIMEHeaderKey(name) == "Host" {
				return fmt.Errorf("--change-host-header and --header-up %q exclude each other: both set Host", field)
			}
		}
	}
	return nil
}

func splitField(field string) (name, value string) {
	name, value, _ = strings.Cut(field, ":")
	return strings.TrimSpace(name), strings.TrimSpace(value)
}

// warn names the flags that change nothing. `caddy reverse-proxy` takes them too.
func (w *written) warn() {
	f := w.flags
	if w.site.scheme == "http" {
		for name, given := range map[string]bool{"internal-certs": f.internalCerts, "disable-redirects": f.disableRedirects} {
			if given {
				w.warnings = append(w.warnings, fmt.Sprintf("--%s changes nothing: --from %s is not served over HTTPS", name, f.from.text))
			}
		}
	}
	if f.insecure && !w.secureTarget() {
		w.warnings = append(w.warnings, fmt.Sprintf("--insecure changes nothing: --to %s is not reached over HTTPS", strings.Join(f.to, ", ")))
	}
	slices.Sort(w.warnings)
}

func (w *written) secureTarget() bool {
	return slices.ContainsFunc(w.flags.to, func(to string) bool { return strings.HasPrefix(to, "https://") })
}

// internalCA reports whether the certificate is one of Caddy's internal CA.
func (w *written) internalCA() bool {
	return w.site.scheme == "https" && (w.flags.internalCerts || !certmagic.SubjectQualifiesForPublicCert(w.site.host))
}

// write writes the Caddyfile, in the form that `caddy fmt` gives it.
func (w *written) write() string {
	f := w.flags
	var b block
	b.line("# What `caddy-dedup proxy` runs for its flags. To go on from here, save it as")
	b.line("# Caddyfile, and run it: caddy-dedup run --config Caddyfile")
	b.open("")
	b.line("admin", quote(w.admin))
	b.line("persist_config off")
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
	b.line("# An ingress or a mesh in a private network says in X-Forwarded-* who the client was.")
	b.line("trusted_proxies static private_ranges")
	b.close()
	if !w.ownStore {
		b.open("dedup")
		if hasPassword(f.redis) {
			b.line("# A placeholder, such as {env.REDIS_PASSWORD}, keeps a password out of this file.")
		}
		b.line("store", w.store())
		b.close()
	}
	b.close()
	b.line("")
	w.writeSite(&b)
	if w.site.scheme == "http" && w.site.named() {
		b.line("")
		b.line("# Otherwise Caddy answers requests for other hosts with an empty 200, which a")
		b.line("# sender of webhooks takes for success.")
		b.open("http://:" + w.site.port)
		b.line("respond", quote("this proxy serves "+w.site.host), "421")
		b.close()
	}
	if f.health.given {
		b.line("")
		b.line("# For probes and for Prometheus: who asks here needs no name and no password.")
		b.open(w.health.address())
		b.bind(w.health)
		b.line("dedup_health /live live")
		b.line("dedup_health /ready")
		b.line("metrics /metrics")
		b.close()
	}
	return string(caddyfile.Format([]byte(b.String())))
}

func (w *written) store() string {
	f := w.flags
	switch {
	case len(f.redis) > 0:
		return "redis " + strings.Join(quoteAll(f.redis), " ")
	case f.file.given:
		return "file " + quote(f.file.text)
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
	head := strings.Join(append([]string{"dedup"}, quoteAll(f.providers)...), " ")
	if len(f.lines) > 0 {
		b.open(head)
		for _, lines := range f.lines {
			for line := range strings.Lines(lines) {
				b.line(strings.TrimSpace(line))
			}
		}
		b.close()
	} else {
		b.line(head)
	}
	var inside []string
	if f.changeHost {
		inside = append(inside, "header_up Host {upstream_hostport}")
	}
	for _, field := range f.headerUp {
		name, value := splitField(field)
		inside = append(inside, "header_up "+name+" "+quote(value))
	}
	for _, field := range f.headerDown {
		name, value := splitField(field)
		inside = append(inside, "header_down "+name+" "+quote(value))
	}
	proxy := "reverse_proxy " + strings.Join(f.to, " ")
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

// hasPassword reports whether a URL has a password that is not a placeholder.
func hasPassword(urls []string) bool {
	return slices.ContainsFunc(urls, func(text string) bool {
		u, err := url.Parse(text)
		if err != nil || u.User == nil {
			return false
		}
		password, _ := u.User.Password()
		return password != "" && !strings.HasPrefix(password, "{")
	})
}

// redacted names Redis servers without their passwords.
func redacted(urls []string) string {
	shown := make([]string, len(urls))
	for i, text := range urls {
		shown[i] = "the URL given"
		if u, err := url.Parse(text); err == nil {
			shown[i] = u.Redacted()
		}
	}
	return strings.Join(shown, ", ")
}
