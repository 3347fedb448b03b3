package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/keyscommand"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "proxy",
		Usage: "--from <address> --to <address> [--provider <name>]... [--redis <url>] [--admin <address>|off]",
		Short: "Makes one service idempotent, without a configuration file",
		Long: `
Listens on --from, passes requests on to --to, and lets none of them through
twice: duplicates get the response of the first.

Without --provider it serves the Idempotency-Key header of an API. With one or
more it serves their webhooks.

Claims and responses are kept durably in Caddy's data directory, or in
the Redis server of --redis, which several replicas can share. The password in
its URL may be a placeholder, such as {env.REDIS_PASSWORD}.

X-Forwarded-* of clients in private networks is passed on, as a sidecar behind
an ingress needs it.

The admin API listens on a unix socket in the data directory, unless --admin
names another address, or off.`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Args = cobra.NoArgs
			cmd.Flags().StringP("from", "f", "", "Address to listen on, such as :8080")
			cmd.Flags().StringP("to", "t", "", "Address of the service, such as localhost:3000 or http://localhost:3000")
			cmd.Flags().StringArrayP("provider", "p", nil, "A provider whose webhooks arrive, such as github; may be repeated")
			cmd.Flags().StringP("redis", "r", "", "URL of the Redis server that keeps the state, such as redis://localhost:6379")
			cmd.Flags().StringP("admin", "a", "", "Address of the admin API, or off")
			if err := cmd.RegisterFlagCompletionFunc("provider", completeProviders); err != nil {
				panic("caddymodule: completing a flag that is not defined: " + err.Error())
			}
			cmd.RunE = caddycmd.WrapCommandFuncForCobra(runProxy)
		},
	})
}

// privateRanges are what Caddy's private_ranges stands for: loopback, and the
// addresses of private networks (RFC 1918, RFC 4193).
var privateRanges = []string{
	"127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8",
}

// proxyFlags are the flags of the command.
type proxyFlags struct {
	from, to, redis, admin string
	providers              []string
}

