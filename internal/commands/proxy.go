// Package commands has the commands of caddy-dedup that Caddy does not have: proxy, which
// writes the Caddyfile that its flags stand for and runs it, providers, keys and health.
package commands

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func init() {
	cobra.OnInitialize(makeDataDirectory)
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "proxy",
		Usage: "--from <address> --to <address>... [--provider <name>]... [--redis <url> | --file <directory>] [--dedup <line>]... [--path <path>]... [--observe] [--print]",
		Short: "Makes one service idempotent, without a configuration file",
		Long: `
Listens on --from, passes requests on to --to, and lets none of them through
twice: duplicates get the response of the first. With several --to, each request
goes to one of them.

Without --provider it serves the Idempotency-Key header of an API. With one or
more it serves their webhooks.

--from is a port (:8080) or an address of this machine (127.0.0.1:8080), served
over HTTP, or a name (example.com), served over HTTPS with a certificate that
Caddy obtains, unless it begins with http://.

Claims and responses are kept durably in the directory dedup-<port> in Caddy's
data directory, or in that of --file, or in the Redis server of --redis, which
several replicas can share. The password in its URL may be a placeholder, such
as {env.REDIS_PASSWORD}. Several --redis are nodes of one cluster.

--dedup takes any line of the dedup directive, such as 'retention 30d'. With
--path, such as '/webhooks/*', only requests with that path are protected, and
the others are passed on. With --observe all are passed on: it logs and counts
what it would have done.

--print shows the Caddyfile that the flags stand for, with placeholders for its
secrets, and exits: save it to go on from there with 'caddy-dedup run'.

X-Forwarded-* of clients in private networks is passed on, as a sidecar behind
an ingress needs it.

The log has a line for each request that is refused, released, held or not sent,
and with --access-log for every request.

The admin API listens on a unix socket in the data directory, where
'caddy-dedup keys' finds it, unless --admin or $CADDY_ADMIN names another
address, or off.
--health serves /live, /ready and /metrics, for probes, on an address of its own.`,
		CobraFunc: func(cmd *cobra.Command) {
			f := new(flags)
			cmd.Args = flagsOnly
			f.define(cmd)
			cmd.RunE = caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return f.run() })
		},
	})
}

// flagsOnly refuses words that belong to no flag, such as the second word of a header field. It
// does not show them, as [cobra.NoArgs] does.
func flagsOnly(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("proxy takes flags only, and %d words belong to none; put a value with a space in it in quotes", len(args))
	}
	return nil
}

// run prints the Caddyfile of the flags, or runs it and does not return.
func (f *flags) run() (int, error) {
	written, err := f.caddyfile(caddy.AppDataDir(), os.Getenv("CADDY_ADMIN"))
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	for name, value := range written.secrets {
		if err := os.Setenv(name, value); err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("setting the variable %s: %w", name, err)
		}
	}
	config, err := adapt(written.text)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	for _, warning := range written.warnings {
		fmt.Fprintln(os.Stderr, "warning:", warning)
	}
	if f.print {
		if err := written.validate(config); err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
		_, err := os.Stdout.WriteString(written.text)
		return caddy.ExitCodeSuccess, err
	}
	caddy.TrapSignals()
	if !config.Admin.Disabled {
		// Caddy replaces placeholders too, and the socket has to be where Caddy puts it.
		if written.admin, err = caddy.NewReplacer().ReplaceOrErr(config.Admin.Listen, true, true); err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("the address %s of the admin API: %w", config.Admin.Listen, err)
		}
	}
	if err := written.checkPorts(); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	var socket admin.Socket
	if !config.Admin.Disabled {
		if socket, err = admin.NewSocket(written.admin); err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
	}
	limitMemory()
	if err := caddy.Run(config); err != nil {
		socket.Remove()
		if len(f.redis) == 0 && !f.file.Given && strings.Contains(err.Error(), "store directory") && strings.Contains(err.Error(), "in use") {
			err = fmt.Errorf("%w; --file gives this proxy a directory of its own", err)
		}
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Println(written.summary())
	select {}
}

// ofThisMachine are placeholders whose values the machine has.
var ofThisMachine = regexp.MustCompile(`\{(env|file)\.[^}]*\}`)

// validate finds mistakes that otherwise only a start finds, such as a lease that is too short
// for Redis. It opens no store, dials nothing and leaves no files behind, and config must not
// be used after it. If a placeholder of the store has no value here, the Caddyfile is for
// another machine, and validate returns nil.
func (w *written) validate(config *caddy.Config) error {
	repl := caddy.NewReplacer()
	replaced := strings.Join(slices.Concat(w.flags.redis, w.flags.lines, []string{w.flags.file.Text}), "\n")
	for _, placeholder := range ofThisMachine.FindAllString(replaced, -1) {
		if _, err := repl.ReplaceOrErr(placeholder, true, true); err != nil {
			return nil
		}
	}
	dir, err := os.MkdirTemp("", "caddy-dedup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The certificate authority of `tls internal` would be made where Caddy keeps its own.
	config.StorageRaw = caddyconfig.JSONModuleObject(map[string]string{"root": dir}, "module", "file_system", nil)
	// Keep the messages of a start out of the output.
	config.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		caddy.DefaultLoggerName: {BaseLog: caddy.BaseLog{Level: "ERROR"}},
	}}
	if err := caddy.Validate(config); err != nil {
		return fmt.Errorf("the flags stand for a Caddyfile that cannot be run: %w", err)
	}
	return nil
}

