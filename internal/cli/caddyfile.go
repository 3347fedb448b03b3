package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
)

// internalCA reports whether the certificate is one of Caddy's internal CA.
func (p *proxy) internalCA() bool {
	return p.site.scheme == "https" && (p.internalCerts || !certmagic.SubjectQualifiesForPublicCert(p.site.host))
}

// caddyfile writes the Caddyfile that the flags stand for, in the form that `caddy fmt` gives
// it.
func (p *proxy) caddyfile() (string, error) {
	var b block
	b.open("")
	b.line("admin", quote(inCaddyfile(p.admin)))
	b.line("persist_config off")
	b.line("# On shutdown, requests have as long as a run may take; then they are cut off.")
	b.line("grace_period", caddymodule.ShortDuration(p.handler.RunLimit()))
	if p.debug {
		b.line("debug")
	}
	if p.disableRedirects && p.site.scheme == "https" {
		b.line("auto_https disable_redirects")
	}
	if p.internalCA() {
		b.line("# `caddy-dedup trust` makes this machine trust the certificates of Caddy's internal CA.")
		b.line("skip_install_trust")
	}
	b.open("servers")
	b.line("# Trust X-Forwarded-* of an ingress or a mesh in a private network.")
	b.line("trusted_proxies static private_ranges")
	b.close()
	if _, line := p.storeLine(); line != "" {
		b.open("dedup")
		b.line(line)
		b.close()
	}
	b.close()
	b.line("")
	if err := p.writeSite(&b); err != nil {
		return "", err
	}
	if p.site.hostOnly() {
		b.line("")
		b.line("# Otherwise Caddy answers requests for other hosts with an empty 200, which a")
		b.line("# sender of webhooks takes for success.")
		b.open(p.site.scheme + "://:" + p.site.portText)
		b.bind(p.site)
		if p.accessLog {
			b.line("log")
		}
		b.line("respond", quote("this proxy serves "+p.site.hostOr(p.site.hostText)), "421")
		b.close()
	}
	if p.health != "" {
		b.line("")
		b.line("# For probes and Prometheus, without a password.")
		b.open(p.probes.address())
		b.bind(p.probes)
		b.line("dedup_health /live live")
		b.line("dedup_health /ready")
		b.line("metrics /metrics")
		b.close()
	}
	var head block
	head.line("# What `caddy-dedup proxy` runs for its flags. To go on from here, save it as")
	head.line("# Caddyfile, and run it: caddy-dedup run --config Caddyfile")
	if len(p.secrets) > 0 {
		head.line("# Secrets of the flags are placeholders here. Set in its environment: " + strings.Join(slices.Sorted(maps.Keys(p.secrets)), ", "))
	}
	return string(caddyfile.Format([]byte(head.String() + b.String()))), nil
}

// storeLine returns the line of the global option for the store, "" if the directive has one, and the flag
// that names the store.
func (p *proxy) storeLine() (flag, line string) {
	switch {
	case len(p.redis) > 0:
		return "--redis", "store redis " + p.redisURLs()
	case p.file != "":
		return "--file", "store file " + quote(p.file)
	case p.handler.StoreRaw != nil:
		return "--dedup", ""
	default:
		return "", "store file " + directoryOf(p.site.portText)
	}
}

// redisURLs are those of --redis without their passwords.
func (p *proxy) redisURLs() string { return quoteAll(each(p.redis, p.hideURL)) }

func (p *proxy) writeSite(b *block) error {
	b.open(quote(p.site.address()))
	b.bind(p.site)
	if p.internalCerts && p.site.scheme == "https" {
		b.line("tls internal")
	}
	if p.accessLog {
		b.line("log")
	}
	matcher := ""
	switch len(p.paths) {
	case 0:
	case 1:
		matcher = " " + quote(inCaddyfile(p.paths[0]))
	default:
		b.line("@dedup path", quoteAll(each(p.paths, inCaddyfile)))
		matcher = " @dedup"
	}
	if note := p.unsignedNote(); note != "" {
		b.line("# " + strings.ToUpper(note[:1]) + note[1:] + ".")
	}
	b.block("dedup"+matcher+" "+quoteAll(each(p.providers, inCaddyfile)), p.lines)
	var inside block
	if p.changeHost {
		inside.line("header_up Host {upstream_hostport}")
	}
	for _, set := range []struct {
		flag, word string
		fields     []string
	}{{"header-up", "header_up", p.headerUp}, {"header-down", "header_down", p.headerDown}} {
		for i, field := range set.fields {
			name, value, _ := strings.Cut(field, ":")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			if name == "" || value == "" { // all of it may be a secret
				return fmt.Errorf("--%s: value %d is not a field with a name, a colon and a value; use one such as \"Field: value\"", set.flag, i+1)
			}
			inside.line(set.word, quote(name), quote(p.hideField(name, value)))
		}
	}
	if p.insecure && slices.ContainsFunc(p.services, func(to string) bool { return strings.HasPrefix(to, "https://") }) {
		inside.open("transport http")
		inside.line("tls_insecure_skip_verify")
		inside.close()
	}
	b.block("reverse_proxy "+quoteAll(each(p.to, inCaddyfile)), inside.String())
	b.close()
	return nil
}

// block writes nested blocks, which `caddy fmt` indents.
type block struct{ strings.Builder }

func (b *block) line(words ...string) {
	b.WriteString(strings.Join(words, " ") + "\n")
}

func (b *block) open(head string) { b.line(strings.TrimSpace(head + " {")) }

func (b *block) close() { b.line("}") }

// block writes a directive, with its block where that has lines.
func (b *block) block(head, lines string) {
	if head = strings.TrimSpace(head); lines == "" {
		b.line(head)
		return
	}
	b.open(head)
	b.WriteString(lines)
	b.close()
}

func (b *block) bind(to site) {
	if to.ip {
		b.line("bind", to.hostText)
	}
}

// quote returns a text as one word of a Caddyfile.
func quote(text string) string {
	switch {
	case text != "" && !strings.HasSuffix(text, "{") && text != "}" && !strings.ContainsAny(text, " \t\r\n\"`#\\") && !strings.HasPrefix(text, "<<"):
		return text
	case !strings.Contains(text, "`"):
		return "`" + text + "`"
	default:
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
}

func quoteAll(texts []string) string { return strings.Join(each(texts, quote), " ") }
