package integration

import (
	"os"
	"regexp"
	"slices"
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

// The page of the command `proxy` has each flag with its short name and the default that the command
// prints, and no other flag.
func TestFlagsOfTheProxyPage(t *testing.T) {
	t.Parallel()
	help, _ := command(t, shortTempDir(t), "proxy", "--help")
	help = regexp.MustCompile(`\n {20,}`).ReplaceAllString(help, " ") // where a line goes on
	type flag struct{ name, byDefault string }
	var want, got []flag
	for _, f := range regexp.MustCompile(`(?m)^ +(?:(-\w), )?(--[\w-]+)( \w+)?  .*?(?:\(default "(.*)"\))?$`).FindAllStringSubmatch(help, -1) {
		name, byDefault := "`"+f[2]+"`", ""
		if f[1] != "" {
			name += ", `" + f[1] + "`"
		}
		switch {
		case f[2] == "--help":
			continue
		case f[4] != "":
			byDefault = "`" + f[4] + "`"
		case f[3] == "":
			byDefault = "off"
		}
		want = append(want, flag{name, byDefault})
	}
	for _, row := range pageTable(t, "proxy.md", "| flag | default | |") {
		got = append(got, flag{row[0], row[1]})
		if i := slices.IndexFunc(want, func(f flag) bool { return f.name == row[0] }); i >= 0 && want[i].byDefault == "" {
			want[i].byDefault = row[1] // the command prints none
		}
	}
	byName := func(a, b flag) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(want, byName)
	slices.SortFunc(got, byName)
	if !slices.Equal(got, want) || len(want) < 15 {
		t.Errorf("the page has the flags\n%v\nthe command\n%v", got, want)
	}
}