// limitMemory sets Go's memory limit to a part of the memory that the process may use,
// $AUTOMEMLIMIT or nine tenths. Caddy does so only for `run`.
func limitMemory() {
	// It fails on systems without a limit.
	_, _ = memlimit.Set(memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
}

// adapt returns the configuration that a Caddyfile stands for.
func adapt(text string) (*caddy.Config, error) {
	document, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, fmt.Errorf("the flags stand for a Caddyfile that is wrong: %w", err)
	}
	for _, warning := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", warning.Message)
	}
	config := new(caddy.Config)
	if err := json.Unmarshal(document, config); err != nil {
		return nil, err
	}
	return config, nil
}

// methods returns those that are deduplicated.
func (w *written) methods() []string {
	if len(w.handler.Methods) > 0 {
		return w.handler.Methods
	}
	return caddymodule.DefaultMethods()
}

// summary says what the proxy protects, how to try it, and where it keeps its state.
func (w *written) summary() string {
	f := w.flags
	what, try := "requests with the header "+delivery.IdempotencyKeyHeader, w.request(delivery.IdempotencyKeyHeader)
	switch {
	case len(f.providers) > 0:
		what, try = "webhooks of "+strings.Join(f.providers, ", "), w.delivery(f.providers[0])
	case len(w.handler.Keys) > 0:
		what, try = "requests with the keys of --dedup", w.url()
	}
	state := w.stateDirectory()
	switch {
	case w.ownStore:
		state = "as --dedup says"
	case len(f.redis) > 0:
		state = "Redis at " + redacted(f.redis...)
	}
	does := "caddy-dedup protects " + strings.Join(f.to, ", ")
	if w.handler.Observe {
		does = "caddy-dedup observes " + strings.Join(f.to, ", ") + ", and every request passes"
	}
	if len(f.paths) > 0 {
		what += " at " + strings.Join(f.paths, ", ")
	}
	lines := []string{
		does,
		fmt.Sprintf("  %s (%s)", what, strings.Join(w.methods(), ", ")),
		"  try:    " + try,
		"  state:  " + state,
		"  admin:  " + strings.TrimSuffix(w.admin, admin.SocketMode),
	}
	if len(f.redis) > 0 && len(w.handler.Scope) == 0 { // the host with its port is part of the key
		lines = append(lines, "  shared: with replicas that clients reach under the same host and port, or write --dedup 'scope ...'")
	}
	if f.health.Given {
		lines = append(lines, "  health: "+w.health.url()+"/ready")
	}
	return strings.Join(lines, "\n")
}

// request is a command that sends a request with a key in a header field.
func (w *written) request(field string) string {
	insecure := ""
	if w.internalCA() {
		insecure = "-k " // its CA is known to nobody
	}
	return fmt.Sprintf("curl %s-i -X %s -H '%s: try-1' -d hello %s", insecure, w.methods()[0], field, w.url())
}

// url is one that is protected.
func (w *written) url() string {
	if paths := w.flags.paths; len(paths) > 0 {
		return w.site.url() + strings.ReplaceAll(paths[0], "*", "try")
	}
	return w.site.url() + "/"
}

// delivery is a command that sends what dedup takes for a delivery of a provider, or the
// address alone where that needs more than one header field.
func (w *written) delivery(provider string) string {
	p, _ := delivery.ProviderNamed(provider)
	if len(p.Sources) == 0 || p.Sources[0].Kind != delivery.KindHeader || len(p.Signs.AnyOf) > 0 {
		return w.url()
	}
	return w.request(p.Sources[0].Header)
}

// stateDirectory is the directory of the file store.
func (w *written) stateDirectory() string {
	return cmp.Or(w.flags.file.Text, filepath.Join(w.data, w.site.directory()))
}

// makeDataDirectory makes Caddy's data directory before `run`, which `start` runs too. The
// Caddyfile of `proxy --print` has the admin API on a socket there, and Caddy makes no
// directory for it. It is done here and not in the binary of caddy-dedup, because a Caddy
// that xcaddy builds runs such a Caddyfile, too.
func makeDataDirectory() {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		_ = os.MkdirAll(caddy.AppDataDir(), 0o700) // if it cannot be made, Caddy says so
	}
}
