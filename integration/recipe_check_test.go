package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// checks are the commands with which a page ends, and what its reader sees.
type checks struct {
	start string
	run   []check
}

type check struct{ commands, shows string }

// recipePages are the names of the recipes' pages.
func recipePages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../docs/recipes/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no recipes: %v", err)
	}
	for i, page := range pages {
		pages[i] = filepath.Base(page)
	}
	return slices.DeleteFunc(pages, func(page string) bool { return page == "README.md" })
}

// readChecks reads the last section of a page: how the recipe is started, which begins as
// README.md says, and then three times some commands and what they print.
func readChecks(t *testing.T, page string) checks {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs/recipes", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Try it\n")
	if !found || strings.Contains(section, "\n## ") {
		t.Fatalf("%s does not end with \"Try it\"", page)
	}
	c := checks{start: recipeBlock(t, "README.md", "sh")}
	blocks := fencedBlocks(page, section)
	for i, b := range blocks {
		switch {
		case i == 0 && b.language == "sh":
			c.start += b.text
		case i%2 == 1 && b.language == "sh" && i+1 < len(blocks) && blocks[i+1].language == "text":
			c.run = append(c.run, check{b.text, blocks[i+1].text})
		case i%2 == 0 && b.language == "text":
		default:
			t.Fatalf("%s: block %d of the checks is %q", page, i+1, b.language)
		}
	}
	if len(c.run) < 3 {
		t.Fatalf("%s has %d checks, want 3 or more", page, len(c.run))
	}
	return c
}

// The commands at the end of each recipe show what the page says.
func TestChecksOfTheRecipes(t *testing.T) {
	t.Parallel()
	bash := bashWithCurl(t)
	for _, page := range recipePages(t) {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			c := readChecks(t, page)
			got := runChecks(t, bash, page, c)
			var want []string
			for _, check := range c.run {
				want = append(want, check.shows)
			}
			if got, want := numbered(got), numbered(want); !slices.Equal(got, want) {
				t.Errorf("the commands print\n%s\nthe page says\n%s", strings.Join(got, "---\n"), strings.Join(want, "---\n"))
			}
		})
	}
}

// bashWithCurl is the shell for the commands of pages, most of which use curl.
func bashWithCurl(t *testing.T) string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err == nil {
		_, err = exec.LookPath("curl")
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("the commands are not run: %v", err)
	}
	return bash
}

// runChecks runs a page's commands as its reader would, on ports of the test's own, and
// returns what each check printed.
func runChecks(t *testing.T, bash, page string, c checks) []string {
	t.Helper()
	dir := shortTempDir(t)
	port, standIn, egress, admin := freeport.Of(t), freeport.Of(t), freeport.Of(t), fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	store := strings.TrimPrefix(redisStore(t), "store redis ")
	here := strings.NewReplacer(
		"redis://localhost:6379", store,
		"localhost:8080", fmt.Sprintf("127.0.0.1:%d", port),
		":8080 {", fmt.Sprintf(":%d {", port),
		":8081 {", fmt.Sprintf(":%d {", egress),
		"localhost:2019", admin,
		"https://hooks.slack.com", fmt.Sprintf("http://127.0.0.1:%d", standIn), // as the page says
		"localhost:3000", fmt.Sprintf("127.0.0.1:%d", standIn),
		"http://:3000", fmt.Sprintf("http://:%d", standIn),
	)
	service, err := os.ReadFile("../docs/recipes/stand-in.caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	options, _ := strings.CutPrefix(recipeBlock(t, page, "caddyfile"), "{\n")
	const mark = "=== check ==="
	// The binary of this test stands for the one that the commands build.
	script := "trap 'kill $(jobs -p); wait' EXIT\n" + strings.Replace(c.start, "go build ./cmd/caddy-dedup && ", "", 1)
	for _, check := range c.run {
		script += "echo '" + mark + "'\n" + check.commands
	}
	for name, text := range map[string]string{
		"docs/recipes/stand-in.caddyfile": string(service),
		"Caddyfile":                       fmt.Sprintf("{\n\tadmin %s\n\tdefault_bind 127.0.0.1\n%s", admin, options),
		"checks.sh":                       script,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(here.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(binary, filepath.Join(dir, "caddy-dedup")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "checks.sh")
	cmd.Dir = dir
	cmd.Env = append(homeEnv(dir), "CADDY_ADMIN="+admin, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var said strings.Builder
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends what it has started
	cmd.WaitDelay = patience
	printed, err := cmd.Output()
	if ctx.Err() != nil || len(printed) == 0 {
		t.Fatalf("%s: %v\n%s%s", page, err, printed, said.String())
	}
	return strings.Split(string(printed), mark+"\n")[1:]
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// numbered replaces each ID by its number in the order in which they come.
func numbered(texts []string) []string {
	seen := make(map[string]string)
	var all []string
	for _, text := range texts {
		all = append(all, anyUUID.ReplaceAllStringFunc(text, func(id string) string {
			if seen[id] == "" {
				seen[id] = fmt.Sprint("ID", len(seen)+1)
			}
			return seen[id]
		}))
	}
	return all
}
