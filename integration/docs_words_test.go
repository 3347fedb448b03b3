package integration

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every flag of the commands, and every parameter of a list, is in a page, in backquotes or in a
// heading. Every code of a refusal is in two: its table, and what to do about it.
func TestPagesHaveEachWord(t *testing.T) {
	t.Parallel()
	words := make(map[string]int) // how many pages have to have each
	for _, name := range []string{"keys list", "keys show", "keys release", "keys complete", "keys forget", "health"} {
		help, _ := command(t, shortTempDir(t), append(strings.Fields(name), "--help")...)
		for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[\w-]+)`).FindAllStringSubmatch(help, -1) {
			words[flag[1]] = 1
		}
	}
	delete(words, "--help")
	p := start(t, conf{store: "store memory", site: "dedup"})
	_, said := p.askAdmin(t, "GET", "/dedup/keys?no=1", "", "")
	_, accepted, _ := strings.Cut(said, "accepted are ")
	accepted, _, _ = strings.Cut(accepted, `"`)
	for word := range strings.SplitSeq(accepted, ", ") {
		words[word] = 1
	}
	pages := docPages(t)
	for _, page := range pages {
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [45]").FindAllStringSubmatch(page.text, -1) {
			words[row[1]] = 2
		}
	}
	if len(words) < 40 {
		t.Errorf("%d words are looked for: are they where this test looks?", len(words))
	}
	for word, want := range words {
		has := regexp.MustCompile("(?m)(`[^`\n]*|^#+ )" + word + `\b`)
		got := 0
		for _, page := range pages {
			if has.MatchString(page.text) && strings.HasPrefix(page.path, "docs/") {
				got++
			}
		}
		if got < want {
			t.Errorf("%d pages of docs have %s; want %d", got, word, want)
		}
	}
}

// The table of the flags of the command `proxy` has each flag with its short name and the default
// that the command prints, and no other flag.
func TestFlagsOfTheProxyPage(t *testing.T) {
	t.Parallel()
	help, _ := command(t, shortTempDir(t), "proxy", "--help")
	help = regexp.MustCompile(`\n {20,}`).ReplaceAllString(help, " ") // where a line goes on
	page := make(map[string]string)
	for _, row := range pageTable(t, "| flag | default | |") {
		page[row[0]] = row[1]
	}
	flags := regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[\w-]+)( \w+)?  .*?(?:\(default "(.*)"\))?$`).FindAllStringSubmatch(help, -1)
	if slices.ContainsFunc(flags, func(f []string) bool { return f[2] == "--help" }) && len(page) != len(flags)-1 {
		t.Errorf("the page has %d flags, and the command %d and --help", len(page), len(flags)-1)
	}
	for _, f := range flags {
		name, want := "`"+f[2]+"`", ""
		if f[1] != "" {
			name += ", `" + f[1] + "`"
		}
		switch {
		case f[4] != "":
			want = "`" + f[4] + "`"
		case f[3] == "":
			want = "off"
		}
		if got, there := page[name]; f[2] != "--help" && (!there || want != "" && got != want) {
			t.Errorf("the page has %s: %t, with the default %q; the command has %q", name, there, got, want)
		}
	}
}
