package commands

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/keyscommand"
)

// flags are what the command was given.
type flags struct {
	from, file, admin, health keyscommand.Once
	to, providers, redis      []string
	lines                     []string // of the directive
	paths                     []string // that the directive is for
	headerUp, headerDown      []string

	changeHost, insecure, internalCerts, disableRedirects bool
	observe, accessLog, debug, print                      bool
}

func (f *flags) define(cmd *cobra.Command) {
	set := cmd.Flags()
	f.from.Text = "localhost"
	set.VarP(&f.from, "from", "f", "Address to listen on: a port such as :8080, or a name for HTTPS")
	set.StringSliceVarP(&f.to, "to", "t", nil, "Address of the service, such as localhost:3000 or https://example.com; may be repeated")
	set.StringArrayVarP(&f.providers, "provider", "p", nil, "A provider whose webhooks arrive, such as github; may be repeated")
	set.StringArrayVar(&f.redis, "redis", nil, "URL of the Redis server that keeps the state, such as redis://localhost:6379; several are a cluster")
	set.Var(&f.file, "file", "Directory that keeps the state (default: dedup-<port> in Caddy's data directory)")
	set.StringArrayVar(&f.lines, "dedup", nil, "A line of the dedup directive, such as 'retention 30d'; may be repeated")
	set.StringArrayVar(&f.paths, "path", nil, "A path that is protected, such as '/webhooks/*' (default: every path); may be repeated")
	set.BoolVar(&f.observe, "observe", false, "Decide, count and log, but let every request through")
	set.BoolVar(&f.print, "print", false, "Show the Caddyfile that the flags stand for, and exit")
	set.VarP(&f.admin, "admin", "a", "Address of the admin API, or off (default: a socket in Caddy's data directory)")
	set.Var(&f.health, "health", "Address, such as :8081, that serves /live, /ready and /metrics")
	set.StringArrayVarP(&f.headerUp, "header-up", "H", nil, "Set a request header to send to the service (format: \"Field: value\")")
	set.StringArrayVarP(&f.headerDown, "header-down", "d", nil, "Set a response header to send back to the client (format: \"Field: value\")")
	set.BoolVarP(&f.changeHost, "change-host-header", "c", false, "Set the Host header to the address of the service")
	set.BoolVar(&f.insecure, "insecure", false, "Do not verify the certificate of the service (WARNING: anybody can pose as it)")
	set.BoolVarP(&f.internalCerts, "internal-certs", "i", false, "Use certificates of Caddy's internal CA")
	set.BoolVarP(&f.disableRedirects, "disable-redirects", "r", false, "Do not redirect HTTP to HTTPS")
	set.BoolVar(&f.accessLog, "access-log", false, "Write a line to the log for every request")
	set.BoolVarP(&f.debug, "debug", "v", false, "Write debug lines to the log")
	if err := cmd.RegisterFlagCompletionFunc("provider", completeProviders); err != nil {
		panic("commands: completing a flag that is not defined: " + err.Error())
	}
}

func (w *written) readSites() (err error) {
	f := w.flags
	if w.site, err = readSite("from", f.from.Text); err != nil {
		return err
	}
	if f.health.Given {
		if w.health, err = readSite("health", f.health.Text); err != nil {
			return err
		}
		switch {
		case w.health.scheme != "http" || w.health.named():
			return fmt.Errorf("--health: %q is not an address for probes, which come over HTTP and name no host; use one such as :8081 or 127.0.0.1:8081", f.health.Text)
		case w.health.port == w.site.port:
			return fmt.Errorf("--health %s and --from %s have the same port; probes need one of their own", f.health.Text, f.from.Text)
		case w.redirectsAt(w.health.port):
			return fmt.Errorf("--health %s is the port on which --from %s redirects to HTTPS; use another one, or --disable-redirects", f.health.Text, f.from.Text)
		}
	}
	return w.readAdmin()
}