func runProxy(fs caddycmd.Flags) (int, error) {
	caddy.TrapSignals()
	providers, err := fs.GetStringArray("provider")
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	flags := proxyFlags{
		from: fs.String("from"), to: fs.String("to"), redis: fs.String("redis"), admin: fs.String("admin"),
		providers: providers,
	}
	config, err := flags.config()
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	var socket admin.Socket
	if !config.Admin.Disabled {
		if socket, err = admin.NewSocket(config.Admin.Listen); err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
	}
	if err := caddy.Run(config); err != nil {
		socket.Remove()
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Println(flags.summary(config))
	select {}
}

// config returns the configuration that the flags stand for.
func (f proxyFlags) config() (*caddy.Config, error) {
	listen, err := f.listenAddress()
	if err != nil {
		return nil, err
	}
	upstream, err := f.upstream()
	if err != nil {
		return nil, err
	}
	if err := checkProviders(f.providers); err != nil {
		return nil, fmt.Errorf("--provider: %w", err)
	}
	store := caddyconfig.JSONModuleObject(new(FileStore), "store", "file", nil)
	if f.redis != "" {
		if _, err := redis.ParseURL(f.redis); err != nil && !strings.Contains(f.redis, "{") {
			return nil, fmt.Errorf("--redis: %w", err)
		}
		store = caddyconfig.JSONModuleObject(&RedisStore{URL: f.redis}, "store", "redis", nil)
	}
	// What stands before a sidecar, an ingress or a service mesh, says in
	// X-Forwarded-* who the client was, and the service goes by it.
	trusted := caddyhttp.StaticIPRange{Ranges: privateRanges}
	handler := &Handler{Settings: Settings{Providers: f.providers}}
	http := caddyhttp.App{Servers: map[string]*caddyhttp.Server{"dedup": {
		Listen:            []string{listen},
		TrustedProxiesRaw: caddyconfig.JSONModuleObject(trusted, "source", "static", nil),
		AutoHTTPS:         &caddyhttp.AutoHTTPSConfig{Disabled: true},
		Routes: caddyhttp.RouteList{{HandlersRaw: []json.RawMessage{
			caddyconfig.JSONModuleObject(handler, "handler", "dedup", nil),
			caddyconfig.JSONModuleObject(upstream, "handler", "reverse_proxy", nil),
		}}},
	}}}
	persist := false
	return &caddy.Config{
		Admin: f.adminConfig(listen, &persist),
		AppsRaw: caddy.ModuleMap{
			"http":  caddyconfig.JSON(http, nil),
			"dedup": caddyconfig.JSON(App{StoreRaw: store}, nil),
		},
	}, nil
}

func (f proxyFlags) listenAddress() (string, error) {
	host, port, err := net.SplitHostPort(f.from)
	if err != nil || !isPort(port) || strings.ContainsAny(host, "/?@ ") {
		return "", fmt.Errorf("--from: %q is not an address to listen on; use one such as :8080 or 127.0.0.1:8080", f.from)
	}
	return net.JoinHostPort(host, port), nil
}

func (f proxyFlags) upstream() (*reverseproxy.Handler, error) {
	wrong := fmt.Errorf("--to: %q is not the address of a service; use one such as localhost:3000, http://localhost:3000 or https://example.com", f.to)
	address, secure := f.to, false
	if strings.Contains(f.to, "://") {
		u, err := url.Parse(f.to)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return nil, wrong
		}
		secure = u.Scheme == "https"
		address = u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), map[bool]string{false: "80", true: "443"}[secure])
		}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || !isPort(port) || strings.ContainsAny(host, "/?@ ") {
		return nil, wrong
	}
	if host == "" {
		host = "localhost"
	}
	transport := reverseproxy.HTTPTransport{}
	if secure {
		transport.TLS = new(reverseproxy.TLSConfig)
	}
	return &reverseproxy.Handler{
		TransportRaw: caddyconfig.JSONModuleObject(transport, "protocol", "http", nil),
		Upstreams:    reverseproxy.UpstreamPool{{Dial: net.JoinHostPort(host, port)}},
	}, nil
}

// isPort reports whether a text is the number of a port.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// adminConfig puts the admin API on a socket that only this user can reach. Its
// name has the address in it: several proxies can share a data directory.
func (f proxyFlags) adminConfig(listen string, persist *bool) *caddy.AdminConfig {
	config := &caddy.AdminConfig{Config: &caddy.ConfigSettings{Persist: persist}}
	switch f.admin {
	case "off":
		config.Disabled = true
	case "":
		config.Listen = admin.SocketAt(caddy.AppDataDir(), listen)
	default:
		config.Listen = f.admin
	}
	return config
}

// summary says what the proxy protects, and where it keeps its state.
func (f proxyFlags) summary(config *caddy.Config) string {
	what := "requests with the header " + delivery.IdempotencyKeyHeader
	if len(f.providers) > 0 {
		what = "webhooks of " + strings.Join(f.providers, ", ")
	}
	state := "the directory " + filepath.Join(caddy.AppDataDir(), defaultDirectory)
	if f.redis != "" {
		state = "Redis at " + redactedURL(f.redis)
	}
	api := "off"
	if !config.Admin.Disabled {
		api = strings.TrimSuffix(config.Admin.Listen, admin.SocketMode)
	}
	return fmt.Sprintf("caddy-dedup protects %s\n  %s (%s) on %s -> %s\n  state: %s\n  admin: %s",
		f.to, what, strings.Join(protectedMethods(), ", "), f.from, f.to, state, api)
}

func protectedMethods() []string {
	var s Settings
	s.setDefaults()
	return s.Methods
}

