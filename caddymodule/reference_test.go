package caddymodule

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// section is what stands under a heading of a page, up to the next heading.
type section struct {
	path string // the headings above it and its own, without backquotes, from the second level on
	text string
}

// sections returns the sections of a page of the reference, in their order.
func sections(t *testing.T, page string) []section {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	var all []section
	var path []string
	fenced := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		title := strings.TrimLeft(line, "#")
		level := len(line) - len(title)
		if fenced || level < 2 || level > len(path)+2 {
			if len(all) > 0 {
				all[len(all)-1].text += line
			}
			continue
		}
		path = append(path[:level-2:level-2], strings.Trim(strings.TrimSpace(title), "`"))
		all = append(all, section{path: strings.Join(path, " > ")})
	}
	return all
}

// under returns the sections below a heading, by the rest of their paths.
func under(t *testing.T, page, heading string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, s := range sections(t, page) {
		if after, ok := strings.CutPrefix(s.path, heading); ok && after != "" {
			if _, twice := found[after]; twice {
				t.Errorf("%s: the heading %s stands twice", page, s.path)
			}
			found[after] = s.text
		}
	}
	return found
}

// sameWords reports what is in one list and not in the other.
func sameWords(t *testing.T, where string, documented, accepted []string) {
	t.Helper()
	for _, word := range accepted {
		if !slices.Contains(documented, word) {
			t.Errorf("%s: %q is accepted, and is not there", where, word)
		}
	}
	for _, word := range documented {
		if !slices.Contains(accepted, word) {
			t.Errorf("%s: %q is there, and is not accepted", where, word)
		}
	}
}

// subdirectives are the headings that the page of the directive must have.
func subdirectives() []string {
	words := slices.Collect(maps.Keys(handlerBlock))
	for kind := range keyKinds {
		words = append(words, "key > key "+kind)
	}
	return append(words, "key > key "+delivery.KindParts)
}

// notOptions are the headings of the page of the global option that are no words.
var notOptions = []string{"All words", "Syntax", "Placeholders"}

// globalOptions are those that the page of the global option must have.
func globalOptions() []string {
	words := slices.Collect(maps.Keys(globalBlock))
	for kind := range storeKinds {
		words = append(words, "store > store "+kind)
	}
	for word := range limitsBlock {
		words = append(words, "limits > "+word)
	}
	return words
}

// Each word that the parser accepts has its heading, and each heading is such a word.
func TestHeadingsAreTheWordsOfTheParser(t *testing.T) {
	sameWords(t, "docs/directive.md", slices.Collect(maps.Keys(under(t, "directive.md", "Subdirectives > "))), subdirectives())
	var options []string
	for _, path := range slices.Collect(maps.Keys(under(t, "global-option.md", ""))) {
		if !slices.Contains(notOptions, path) {
			options = append(options, path)
		}
	}
	sameWords(t, "docs/global-option.md", options, globalOptions())
}

// The tables of blocks have each word of their parsers.
func TestTablesOfBlocks(t *testing.T) {
	inRedis := append(slices.Collect(maps.Keys(redisBlock)), slices.Collect(maps.Keys(tlsBlock))...)
	sameWords(t, "the table of docs/redis.md", slices.Collect(maps.Keys(rows(under(t, "redis.md", "")["All words"]))), inRedis)
	inHMAC := slices.DeleteFunc(slices.Collect(maps.Keys(hmacBlock)), func(word string) bool { return word == "secret" })
	sameWords(t, "the table of verify hmac", slices.Collect(maps.Keys(rows(under(t, "directive.md", "Subdirectives > ")["verify"]))), inHMAC)
}

// exampleIn returns the example in a line of a section, empty for none.
func exampleIn(text string) string {
	if found := regexp.MustCompile("(?m) Example: `([^`]+)`\\.$").FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}

