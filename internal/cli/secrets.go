package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// The command prints the same Caddyfile that it runs. Secrets of the flags are in neither: the
// Caddyfile has placeholders, and the command sets the variables of its environment. So the
// admin API and debug lines, which show the configuration, do not show the secrets either.

// placeholder matches what Caddy replaces.
var placeholder = regexp.MustCompile(`\{[a-z_]+(?:\.[^{}\s]+)?\}`)

// hide returns a secret text as placeholders. Those in it stay, and each part between them
// becomes the placeholder of a variable called name.
func (p *proxy) hide(name, text string) string {
	var b strings.Builder
	end := 0
	for _, at := range append(placeholder.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		if literal := text[end:at[0]]; literal != "" {
			b.WriteString("{env." + p.variable(name, literal) + "}")
		}
		b.WriteString(text[at[0]:at[1]])
		end = at[1]
	}
	return b.String()
}

// variable returns the variable that has the value: name, or name with a number if name has
// another value or if a flag uses its placeholder.
func (p *proxy) variable(name, value string) string {
	value = caddy.NewEmptyReplacer().ReplaceKnown(value, "") // it removes the backslash of \{
	given := strings.Join(slices.Concat(p.to, p.providers, p.redis, p.dedup, p.verify, p.headerUp, p.headerDown, p.paths), " ") + p.from + p.file + p.admin + p.health
	free := name
	for i := 2; ; i++ {
		has, taken := p.secrets[free]
		if taken && has == value || !taken && !strings.Contains(given, "{env."+free+"}") {
			break
		}
		free = fmt.Sprintf("%s_%d", name, i)
	}
	p.secrets[free] = value
	return free
}

// urlPassword matches a Redis URL up to the end of its password. A placeholder may have a
// slash.
var urlPassword = regexp.MustCompile(`^(?:[^/]*://)?(?:\{[^{}]*\}|[^/?#:])*:((?:\{[^{}]*\}|[^/?#])*)@`)

// hideURL hides the password of a Redis URL.
func (p *proxy) hideURL(text string) string {
	at := urlPassword.FindStringSubmatchIndex(text)
	if at == nil {
		return text
	}
	return text[:at[2]] + p.hide("REDIS_PASSWORD", text[at[2]:at[3]]) + text[at[3]:]
}

// A header field has a secret if its name has one of these parts, or if its value starts with
// a scheme or is a URL with a user. A false positive does no harm: the field is sent all the
// same. Public fields say how to log in, or what a browser may do.
var (
	secretField = regexp.MustCompile(`(?i)auth|cookie|credential|csrf|jwt|key|oidc|pass|pwd|secret|session|sig|token`)
	publicField = regexp.MustCompile(`(?i)^access-control-|-authenticate$`)
	authScheme  = regexp.MustCompile(`^(?i:basic|bearer|token)\s+`)
	userInURL   = regexp.MustCompile(`://[^/\s]*@`)
	notOfNames  = regexp.MustCompile(`[^A-Z0-9]`)
)

// hideField hides the value of a header field that has a secret, except its scheme.
func (p *proxy) hideField(name, value string) string {
	if publicField.MatchString(name) || !secretField.MatchString(name) && !authScheme.MatchString(value) && !userInURL.MatchString(value) {
		return value
	}
	start := len(authScheme.FindString(value))
	return value[:start] + p.hide(notOfNames.ReplaceAllString(strings.ToUpper(name), "_"), value[start:])
}

// hideLine writes a line of the directive, which can be a block, from its words: a line that
// would go on into the next one ends. Secrets in it are hidden.
func (p *proxy) hideLine(line string) (string, error) {
	tokens, err := caddyfile.Tokenize([]byte(line), "")
	if err != nil { // Caddy's error would show the text
		return "", errors.New("--dedup: a heredoc in it does not end, or is not indented evenly")
	}
	var text strings.Builder
	for d := caddyfile.NewDispenser(tokens); d.Next(); {
		first := d.Val()
		switch plain := !d.Token().Quoted(); {
		case plain && first == "{": // it stays on the line that it ends
			text.WriteString(" {")
			continue
		case plain && first == "}":
			text.WriteString("\n}")
		default:
			text.WriteString("\n" + quote(p.hideURL(first)))
		}
		for d.NextArg() {
			word := d.Val()
			switch first {
			case "password":
				word = p.hide("REDIS_PASSWORD", word)
			case "sentinel_password":
				word = p.hide("SENTINEL_PASSWORD", word)
			default:
				if first == "store" || strings.Contains(word, "://") {
					word = p.hideURL(word)
				}
			}
			text.WriteString(" " + quote(word))
		}
	}
	return strings.TrimSpace(text.String()), nil
}