// readAdmin finds the address of the admin API: the flag's, else that of $CADDY_ADMIN, where
// `caddy-dedup keys` looks too, else a socket.
func (w *written) readAdmin() error {
	f, from := w.flags, w.adminFlag()
	switch {
	case f.admin.Given:
		w.admin = f.admin.Text
	case w.caddyAdmin != "":
		w.admin = w.caddyAdmin
	case strings.ContainsAny(w.data, "{|"):
		return fmt.Errorf("the data directory of Caddy is %s, and an address with { or | in it means something else; set XDG_DATA_HOME to another one, or use --admin off", w.data)
	default:
		w.admin = admin.SocketAt(w.data, w.site.listen())
	}
	if w.admin == adminOff {
		return nil
	}
	if strings.Contains(w.admin, "@") && !strings.HasPrefix(w.admin, "unix/") {
		return fmt.Errorf("%s takes no user, and its value has an @; use an address such as localhost:2019 or unix//run/caddy/admin.sock, or off", from)
	}
	if err := checkWord(w.admin); err != nil {
		return fmt.Errorf("%s %s: %w", from, w.admin, err)
	}
	at, err := parseAdminAddress(w.admin)
	switch {
	case w.admin != "" && err != nil:
		return fmt.Errorf("%s: %q is not an address: %w; use one such as localhost:2019 or unix//run/caddy/admin.sock, or off", from, w.admin, err)
	case w.admin == "" || at.Address == "":
		return fmt.Errorf("%s: %q is not an address; use one such as localhost:2019 or unix//run/caddy/admin.sock, or off", from, w.admin)
	case at.Socket:
		return nil
	}
	_, port, err := net.SplitHostPort(at.Address)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %q is not an address: %w", from, w.admin, err)
	case port == w.site.port:
		return fmt.Errorf("%s %s and --from %s have the same port; the admin API needs one of its own, which clients cannot reach", from, w.admin, f.from.Text)
	case w.redirectsAt(port):
		return fmt.Errorf("%s %s is the port on which --from %s redirects to HTTPS; the admin API needs one of its own", from, w.admin, f.from.Text)
	case f.health.Given && port == w.health.port:
		return fmt.Errorf("%s %s and --health %s have the same port; the admin API needs one of its own", from, w.admin, f.health.Text)
	}
	return nil
}

func (w *written) readTargets() error {
	f := w.flags
	if len(f.to) == 0 {
		return fmt.Errorf("--to is missing: the address of the service, such as localhost:3000")
	}
	f.to = slices.DeleteFunc(slices.Clone(f.to), func(to string) bool { return to == "" }) // of a comma at the end
	if len(f.to) == 0 {
		return fmt.Errorf("--to is empty; use the address of the service, such as localhost:3000")
	}
	for i, to := range f.to {
		if rest, ok := strings.CutSuffix(to, "/"); ok && strings.Contains(rest, "://") {
			to = rest
			f.to[i] = to
		}
		if err := readTarget(to); err != nil {
			if strings.ContainsAny(to, "@?#") { // it may have a password or a token
				to = "the value given"
			}
			return fmt.Errorf("--to: %q is not the address of a service; use one such as localhost:3000, http://localhost:3000 or https://example.com: %w", to, err)
		}
	}
	w.shareScheme()
	for _, l := range w.listeners() {
		if i := slices.IndexFunc(f.to, l.site.isAt); i >= 0 {
			return fmt.Errorf("--to %s is where %s %s; use the address of the service", f.to[i], l.flag, l.does)
		}
	}
	if err := parse("reverse_proxy "+strings.Join(quoteAll(f.to), " "), "--to", new(reverseproxy.Handler)); err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	return nil
}

// shareScheme gives addresses that have none the first scheme that one has, as `caddy
// reverse-proxy` does.
func (w *written) shareScheme() {
	f := w.flags
	i := slices.IndexFunc(f.to, func(to string) bool { return strings.Contains(to, "://") })
	if i < 0 {
		return
	}
	scheme, _, _ := strings.Cut(f.to[i], "://")
	for i, to := range f.to {
		if !strings.Contains(to, "/") {
			f.to[i] = scheme + "://" + to
		}
	}
}

