package commands

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// The Caddyfile that is printed is the one that runs, so neither has a secret: the flags'
// secrets are variables of the environment, and the Caddyfile has their placeholders. Nor can
// the admin API or a debug line with the configuration show them.

// placeholder matches what Caddy replaces.
var placeholder = regexp.MustCompile(`\{[a-z_]+(?:\.[^{}\s]+)?\}`)

// hide returns a text with secrets in it as the Caddyfile has it: each part that is not a
// placeholder is one of a variable called name.
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

// variable returns the name of the variable with a value: the name given, with a number
// behind it if that one has another value, or if a flag has its placeholder.
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

// secretsNeeded is the comment that names the variables.
func (w *written) secretsNeeded() string {
	return "# Secrets of the flags are placeholders here. Set in its environment: " + strings.Join(slices.Sorted(maps.Keys(w.secrets)), ", ")
}

// urlPassword matches a Redis URL up to the end of its password. A placeholder may have a
// slash.
var urlPassword = regexp.MustCompile(`^(?:[^/]*://)?(?:\{[^{}]*\}|[^/?#:])*:((?:\{[^{}]*\}|[^/?#])*)@`)

func (w *written) hideURL(text string) string {
	at := urlPassword.FindStringSubmatchIndex(text)
	if at == nil {
		return text
	}
	return text[:at[2]] + w.hide("REDIS_PASSWORD", text[at[2]:at[3]]) + text[at[3]:]
}

// Fields whose values are secrets are known by a part of their name, or by what the value
// looks like. One too many costs a line in the environment. The names that are public say how
// to log in, and what a browser may do.
var (
	secretField = regexp.MustCompile(`(?i)auth|cookie|credential|csrf|jwt|key|oidc|pass|pwd|secret|session|sig|token`)
	publicField = regexp.MustCompile(`(?i)^access-control-|-authenticate$`)
	scheme      = regexp.MustCompile(`^(?i:basic|bearer|token)\s+`)
	userInURL   = regexp.MustCompile(`://[^/\s]*@`)
	notOfNames  = regexp.MustCompile(`[^A-Z0-9]`)
)

// hideField returns the value of a header field. The scheme of an Authorization stays.
func (w *written) hideField(name, value string) string {
	if publicField.MatchString(name) || !secretField.MatchString(name) && !scheme.MatchString(value) && !userInURL.MatchString(value) {
		return value
	}
	start := len(scheme.FindString(value))
	return value[:start] + w.hide(notOfNames.ReplaceAllString(strings.ToUpper(name), "_"), value[start:])
}

// hideLine returns a line of the directive, which can be a block. A line without a secret
// stays as it was given.
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
