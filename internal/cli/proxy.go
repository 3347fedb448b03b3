package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

var proxyCommand = caddycmd.Command{
	Name:  "proxy",
	Usage: "--from <address> --to <address>... [flags]",
	Short: "Makes one service idempotent, without a configuration file",
	Long: `
Listens on --from, passes requests on to --to, and lets none of them through
twice: duplicates get the response of the first. With several --to, each request
goes to one of them.

Without --provider it serves the Idempotency-Key header of an API. With one or
more it serves their webhooks.

--from is a port (:8080) or an address of this machine (127.0.0.1:8080), served
over HTTP, or a name (example.com), served over HTTPS with a certificate that
Caddy obtains, unless it starts with http://.

Claims and responses are kept durably in the directory dedup-<port> in Caddy's
data directory, or in that of --file, or in the Redis server of --redis, which
several replicas can share. The password in its URL may be a placeholder, such
as {env.REDIS_PASSWORD}. Several --redis are nodes of one cluster.

--verify checks the signatures of a provider's webhooks, as in
'github={env.GITHUB_SECRET}', before anything else. Every other request gets
401: leave those of the service itself out with --path. It implies --provider.

{env.NAME} works in every flag, as in --from ':{env.PORT}'.

--dedup takes any line of the dedup directive, such as 'retention 30d'. With
--path, such as '/webhooks/*', only requests with that path are protected, and
the others are passed on. With --observe all are passed on: it logs and counts
what it would have done.

--print shows the Caddyfile that the flags stand for, with placeholders for its
secrets, and exits: save it to go on from there with the command run.

X-Forwarded-* of clients in private networks is passed on, as a sidecar behind
an ingress needs it.

The log has a line for each request that is refused, released, held or not sent,
and with --access-log for every request.

The admin API listens on a unix socket in the data directory, where the command
keys finds it, unless --admin or $CADDY_ADMIN names another address, or off.

--health serves /live, /ready and /metrics, for probes, on its own address.`,
	CobraFunc: func(cmd *cobra.Command) {
		p := new(proxy)
		cmd.Args = flagsOnly
		setUp(cmd)
		p.defineFlags(cmd)
		wrong := cmd.FlagErrorFunc()
		cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return wrong(cmd, lineOfFlag(err, os.Args)) })
		cmd.RunE = runE(func(cmd *cobra.Command, _ []string) error { return p.run(cmd) })
	},
}

// proxy is the command's flags, and what is read from them.
type proxy struct {
	from, file, admin, health           string
	to, providers, redis                []string
	dedup                               []string // lines of the directive
	verify                              []string // providers with a secret
	paths                               []string // that the directive is for
	headerUp, headerDown                []string
	changeHost, insecure, internalCerts bool
	disableRedirects, accessLog, debug  bool
	observe, print                      bool

	data         string // Caddy's data directory
	site, probes site
	services     []string            // of to, with the values of variables
	protected    []string            // of paths, with those
	secrets      map[string]string   // of the flags, by the variables that the Caddyfile has for them
	lines        string              // of the directive, without secrets
	handler      caddymodule.Handler // as the directive is read, with the store of --redis or --file
	verified     []string            // the providers of --verify
}