// networks are what may stand before a slash in the address of a service.
var networks = []string{"tcp", "tcp4", "tcp6", "unix", "unix+h2c"}

// readTarget reads the address of a service as Caddy's directive does.
func readTarget(to string) error {
	network, _, hasSlash := strings.Cut(to, "/")
	switch {
	case strings.HasPrefix(to, "-"): // of a shell's variable that is empty
		return fmt.Errorf("it is a flag, and stands where the value of --to should")
	case strings.HasPrefix(network, "unix"):
	case strings.ContainsAny(to, "@?# \t\r\n\"`"):
		return fmt.Errorf("it has more than a scheme, a host and a port")
	case hasSlash && !strings.Contains(to, "://") && !slices.Contains(networks, network):
		return fmt.Errorf("it has a path")
	}
	if _, err := strconv.ParseUint(to, 10, 64); err == nil {
		return fmt.Errorf("a port has a colon before it: :%s", to)
	}
	if err := checkWord(to); err != nil {
		return err
	}
	return parse("reverse_proxy "+quote(to), "--to", new(reverseproxy.Handler))
}

// readPaths reads the paths of the directive's matcher.
func (w *written) readPaths() error {
	for _, path := range w.flags.paths {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			return fmt.Errorf("--path: %q is not a path; use one such as /orders, or /webhooks/* for all that begin with /webhooks/", redacted(path))
		}
		if err := checkWord(path); err != nil {
			return fmt.Errorf("--path %s: %w", path, err)
		}
	}
	return nil
}

// lines are those of the directive.
func (w *written) lines() []string {
	if w.flags.observe {
		return append([]string{"observe"}, w.flags.lines...)
	}
	return w.flags.lines
}

// readDirective reads the directive that --provider and --dedup make. It reads each line
// alone first, so that an error names the flag, and then all of them, because one line may
// need another, as exclude needs a fingerprint.
func (w *written) readDirective() error {
	f := w.flags
	providers := strings.Join(quoteAll(f.providers), " ")
	if err := parse("dedup "+providers, "--provider", new(caddymodule.Handler)); err != nil {
		return fmt.Errorf("--provider: %w", err)
	}
	for _, line := range f.lines {
		var alone caddymodule.Lines
		err := checkLine(line)
		if err == nil {
			err = parse("dedup {\n"+line+"\n}", "--dedup", &alone)
		}
		if err != nil {
			return fmt.Errorf("--dedup %s: %w", shownLine(line), err)
		}
		if f.observe && alone.Observe {
			return fmt.Errorf("--observe and --dedup %s say the same; leave one of them out", shownLine(line))
		}
		w.ownStore = w.ownStore || alone.StoreRaw != nil
	}
	if err := parse("dedup "+providers+" {\n"+strings.Join(w.lines(), "\n")+"\n}", "--dedup", &w.handler); err != nil {
		return fmt.Errorf("--dedup and --provider: %w", err)
	}
	return nil
}

