package integration

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// wantInPage fails for each word that a page has neither in backquotes nor in a heading.
func wantInPage(t *testing.T, page string, least int, words []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range words {
		if !regexp.MustCompile("(?m)(`[^`\n]*|^#+ )" + word + `\b`).Match(text) {
			t.Errorf("docs/%s does not have %s", page, word)
		}
	}
	if len(words) < least {
		t.Errorf("%d words are looked for in docs/%s: are they where this test looks?", len(words), page)
	}
}

// The pages have every flag of the commands, every parameter of a list, and every code of a refusal.
func TestPagesHaveEachWord(t *testing.T) {
	t.Parallel()
	flags := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[\w-]+)`)
	for page, commands := range map[string][]string{
		"proxy.md": {"proxy"},
		"admin.md": {"keys list", "keys show", "keys release", "keys complete", "keys forget", "health"},
	} {
		var words []string
		for _, name := range commands {
			help, _ := command(t, shortTempDir(t), append(strings.Fields(name), "--help")...)
			for _, flag := range flags.FindAllStringSubmatch(help, -1) {
				if flag[1] != "--help" {
					words = append(words, flag[1])
				}
			}
		}
		wantInPage(t, page, 15, words)
	}

	p := start(t, conf{store: "store memory", site: "dedup"})
	_, said := p.askAdmin(t, "GET", "/dedup/keys?no=1", "", "")
	_, accepted, _ := strings.Cut(said, "accepted are ")
	accepted, _, _ = strings.Cut(accepted, `"`)
	wantInPage(t, "admin.md", 8, strings.Split(accepted, ", "))

	behaviour, err := os.ReadFile("../docs/behaviour.md")
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [45]").FindAllStringSubmatch(string(behaviour), -1) {
		codes = append(codes, row[1])
	}
	wantInPage(t, "troubleshooting.md", 10, codes)
}
