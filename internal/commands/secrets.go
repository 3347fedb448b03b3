package commands

import (
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
func (w *written) hide(name, text string) string {
	var b strings.Builder
	end := 0
	for _, at := range append(placeholder.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		if literal := text[end:at[0]]; literal != "" {
			b.WriteString("{env." + w.variable(name, literal) + "}")
		}
		b.WriteString(text[at[0]:at[1]])
		end = at[1]
	}
	return b.String()
}

// variable returns the variable that has the value: name, or name with a number if name has
// another value or if a flag uses its placeholder.
func (w *written) variable(name, value string) string {
	value = caddy.NewEmptyReplacer().ReplaceKnown(value, "") // it removes the backslash of \{
	f := w.flags
	given := strings.Join(slices.Concat(f.to, f.redis, f.lines, f.headerUp, f.headerDown, f.paths), " ") + f.file.Text + w.admin
	free := name
	for i := 2; ; i++ {
		has, taken := w.secrets[free]
		if taken && has == value || !taken && !strings.Contains(given, "{env."+free+"}") {
			break
		}
		free = fmt.Sprintf("%s_%d", name, i)
	}
	w.secrets[free] = value
	return free
}

// urlPassword matches a Redis URL up to the end of its password. A placeholder may have a
// slash.
var urlPassword = regexp.MustCompile(`^(?:[^/]*://)?(?:\{[^{}]*\}|[^/?#:])*:((?:\{[^{}]*\}|[^/?#])*)@`)

// hideURL hides the password of a Redis URL.
func (w *written) hideURL(text string) string {
	at := urlPassword.FindStringSubmatchIndex(text)
	if at == nil {
		return text
	}
	return text[:at[2]] + w.hide("REDIS_PASSWORD", text[at[2]:at[3]]) + text[at[3]:]
}

// A header field has a secret if its name has one of these parts, or if its value begins with
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
func (w *written) hideField(name, value string) string {
	if publicField.MatchString(name) || !secretField.MatchString(name) && !authScheme.MatchString(value) && !userInURL.MatchString(value) {
		return value
	}
	start := len(authScheme.FindString(value))
	return value[:start] + w.hide(notOfNames.ReplaceAllString(strings.ToUpper(name), "_"), value[start:])
}

// hideLine hides the secrets of a store in a line of the directive, which can be a block. A
// line without a secret stays as it was given.
func (w *written) hideLine(line string) string {
	tokens, _ := caddyfile.Tokenize([]byte(line), "") // it has been read before
	var text strings.Builder
	hidden := false
	for d := caddyfile.NewDispenser(tokens); d.Next(); {
		first := d.Val()
		if !d.Token().Quoted() && first == "{" { // it stays on the line that it ends
			text.WriteString(" {")
			continue
		}
		text.WriteString("\n" + first) // a word of the directive, which needs no quotation marks
		for d.NextArg() {
			word := d.Val()
			switch first {
			case "store":
				word = w.hideURL(word)
			case "password":
				word = w.hide("REDIS_PASSWORD", word)
			case "sentinel_password":
				word = w.hide("SENTINEL_PASSWORD", word)
			}
			hidden = hidden || word != d.Val()
			text.WriteString(" " + quote(word))
		}
	}
	if !hidden {
		return line
	}
	return strings.TrimSpace(text.String())
}