// checkLine refuses a line that would continue into the next one, or that Caddy would replace.
func checkLine(line string) error {
	switch {
	case strings.Contains(line, "{$"):
		return errReplaced
	case strings.HasSuffix(strings.TrimRight(line, " \t\r\n"), `\`):
		return fmt.Errorf("it ends in a backslash, which would join it with the next line")
	}
	tokens, err := caddyfile.Tokenize([]byte(line+"\nend"), "--dedup")
	switch {
	case err != nil:
		return err
	case len(tokens) == 0 || tokens[len(tokens)-1].Text != "end":
		return fmt.Errorf("a quotation mark in it is not closed")
	case count(tokens, "{") > count(tokens, "}"):
		return fmt.Errorf("a block in it is not closed: the whole block stands in one --dedup, with line breaks in it")
	}
	return nil
}

func count(tokens []caddyfile.Token, text string) int {
	n := 0
	for _, token := range tokens {
		if token.Text == text {
			n++
		}
	}
	return n
}

// checkWord refuses a text that cannot be one word of a Caddyfile.
func checkWord(text string) error {
	if strings.Contains(text, "{$") {
		return errReplaced
	}
	tokens, err := caddyfile.Tokenize([]byte(quote(text)), "")
	if err != nil || len(tokens) != 1 || tokens[0].Text != text {
		return fmt.Errorf("a Caddyfile cannot have it as one word: it has a backquote and a backslash")
	}
	return nil
}

// errReplaced refuses what Caddy would replace before it reads the words.
var errReplaced = errors.New("{$NAME} would be replaced before the words are told apart, as nobody expects on a command line; write {env.NAME}, or let the shell replace $NAME")

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
	case strings.Contains(f.file.Text, "://"):
		return fmt.Errorf("--file takes the path of a directory, and its value is a URL; for that of a Redis server use --redis")
	case len(f.redis) > 0 && f.file.Given:
		return fmt.Errorf("--redis %s and --file %s exclude each other: the state is in one place", redacted(f.redis...), f.file.Text)
	case w.ownStore && len(f.redis) > 0:
		return fmt.Errorf("--redis %s and --dedup 'store …' exclude each other: the state is in one place", redacted(f.redis...))
	case w.ownStore && f.file.Given:
		return fmt.Errorf("--file %s and --dedup 'store …' exclude each other: the state is in one place", f.file.Text)
	case f.file.Given && f.file.Text == "":
		return fmt.Errorf("--file: it is empty; use the path of a directory")
	}
	if err := checkWord(f.file.Text); err != nil {
		return fmt.Errorf("--file %s: %w", f.file.Text, err)
	}
	for _, url := range f.redis {
		if err := checkWord(url); err != nil {
			return fmt.Errorf("--redis %s: %w", redacted(url), err)
		}
	}
	if len(f.redis) > 0 {
		if err := parse("dedup {\nstore redis "+strings.Join(quoteAll(f.redis), " ")+"\n}", "--redis", new(caddymodule.Handler)); err != nil {
			return fmt.Errorf("--redis: %w", err)
		}
	}
	if f.file.Given && !strings.HasPrefix(f.file.Text, "{") {
		// A relative path is relative to Caddy's data directory in a Caddyfile, and to the
		// working directory on a command line. One that begins with a placeholder stays as it
		// is: the value is mostly an absolute path.
		path, err := filepath.Abs(f.file.Text)
		if err != nil {
			return fmt.Errorf("--file %s: %w", f.file.Text, err)
		}
		f.file.Text = path
	}
	return nil
}

func (w *written) readHeaders() error {
	f := w.flags
	for flag, fields := range map[string][]string{"header-up": f.headerUp, "header-down": f.headerDown} {
		set := make(map[string]bool)
		for i, field := range fields {
			name, value := splitField(field)
			if name == field { // all of it may be a secret
				return fmt.Errorf("--%s: the value of flag %d has no colon; use one such as \"Field: value\"", flag, i+1)
			}
			// A sign in front would have another meaning in the Caddyfile.
			if !httpguts.ValidHeaderFieldName(name) || strings.ContainsAny(name[:1], "+-") || value == "" || !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("--%s: %q has no valid name before its colon, or no valid value behind it; use one such as \"Field: value\"", flag, name+": …")
			}
			if err := cmp.Or(checkWord(name), checkWord(value)); err != nil {
				return fmt.Errorf("--%s %s: its value does not work here: %w", flag, name, err)
			}
			if f.changeHost && flag == "header-up" && textproto.CanonicalMIMEHeaderKey(name) == "Host" {
				return fmt.Errorf("--change-host-header and --header-up %q exclude each other: both set Host", name)
			}
			// In the Caddyfile the last one would silently win.
			canonical := textproto.CanonicalMIMEHeaderKey(name)
			if set[canonical] {
				return fmt.Errorf("--%s sets %s twice, and sets one value; a field that is a list takes all of it in one: \"%s: a, b\"", flag, name, name)
			}
			set[canonical] = true
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
				w.warnings = append(w.warnings, fmt.Sprintf("--%s changes nothing: --from %s is not served over HTTPS", name, f.from.Text))
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