// Each section says what its default is, has an example that the parser accepts, and names all
// words that may stand behind its own.
func TestSectionsOfWordsAreComplete(t *testing.T) {
	all := under(t, "directive.md", "Subdirectives > ")
	for path, text := range under(t, "global-option.md", "") {
		if !slices.Contains(notOptions, path) {
			all["the global option: "+path] = text
		}
	}
	form := regexp.MustCompile(`(?m)^Default: .*\.$`)
	for path, text := range all {
		last := path[strings.LastIndex(path, "> ")+1:]
		oneOfSeveral := strings.HasPrefix(last, " key ") || strings.HasPrefix(last, " store ")
		if !oneOfSeveral && !form.MatchString(text) {
			t.Errorf("%s: there is no line of the form `Default: ...`", path)
		}
		switch example := exampleIn(text); {
		case example == "":
			if word := strings.TrimSpace(last[strings.LastIndex(last, ":")+1:]); !oneOfSeveral && !strings.Contains(text, "```caddyfile\n") && word != "store" {
				t.Errorf("%s: there is no example", path)
			}
		case strings.HasPrefix(path, "the global option: "):
			if strings.Contains(path, "limits > ") {
				example = "limits {\n" + example + "\n}"
			}
			if _, err := parseGlobalOption(caddyfile.NewTestDispenser("dedup {\n"+example+"\n}"), nil); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		default:
			if err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("dedup {\n" + example + "\n}")); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	for word, parser := range handlerBlock {
		for _, choice := range parser.choices {
			if !strings.Contains(syntaxLine(t, "directive.md", word), choice) {
				t.Errorf("the syntax of %s does not name %s", word, choice)
			}
			if !strings.Contains(all[word], choice) {
				t.Errorf("the section of %s does not name %s", word, choice)
			}
		}
	}
}

// syntaxWords are the first words of the lines of a page's syntax block that are
// indented by a number of tabs.
func syntaxWords(t *testing.T, page string, depth int) (words []string) {
	t.Helper()
	for line := range strings.Lines(syntaxBlock(t, page)) {
		after := strings.TrimLeft(line, "\t")
		if len(line)-len(after) != depth || strings.HasPrefix(after, "}") {
			continue
		}
		if word := strings.Fields(after)[0]; !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

func syntaxBlock(t *testing.T, page string) string {
	t.Helper()
	for _, s := range sections(t, page) {
		if _, after, ok := strings.Cut(s.text, "```\n"); ok && s.path == "Syntax" {
			block, _, _ := strings.Cut(after, "```\n")
			return block
		}
	}
	t.Fatalf("%s has no syntax block", page)
	return ""
}

func syntaxLine(t *testing.T, page, word string) string {
	t.Helper()
	for line := range strings.Lines(syntaxBlock(t, page)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == word {
			return line
		}
	}
	t.Fatalf("%s: the syntax block has no line of %s", page, word)
	return ""
}

func TestSyntaxBlocksHaveAllWords(t *testing.T) {
	sameWords(t, "the syntax of the directive", syntaxWords(t, "directive.md", 1), slices.Collect(maps.Keys(handlerBlock)))
	inWords := slices.Concat(slices.Collect(maps.Keys(keyKinds)), slices.Collect(maps.Keys(verifyBlock)), slices.Collect(maps.Keys(hmacBlock)))
	sameWords(t, "the syntax of key parts and verify", syntaxWords(t, "directive.md", 2), inWords)
	sameWords(t, "the syntax of the global option", syntaxWords(t, "global-option.md", 2), slices.Collect(maps.Keys(globalBlock)))
	inBlocks := append(slices.Collect(maps.Keys(redisBlock)), slices.Collect(maps.Keys(limitsBlock))...)
	sameWords(t, "the syntax of store redis and limits", syntaxWords(t, "global-option.md", 3), inBlocks)
	sameWords(t, "the syntax of tls", syntaxWords(t, "global-option.md", 4), slices.Collect(maps.Keys(tlsBlock)))
}

// defaultIn returns the default that a section states, as it would be written behind
// the word; empty for none.
func defaultIn(t *testing.T, text string) string {
	t.Helper()
	found := regexp.MustCompile("(?m)^Default: (?:`([^`]+)`|none)").FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no default is stated as `Default: none` or as a text in backquotes:\n%s", text)
	}
	return found[1]
}

// A default that is written out behind its word changes nothing.
func TestDefaultsOfTheDirective(t *testing.T) {
	inForce := func(s *Settings) []any {
		s.setDefaults()
		c := s.identification()
		return []any{
			s.Mode, s.Methods, s.deliverySources(), s.OnMissing, s.MaxKeyLength, c.FingerprintFor(delivery.Found{}), s.retentionOf(""), s.RetentionFrom,
			s.Lease, s.Timeout, *s.Wait, s.releasing(), s.ReleaseIf, s.OnUnknown, s.MaxAttempts, s.OnDuplicate, s.Force, s.OnStoreError,
			s.MaxRequestBody, s.MaxResponseBody, s.KeepHeader, s.Docs, s.Exclude,
		}
	}
	defaults := inForce(new(Settings))
	described := []string{"scope", "store"} // their defaults are no text that could stand there
	for word, text := range under(t, "directive.md", "Subdirectives > ") {
		if strings.Contains(word, " ") || slices.Contains(described, word) {
			continue
		}
		stated := defaultIn(t, text)
		h := new(Handler)
		if stated != "" {
			if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser("dedup {\n" + word + " " + stated + "\n}")); err != nil {
				t.Errorf("%s: %v", word, err)
				continue
			}
		} else if hasDefault(t, word) {
			t.Errorf("%s: it has a default, and the page says that there is none", word)
		}
		if got := inForce(&h.Settings); !reflect.DeepEqual(got, defaults) {
			t.Errorf("%s: with its stated default %q it is %v, without %v", word, stated, got, defaults)
		}
	}
	webhooks := under(t, "directive.md", "Subdirectives > ")["release_on"]
	if list := strings.Join(webhookReleases, " "); !strings.Contains(webhooks, "for webhooks `"+list+"`") {
		t.Errorf("release_on: the default for webhooks is %s, and the page does not say so", list)
	}
}

// hasDefault reports whether the settings have a value for a word that nobody has written.
func hasDefault(t *testing.T, word string) bool {
	t.Helper()
	var s Settings
	s.setDefaults()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	return fields[word] != nil
}

func TestDefaultsOfTheGlobalOption(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64) // which buffered follows
	defer debug.SetMemoryLimit(before)
	inForce := func(text string) []any {
		t.Helper()
		ctx, err := loaded("{\ndedup {\n" + text + "\n}\n}")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		module, err := ctx.App("dedup")
		if err != nil {
			t.Fatal(err)
		}
		app := module.(*App)
		store := any(app.store.Config)
		if s, ok := store.(*RedisStore); ok {
			s.options.TLS = nil // a function, which is not compared
			store = s.options
		}
		return []any{app.Namespace, app.localCopies(), app.Encrypt, app.Limits, store}
	}
	checked := 0
	for path, text := range under(t, "global-option.md", "") {
		words := strings.Split(path, " > ")
		word := words[len(words)-1]
		if slices.Contains(notOptions, path) || path == "limits" || strings.HasPrefix(word, "store ") {
			continue
		}
		stated := defaultIn(t, text)
		if stated == "" {
			continue
		}
		checked++
		line := word + " " + stated
		if words[0] == "limits" {
			line = "limits {\n" + line + "\n}"
		}
		if got, want := inForce(line), inForce(""); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: with its stated default it is %v, without %v", path, got, want)
		}
	}
	for word, cells := range rows(under(t, "redis.md", "")["All words"]) {
		if stated := strings.Trim(cells[1], "`"); stated != "none" {
			checked++
			line, without := "store redis redis://h {\n"+word+" "+stated+"\n}", "store redis redis://h"
			if got, want := inForce(line), inForce(without); !reflect.DeepEqual(got, want) {
				t.Errorf("store redis: %s: with its stated default it is %v, without %v", word, got, want)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d defaults are stated: are they where this test looks?", checked)
	}
}

// The tables at the top have each word, with the default that its section states.
func TestTablesOfAllWords(t *testing.T) {
	options := make(map[string]string)
	for path, text := range under(t, "global-option.md", "") {
		if word := path[strings.LastIndex(path, " > ")+1:]; !strings.Contains(path, "store > store") {
			options[strings.TrimPrefix(word, "> ")] = text
		}
	}
	for page, all := range map[string]map[string]string{
		"directive.md":     under(t, "directive.md", "Subdirectives > "),
		"global-option.md": options,
	} {
		table := rows(under(t, page, "")["All words"])
		var words []string
		for word := range all {
			if !slices.Contains(notOptions, word) && !strings.Contains(word, " ") {
				words = append(words, word)
			}
		}
		sameWords(t, "the table of docs/"+page, slices.Collect(maps.Keys(table)), words)
		for word, cells := range table {
			stated := cells[1]
			if described := stated != "none" && !strings.HasPrefix(stated, "`"); described {
				continue // no text that could stand there, as of scope
			}
			inTable := strings.Trim(strings.TrimPrefix(stated, "none"), "`")
			if inSection := defaultIn(t, all[word]); inTable != inSection {
				t.Errorf("%s: %s: the table says that the default is %q, its section %q", page, word, inTable, inSection)
			}
		}
	}
}
