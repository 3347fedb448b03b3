package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// ofThisMachine are placeholders whose values the machine has.
var ofThisMachine = regexp.MustCompile(`\{(env|file)\.[^}]*\}`)

// loadingStore matches the beginning of an error of a store module.
var loadingStore = regexp.MustCompile(`^loading the store: .*provision dedup\.stores\.\w+: `)

// validate finds mistakes that only provisioning finds, such as a lease too short for Redis. If a
// placeholder of the store has no value, the Caddyfile is for another machine, and validate returns nil.
func (p *proxy) validate() error {
	repl := caddy.NewReplacer()
	replaced := strings.Join(slices.Concat(p.redis, p.dedup, p.verify, []string{p.file}), "\n")
	for _, placeholder := range ofThisMachine.FindAllString(replaced, -1) {
		if _, err := repl.ReplaceOrErr(placeholder, true, true); err != nil {
			return nil
		}
	}
	return p.provision()
}

// provision finds mistakes that only a start finds, such as a variable without a value, and names the flag
// that has them. It opens no store.
func (p *proxy) provision() error {
	base, err := caddy.ProvisionContext(&caddy.Config{Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		caddy.DefaultLoggerName: {BaseLog: caddy.BaseLog{Level: "ERROR"}}, // the start logs the rest
	}}})
	if err != nil {
		return err
	}
	ctx, cancel := caddy.NewContext(base)
	defer cancel()
	whole := p.handler // a copy: the summary does not show defaults
	if err = whole.Provision(ctx); err == nil {
		return nil
	}
	flag, said := "--dedup", err.Error()
	if own := loadingStore.ReplaceAllString(said, ""); own != said {
		said = own
		flag, _ = p.storeLine()
	} else if slices.ContainsFunc(p.verified, func(provider string) bool { return strings.HasPrefix(said, "verify "+provider+": ") }) {
		flag = "--verify"
	}
	return fmt.Errorf("%s: %s", flag, said)
}