func (p *proxy) defineFlags(cmd *cobra.Command) {
	set := cmd.Flags()
	set.StringVarP(&p.from, "from", "f", "localhost", "Address to listen on: a port such as :8080, or a name for HTTPS")
	set.StringSliceVarP(&p.to, "to", "t", nil, "Address of the service, such as localhost:3000 or https://example.com; may be repeated")
	set.StringSliceVarP(&p.providers, "provider", "p", nil, "A provider whose webhooks arrive, such as github; may be repeated")
	set.StringArrayVar(&p.verify, "verify", nil, "Check the signatures of a provider, such as github={env.GITHUB_SECRET}; may be repeated")
	set.StringArrayVar(&p.redis, "redis", nil, "URL of the Redis server that keeps the state, such as redis://localhost:6379; several are a cluster")
	set.StringVar(&p.file, "file", "", "Directory that keeps the state (default: dedup-<port> in Caddy's data directory)")
	set.StringArrayVar(&p.dedup, "dedup", nil, "A line of the dedup directive, such as 'retention 30d'; may be repeated")
	set.StringSliceVar(&p.paths, "path", nil, "A path that is protected, such as '/webhooks/*' (default: every path); may be repeated")
	set.BoolVar(&p.observe, "observe", false, "Decide, count and log, but let every request through")
	set.BoolVar(&p.print, "print", false, "Show the Caddyfile that the flags stand for, and exit")
	set.StringVarP(&p.admin, "admin", "a", "", "Address of the admin API, or off (default: a socket in Caddy's data directory)")
	set.StringVar(&p.health, "health", "", "Address, such as :8081, that serves /live, /ready and /metrics")
	set.StringArrayVarP(&p.headerUp, "header-up", "H", nil, "Set a request header to send to the service (format: \"Field: value\")")
	set.StringArrayVarP(&p.headerDown, "header-down", "d", nil, "Set a response header to send back to the client (format: \"Field: value\")")
	set.BoolVarP(&p.changeHost, "change-host-header", "c", false, "Set the Host header to the address of the service")
	set.BoolVar(&p.insecure, "insecure", false, "Do not verify the certificate of the service (WARNING: anybody can pose as it)")
	set.BoolVarP(&p.internalCerts, "internal-certs", "i", false, "Use certificates of Caddy's internal CA")
	set.BoolVarP(&p.disableRedirects, "disable-redirects", "r", false, "Do not redirect HTTP to HTTPS")
	set.BoolVar(&p.accessLog, "access-log", false, "Write a line to the log for every request")
	set.BoolVarP(&p.debug, "debug", "v", false, "Write debug lines to the log")
	_ = cmd.MarkFlagRequired("to") // it is defined
	cmd.MarkFlagsMutuallyExclusive("redis", "file")
	completeBy(cmd, "provider", completeProviders)
}

// lineOfFlag shows the line of the directive that a flag that does not exist stands for. It shows the
// value in args only if that makes a whole line: another one may have a secret.
func lineOfFlag(err error, args []string) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	flag := "--" + unknown.GetSpecifiedName()
	word := strings.ReplaceAll(unknown.GetSpecifiedName(), "-", "_")
	if !slices.Contains(caddymodule.Subdirectives(), word) {
		return err
	}
	line := word + " ..."
	for i, arg := range args {
		value, ok := strings.CutPrefix(arg, flag+"=")
		if arg == flag && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if whole := word + " " + value; ok && isLine(whole) && !strings.Contains(value, "@") {
			line = whole
		}
	}
	return fmt.Errorf("%w; it is a line of the directive: use --dedup '%s'", err, line)
}

// flagsOnly refuses words that belong to no flag, such as the second word of a header field.
func flagsOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	word := strconv.Quote(args[0])
	// It may be the end of a secret whose quotation marks are missing, or have a password.
	secrets := []string{"redis", "verify", "dedup", "header-up", "header-down"}
	if strings.ContainsAny(args[0], "@=") || slices.ContainsFunc(secrets, cmd.Flags().Changed) {
		word = "a word that is not shown, because it may be a secret,"
	}
	return fmt.Errorf("proxy takes flags only, and %s belongs to none; put a value with a space in it in quotes", word)
}

// resolvedFlags are the flags of which Caddy replaces no {env.*}, or only after it has checked them. True ones
// are addresses.
var resolvedFlags = map[string]bool{"from": true, "to": true, "admin": true, "health": true, "path": false, "provider": false}