// redactedURL hides the password of a URL.
func redactedURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "the URL given"
	}
	return u.Redacted()
}

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "providers",
		Usage: "[<name>]",
		Short: "Prints the providers of webhooks that dedup knows by name",
		Long: `
Prints the names that the dedup directive and proxy --provider accept, with
what each provider's key is made of, what it adds to the scope, how long its
responses are kept, and whether that was read in the provider's documentation.

With a name it prints all that is known of that provider.`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Args = cobra.MaximumNArgs(1)
			cmd.ValidArgsFunction = completeProviders
			cmd.RunE = caddycmd.WrapCommandFuncForCobra(runProviders)
		},
	})
}

// completeProviders offers the names of providers to the shell, with their titles.
func completeProviders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range delivery.Providers() {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Title))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func runProviders(flags caddycmd.Flags) (int, error) {
	var err error
	if flags.NArg() == 0 {
		err = printProviders(os.Stdout)
	} else {
		err = printProvider(os.Stdout, flags.Arg(0))
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// printProviders writes the catalogue as a table.
func printProviders(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tVERIFIED\tRETENTION\tSCOPE\tKEY") // the key last: some are long
	for _, p := range delivery.Providers() {
		verified := "no"
		if p.Verified {
			verified = "yes"
		}
		scope := cmp.Or(strings.Join(p.Scope(), ", "), "-")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", p.Name, verified, p.Kept(), scope, p.Key())
	}
	return table.Flush()
}

// printProvider writes all that the catalogue says of one provider.
func printProvider(w io.Writer, name string) error {
	p, ok := delivery.ProviderNamed(name)
	if !ok {
		return delivery.UnknownProvider(name)
	}
	var passes []string
	for _, pass := range p.Passes {
		passes = append(passes, pass.String())
	}
	fact := ""
	if p.Verified { // else the line before names its origin
		fact = p.Fact
	}
	claims := ""
	if signs := p.Signs.String(); signs != "" {
		claims = "requests " + signs
	}
	lines := []struct{ label, text string }{
		{"name", p.Name},
		{"title", p.Title},
		{"mode", string(delivery.ModeWebhook)},
		{"key", p.Key()},
		{"claims", claims},
		{"scope", strings.Join(append([]string{"host", "path"}, p.Scope()...), ", ")},
		{"retention", p.Kept()},
		{"passes", cmp.Or(strings.Join(passes, ", or "), "none of its requests")},
		{"verified", p.Trust()},
		{"fact", fact},
		{"note", p.Note},
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		if line.text != "" {
			fmt.Fprintf(table, "%s\t%s\n", line.label, line.text)
		}
	}
	return table.Flush()
}

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "keys",
		Usage: keyscommand.Usage,
		Short: keyscommand.Short,
		Long:  keyscommand.Long,
		CobraFunc: keyscommand.Program{
			DefaultAddress: func() string { return caddy.DefaultAdminListen }, // that of $CADDY_ADMIN, where it is set
			Directory:      caddy.AppDataDir,
			ParseAddress:   parseAdminAddress,
			Exit:           exitQuietly,
		}.SetUp,
	})
}

// parseAdminAddress reads an address as Caddy's admin API has them.
func parseAdminAddress(text string) (keyscommand.Address, error) {
	at, err := caddy.ParseNetworkAddressWithDefaults(text, "tcp", 2019)
	if err != nil {
		return keyscommand.Address{}, err
	}
	if at.PortRangeSize() > 1 || at.IsFdNetwork() {
		return keyscommand.Address{}, fmt.Errorf("%s is not one address that can be dialled", text)
	}
	if at.IsUnixNetwork() {
		at.Host, _, _ = strings.Cut(at.Host, "|")
	}
	return keyscommand.Address{Network: at.Network, Address: at.JoinHostPort(0), Socket: at.IsUnixNetwork()}, nil
}

// exitQuietly ends a command with a status of more than 1, without a word of Caddy's.
func exitQuietly(cmd *cobra.Command, status int) error {
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return status, nil })(cmd, nil)
}
