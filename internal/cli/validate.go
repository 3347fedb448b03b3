package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// ofThisMachine are placeholders whose values the machine has.
var ofThisMachine = regexp.MustCompile(`\{(env|file)\.[^}]*\}`)

// validate finds mistakes that only provisioning finds, such as a lease too short for Redis. It opens no
// store, dials nothing and leaves no files. config must not be used afterwards. If a placeholder of the
// store has no value, the Caddyfile is for another machine, and validate returns nil.
func (p *proxy) validate(config *caddy.Config) error {
	repl := caddy.NewReplacer()
	replaced := strings.Join(slices.Concat(p.redis, p.dedup, p.verify, []string{p.file}), "\n")
	for _, placeholder := range ofThisMachine.FindAllString(replaced, -1) {
		if _, err := repl.ReplaceOrErr(placeholder, true, true); err != nil {
			return nil
		}
	}
	if err := p.provision(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "caddy-dedup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The certificate authority of `tls internal` would be made where Caddy keeps its own.
	config.StorageRaw = caddyconfig.JSONModuleObject(map[string]string{"root": dir}, "module", "file_system", nil)
	config.Logging = onlyErrors()
	if err := caddy.Validate(config); err != nil {
		return fmt.Errorf("the flags stand for a Caddyfile that cannot be run: %w", err)
	}
	return nil
}

// onlyErrors suppresses log lines below error.
func onlyErrors() *caddy.Logging {
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		caddy.DefaultLoggerName: {BaseLog: caddy.BaseLog{Level: "ERROR"}},
	}}
}

// provision finds mistakes that only a start finds, such as a variable without a value, as the modules
// find them, one flag after the other: the error of a start would name the modules instead. It
// opens no store.
func (p *proxy) provision() error {
	base, err := caddy.ProvisionContext(&caddy.Config{Logging: onlyErrors()})
	if err != nil {
		return err
	}
	ctx, cancel := caddy.NewContext(base)
	defer cancel()
	whole, flag := p.handler, "--dedup"
	if p.store.StoreRaw != nil {
		whole.StoreRaw = p.store.StoreRaw
		flag, _ = p.storeLine()
	}
	if err := provisionStore(ctx, whole.StoreRaw); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	if err := p.verified.Provision(ctx); err != nil {
		return fmt.Errorf("--verify: %w", err)
	}
	if err := whole.Provision(ctx); err != nil { // a copy: the summary does not show defaults
		return fmt.Errorf("--dedup: %w", err)
	}
	return nil
}

// provisionStore provisions the module of a store, if the flags have one.
func provisionStore(ctx caddy.Context, raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	var (
		settings map[string]json.RawMessage
		kind     string
	)
	if err := json.Unmarshal(raw, &settings); err != nil {
		return err
	}
	if err := json.Unmarshal(settings["store"], &kind); err != nil {
		return err
	}
	delete(settings, "store") // as Caddy does: it is no field of the module
	raw, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	info, err := caddy.GetModule("dedup.stores." + kind)
	if err != nil {
		return err
	}
	module := info.New()
	if err := json.Unmarshal(raw, module); err != nil {
		return err
	}
	if p, ok := module.(caddy.Provisioner); ok {
		return p.Provision(ctx)
	}
	return nil
}