// checkValues refuses values that a Caddyfile cannot have as they are, variables that are not set, and
// addresses that Caddy's errors would show with a secret in them.
func checkValues(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		isAddress, isResolved := resolvedFlags[flag.Name]
		for _, text := range values {
			unset, value := unsetVariable(text), resolve(text)
			switch {
			case strings.Contains(text, "{$"):
				err = fmt.Errorf("--%s: {$NAME} would be replaced before the value is split into words; write {env.NAME}, or let the shell replace $NAME", flag.Name)
			case strings.Contains(text, "`") && strings.Contains(text, `\`):
				err = fmt.Errorf("--%s: a value with both a backquote and a backslash cannot be written into a Caddyfile", flag.Name)
			case isResolved && unset != "":
				err = fmt.Errorf("--%s: the variable %s of {env.%[2]s} is not set", flag.Name, unset)
			case isAddress && strings.ContainsAny(value, "@?#") && !strings.HasPrefix(value, "unix/"): // perhaps a secret
				err = fmt.Errorf("--%s is not an address: its value has a user, a query or a fragment, and takes a scheme, a host and a port", flag.Name)
			}
		}
	})
	return err
}

// read reads the flags, and returns the Caddyfile that they stand for. data is the directory in
// which Caddy keeps its data, and caddyAdmin what $CADDY_ADMIN says.
func (p *proxy) read(flags *pflag.FlagSet, data, caddyAdmin string) (text string, err error) {
	p.data, p.secrets = data, make(map[string]string)
	if err := checkValues(flags); err != nil {
		return "", err
	}
	if p.site, err = readSite("from", p.from); err != nil {
		return "", err
	}
	if p.health != "" {
		if p.probes, err = readSite("health", p.health); err != nil {
			return "", err
		}
		if p.probes.hostOnly() {
			return "", fmt.Errorf("--health: %q is not an address for probes, which come over HTTP and name no host; use one such as :8081 or 127.0.0.1:8081", p.health)
		}
	}
	if err := p.readAdmin(caddyAdmin); err != nil {
		return "", err
	}
	p.services, p.protected = each(p.to, resolve), each(p.paths, resolve)
	for i, service := range p.services {
		if err := p.site.checkService(p.to[i], service); err != nil {
			return "", err
		}
	}
	for i, path := range p.protected { // another one would never match
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			return "", fmt.Errorf("--path: %q is not a path; use one such as /orders, or /webhooks/* for all that start with /webhooks/", p.hideURL(p.paths[i]))
		}
		if strings.HasSuffix(path, ",") || separator.MatchString(path) {
			hint := "use --path " + separator.ReplaceAllString(strings.TrimRight(path, ","), ",/")
			if path != p.paths[i] {
				hint += ", or a variable for each"
			}
			return "", fmt.Errorf("--path: %q is several paths; %s", path, hint)
		}
	}
	if strings.Contains(p.file, "://") { // it may have a password
		return "", errors.New("--file is a URL, not a directory; a Redis server is --redis")
	}
	if p.file != "" && !strings.HasPrefix(p.file, "{") {
		// A relative path is relative to Caddy's data directory in a Caddyfile, and to the
		// working directory on a command line. One that starts with a placeholder stays as it
		// is: the value is mostly an absolute path.
		if p.file, err = filepath.Abs(p.file); err != nil {
			return "", fmt.Errorf("--file: %w", err)
		}
	}
	if err := p.readDirective(); err != nil {
		return "", err
	}
	return p.caddyfile()
}

// separator matches what stands between two paths. A name may have a comma.
var separator = regexp.MustCompile(`[,\s]+/`)

// readAdmin decides where the admin API is.
func (p *proxy) readAdmin(caddyAdmin string) error {
	from := "--admin"
	switch {
	case p.admin != "":
	case caddyAdmin != "":
		p.admin, from = caddyAdmin, "CADDY_ADMIN"
	default:
		p.admin = admin.SocketAt(p.data, net.JoinHostPort(p.site.hostText, p.site.portText))
	}
	if at := resolve(p.admin); at != adminOff {
		if _, err := parseAdmin(at); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
	return checkDistinct(p.listeners())
}

// readDirective writes the directive that --provider, --verify, --path, --observe and --dedup make,
// and has it read. It has no secrets: neither have errors about it.
func (p *proxy) readDirective() error {
	providers := each(p.providers, resolve)
	head := "--dedup"
	if len(providers) > 0 {
		head = "--provider"
	}
	var observe, verify, lines, values block
	var err error
	if p.verified, err = p.verifyLines(&verify); err != nil {
		return err
	}
	for _, name := range p.verified { // of a provider: another one is an error in the line
		if _, ok := delivery.ProviderNamed(name); ok && !slices.Contains(providers, name) {
			providers, p.providers = append(providers, name), append(p.providers, name)
		}
	}
	for _, line := range p.dedup {
		text, err := p.hideLine(line)
		if err != nil {
			return err
		}
		value := text
		// If its word takes no placeholders, such as a number or a duration, it has the values of variables.
		// Others stay, as secrets have to.
		if resolved := resolve(text); unsetVariable(text) == "" && !isLine(text) && isLine(resolved) {
			text, value = inCaddyfile(text), resolved
		}
		lines.line(text)
		values.line(value)
	}
	if p.observe {
		observe.line("observe")
	}
	p.lines = observe.String() + verify.String() + lines.String()
	d, err := parseDirective(&p.handler, []flagText{
		{head, "dedup " + quoteAll(providers) + " {"}, {"--observe", observe.String()}, {"--verify", verify.String()}, {"--dedup", values.String() + "}"},
	})
	if err != nil {
		return err
	}
	if d.Nesting() > 0 {
		return errors.New("--dedup: a block is not closed")
	}
	if d.Next() {
		return fmt.Errorf("--dedup: after the end of the directive comes %q", d.Val())
	}
	if len(p.redis) == 0 && p.file == "" {
		return nil
	}
	if p.handler.StoreRaw != nil {
		return errors.New("--dedup 'store ...' excludes --redis and --file: the state is in one place")
	}
	flag, line := p.storeLine() // the global option has the same line
	var own caddymodule.Handler
	_, err = parseDirective(&own, []flagText{{flag, "dedup {\n" + line + "\n}"}})
	p.handler.StoreRaw = own.StoreRaw
	return err
}

// isLine reports whether the directive accepts a line alone.
func isLine(text string) bool {
	_, err := parseDirective(new(caddymodule.Handler), []flagText{{"--dedup", "dedup {\n" + text + "\n}"}})
	return err == nil
}

// flagText is a part of a directive, and the flag that it is of.
type flagText struct{ flag, text string }

// place matches the place in an error: the line of a flag, or of the Caddyfile.
var place = regexp.MustCompile(`(?:, at )?(--[a-z]+|Caddyfile):([0-9]+)(?:: )?`)

// parseDirective reads a directive. An error begins with the flag that it is about.
func parseDirective(into *caddymodule.Handler, parts []flagText) (*caddyfile.Dispenser, error) {
	var tokens []caddyfile.Token
	for _, part := range parts {
		if part.text == "" {
			continue
		}
		more, err := caddyfile.Tokenize([]byte(part.text), part.flag)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.flag, err)
		}
		tokens = append(tokens, more...)
	}
	d := caddyfile.NewDispenser(tokens)
	err := into.UnmarshalCaddyfile(d)
	if err == nil {
		return d, nil
	}
	if at := place.FindStringSubmatch(err.Error()); at != nil {
		err = fmt.Errorf("%s: %s", at[1], place.ReplaceAllString(err.Error(), ""))
	}
	return nil, err
}

// verifyLines writes a line for each provider of --verify, with all its secrets, and returns the
// providers. No error shows a value, and the directive refuses secrets that are no placeholders.
func (p *proxy) verifyLines(to *block) (providers []string, err error) {
	secrets := make(map[string][]string)
	for i, text := range p.verify {
		provider, secret, ok := strings.Cut(text, "=")
		if provider = resolve(provider); !ok || provider == "" || secret == "" {
			return nil, fmt.Errorf("--verify: value %d is not a provider, an equals sign and a secret; use one such as github={env.GITHUB_SECRET}", i+1)
		}
		if !slices.Contains(providers, provider) {
			providers = append(providers, provider)
		}
		secrets[provider] = append(secrets[provider], secret)
	}
	for _, provider := range providers {
		to.line("verify", quote(provider), quoteAll(secrets[provider]))
	}
	return providers, nil
}

// unsignedNote says what becomes of requests that no sender of webhooks has sent, "" if they pass.
func (p *proxy) unsignedNote() string {
	if len(p.handler.Verify) == 0 || len(p.paths) > 0 || p.handler.Observe {
		return ""
	}
	note := "every request without a valid signature gets 401"
	var challenging []string
	for _, v := range p.handler.Verify {
		if sender, _ := signature.ProviderNamed(v.Provider); sender.Challenges() {
			challenging = append(challenging, v.Provider)
		}
	}
	if len(challenging) > 0 {
		note += ", except the challenges of " + strings.Join(challenging, " and ")
	}
	return note + "; with --path, requests for other paths pass"
}

// run prints the Caddyfile of the flags, or runs it and does not return.
func (p *proxy) run(cmd *cobra.Command) error {
	text, err := p.read(cmd.Flags(), caddy.AppDataDir(), os.Getenv("CADDY_ADMIN"))
	if err != nil {
		return err
	}
	for name, value := range p.secrets {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting the variable %s: %w", name, err)
		}
	}
	config, err := adapt(text)
	if err != nil {
		return err
	}
	if !p.print || !p.isForAnotherMachine() {
		if err := p.provision(); err != nil {
			return err
		}
	}
	if p.print {
		_, err := fmt.Fprint(cmd.OutOrStdout(), text)
		return err
	}
	caddy.TrapSignals()
	// Caddy replaces placeholders too, and the socket has to be where Caddy puts it.
	if p.admin, err = caddy.NewReplacer().ReplaceOrErr(p.admin, true, true); err != nil {
		return fmt.Errorf("the address of the admin API: %w", err)
	}
	if err := checkPorts(p.listeners()); err != nil {
		return err
	}
	if err := admin.PrepareSocket(p.admin); err != nil {
		return err
	}
	// Go's memory limit is $AUTOMEMLIMIT, or nine tenths of the memory. Caddy sets it only for `run`. This fails
	// on systems without a limit.
	_, _ = memlimit.Set(memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
	if err := caddy.Run(config); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), p.summary())
	select {}
}

// adminOff stands in the place of an address where there is no admin API.
const adminOff = "off"

// ofThisMachine are placeholders whose values the machine has.
var ofThisMachine = regexp.MustCompile(`\{(env|file)\.[^}]*\}`)

// loadingStore matches the beginning of an error of a store module.
var loadingStore = regexp.MustCompile(`^loading the store: .*provision dedup\.stores\.\w+: `)

// isForAnotherMachine reports whether a placeholder has no value on this one.
func (p *proxy) isForAnotherMachine() bool {
	replaced := strings.Join(slices.Concat(p.redis, p.dedup, p.verify, []string{p.file}), "\n")
	return slices.ContainsFunc(ofThisMachine.FindAllString(replaced, -1), func(placeholder string) bool {
		_, err := caddy.NewReplacer().ReplaceOrErr(placeholder, true, true)
		return err != nil
	})
}

// provision finds mistakes that only a start finds, such as a variable without a value or a lease too short
// for Redis, and names the flag that has them. It opens no store.
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

// adapt returns the configuration that a Caddyfile stands for.
func adapt(text string) (*caddy.Config, error) {
	document, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, ofFlag(text, err)
	}
	for _, warning := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", warning.Message)
	}
	config := new(caddy.Config)
	return config, json.Unmarshal(document, config)
}

// flagsOfWords are the flags that lines of the Caddyfile are written for, by the first words.
var flagsOfWords = map[string]string{"reverse_proxy": "--to", "header_up": "--header-up", "header_down": "--header-down"}

// ofFlag returns an error about the Caddyfile as one about a flag: the user has no Caddyfile.
func ofFlag(text string, err error) error {
	flag := "the flags stand for a Caddyfile that is wrong"
	if at := place.FindStringSubmatch(err.Error()); at != nil {
		for i, line := range strings.Split(text, "\n") {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); strconv.Itoa(i+1) == at[2] {
				flag = cmp.Or(flagsOfWords[word], flag)
			}
		}
	}
	return fmt.Errorf("%s: %s", flag, place.ReplaceAllString(err.Error(), ""))
}
