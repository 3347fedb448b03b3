package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// block is a fenced block of a page.
type block struct {
	page     string
	line     int
	language string
	text     string
}

// docPages returns the paths of all pages.
func docPages(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// docBlocks returns the fenced blocks of all pages, in their order.
func docBlocks(t *testing.T) []block {
	t.Helper()
	var blocks []block
	for _, page := range docPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, fencedBlocks(page, string(text))...)
	}
	if len(blocks) == 0 {
		t.Fatal("the pages have no blocks: are they where this test looks?")
	}
	return blocks
}

func fencedBlocks(page, text string) []block {
	var blocks []block
	var open *block
	for i, line := range strings.Split(text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{page: filepath.Base(page), line: i + 1, language: language}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return blocks
}

// caddyfile returns the block as a whole Caddyfile: the pages of the reference show a
// directive alone, which stands in a site.
func (b block) caddyfile() string {
	if strings.HasPrefix(b.text, "dedup") {
		return ":8080 {\n" + b.text + "}\n"
	}
	return b.text
}

// filledIn returns what replaces the placeholders and the paths of the pages with what is
// there.
func filledIn(t *testing.T) *strings.Replacer {
	t.Helper()
	keys, certificates := shortTempDir(t), redistest.NewCertificates(t)
	keyFiles(t, keys, "ab")
	return strings.NewReplacer(
		"output file access.log", "output file "+keys+"/access.log",
		"{env.REDIS_URL}", "redis://localhost:6379",
		"{env.REDIS_PASSWORD}", "secret",
		"{env.DEDUP_NAMESPACE}", "shop",
		"{env.DEDUP_KEY}", "{file."+keys+"/a.key}",
		"{env.GITHUB_SECRET}", "{file."+keys+"/a.key}",
		"{env.STRIPE_SECRET}", "{file."+keys+"/a.key}",
		"{file./run/secrets/stripe_next}", "{file."+keys+"/b.key}",
		"{env.SQUARE_SECRET}", "{file."+keys+"/a.key}",
		"{env.ORDERS_SECRET}", "{file."+keys+"/a.key}",
		"{file./run/secrets/dedup_old}", "{file."+keys+"/b.key}",
		"/etc/caddy-dedup/ca.pem", certificates.CA,
		"/etc/caddy-dedup/client.pem", certificates.Cert,
		"/etc/caddy-dedup/client.key", certificates.Key,
	)
}

// Every Caddyfile in the pages is one that a user can start from.
func TestCaddyfilesOfThePages(t *testing.T) {
	t.Parallel()
	filled := filledIn(t)
	for _, b := range docBlocks(t) {
		if b.language != "caddyfile" {
			continue
		}
		dir := shortTempDir(t)
		file := filepath.Join(dir, "Caddyfile")
		if err := os.WriteFile(file, []byte(filled.Replace(b.caddyfile())), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile"); code != 0 {
			t.Errorf("%s:%d: the Caddyfile is not valid:\n%s", b.page, b.line, out)
		}
	}
}

// Every JSON of the page of JSON is one that a user can load, in its place.
func TestJSONOfThePageOfJSONLoads(t *testing.T) {
	t.Parallel()
	filled, loaded := filledIn(t), 0
	for _, b := range docBlocks(t) {
		if b.page != "json.md" || b.language != "json" {
			continue
		}
		config := b.text
		if strings.HasPrefix(config, `{"handler"`) || strings.HasPrefix(config, "{\n\t\"handler\"") {
			config = `{"apps": {"http": {"servers": {"s": {"listen": [":0"], "routes": [{"handle": [` + config + `]}]}}}}}`
		} else if !strings.Contains(config, `"apps"`) {
			config = `{"apps": {"dedup": {"store": ` + config + `}}}`
		}
		dir := shortTempDir(t)
		file := filepath.Join(dir, "caddy.json")
		if err := os.WriteFile(file, []byte(filled.Replace(config)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := command(t, dir, "validate", "--config", file); code != 0 {
			t.Errorf("%s:%d: it does not load:\n%s", b.page, b.line, out)
		}
		loaded++
	}
	if loaded < 5 {
		t.Errorf("the page has %d JSON blocks: are they where this test looks?", loaded)
	}
}

// Where a page shows a Caddyfile in JSON too, that is what it is adapted to. The page of
// JSON shows that of Caddyfiles in the pages that it belongs to, too.
func TestJSONOfThePages(t *testing.T) {
	t.Parallel()
	var caddyfile block
	var reference []block
	for _, b := range docBlocks(t) {
		if b.language == "caddyfile" && (b.page == "directive.md" || b.page == "global-option.md") {
			reference = append(reference, b)
		}
	}
	compared := 0
	for _, b := range docBlocks(t) {
		switch b.language {
		case "caddyfile":
			caddyfile = b
		case "json":
			var shown any
			if err := json.Unmarshal([]byte(b.text), &shown); err != nil {
				t.Errorf("%s:%d: %v", b.page, b.line, err)
				continue
			}
			var of []block
			if caddyfile.page == b.page {
				of = append(of, caddyfile)
			}
			if b.page == "json.md" {
				of = append(of, reference...)
			}
			if !slices.ContainsFunc(of, func(c block) bool { return adaptedHas(t, c, shown) }) {
				t.Errorf("%s:%d: the JSON is not what a Caddyfile that it belongs to is adapted to", b.page, b.line)
			}
			compared++
		}
	}
	if compared == 0 {
		t.Error("no page shows JSON")
	}
}

// adaptedHas reports whether a Caddyfile becomes JSON that has the given one in it. It
// adapts only Caddyfiles that have all its texts.
func adaptedHas(t *testing.T, caddyfile block, shown any) bool {
	t.Helper()
	if !slices.ContainsFunc(textsIn(shown), func(text string) bool { return !strings.Contains(caddyfile.caddyfile(), text) }) {
		var adapted any
		out, code := adapt(t, caddyfile.caddyfile())
		if code != 0 {
			t.Fatalf("%s:%d: %s", caddyfile.page, caddyfile.line, out)
		}
		if err := json.Unmarshal([]byte(out), &adapted); err != nil {
			t.Fatal(err)
		}
		return contains(adapted, shown)
	}
	return false
}

// textsIn returns the texts in a JSON value that do not come from Caddy's own parts.
func textsIn(value any) (texts []string) {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		for _, element := range v {
			texts = append(texts, textsIn(element)...)
		}
	case map[string]any:
		for name, member := range v {
			if name != "apps" && name != "http" {
				texts = append(texts, textsIn(member)...)
			}
		}
	}
	return texts
}

// contains reports whether a JSON value is equal to, or somewhere within,
// another; an object may have more members than are shown only at the top.
func contains(whole, part any) bool {
	if reflect.DeepEqual(whole, part) {
		return true
	}
	switch w := whole.(type) {
	case map[string]any:
		if p, ok := part.(map[string]any); ok && membersIn(w, p) {
			return true
		}
		for _, member := range w {
			if contains(member, part) {
				return true
			}
		}
	case []any:
		for _, element := range w {
			if contains(element, part) {
				return true
			}
		}
	}
	return false
}

// membersIn reports whether an object has all members of another, each of them
// equal or again an object that has.
func membersIn(whole, part map[string]any) bool {
	for name, value := range part {
		got, ok := whole[name]
		if !ok {
			return false
		}
		inner, isObject := value.(map[string]any)
		outer, _ := got.(map[string]any)
		if !reflect.DeepEqual(got, value) && (!isObject || name == "store" || !membersIn(outer, inner)) {
			return false
		}
	}
	return true
}

// Every command of the pages is run by a test. This table says by which; a new
// command has to be added here, with its test.
var commandsRunBy = map[string]string{
	"./caddy-dedup run --config Caddyfile.example":            "TestExampleCaddyfile",
	"go run ./cmd/caddy-dedup run --config Caddyfile.example": "TestExampleCaddyfile",
	"export PATH=$PWD:$PATH":                                  "TestGuides",
	"git clone https://github.com/caddy-dedup/caddy-dedup":    "TestGuides",
	"cd caddy-dedup": "TestGuides",
	"grep -o '\"dedup_outcome\":\"[a-z_]*\"' access.log | sort | uniq -c":                       "TestGuides",
	"curl -i -X POST -H 'Idempotency-Key: order-1' -d amount=10 http://127.0.0.1:8080/payments": "TestExampleCaddyfile",
	"caddy-dedup proxy --from :8080 --to localhost:3000 --provider github":                      "TestProxyCommandForAProviderOnRedis",
	"caddy-dedup keys show 72d3162e-cc78-11e3-81ab-4c9367dc0958":                                "TestKeysCommandsOfThePage",
	"caddy-dedup keys show --body 72d3162e-cc78-11e3-81ab-4c9367dc0958":                         "TestKeysCommandsOfThePage",
	"caddy-dedup keys release 72d3162e-cc78-11e3-81ab-4c9367dc0958":                             "TestKeysCommandsOfThePage",
	"caddy-dedup keys forget 72d3162e-cc78-11e3-81ab-4c9367dc0958":                              "TestKeysCommandsOfThePage",
	"xcaddy build --with github.com/caddy-dedup/caddy-dedup":                                    "tools/build, which builds by xcaddy's own builder",
	"caddy-dedup adapt --config Caddyfile --pretty":                                             "TestCommandsOfThePageOfJSON",
	"caddy-dedup validate --config caddy.json":                                                  "TestCommandsOfThePageOfJSON",
	"caddy-dedup run --config caddy.json":                                                       "TestCommandsOfThePageOfJSON",
	"go build ./cmd/caddy-dedup":                                                                "TestMain",
	"kubectl apply -f k8s/sidecar.yaml":                                                         onTheKubernetesPage,
	"kubectl apply -k k8s/examples/redis":                                                       onTheKubernetesPage,
	"kubectl apply -f k8s/inject/":                                                              onTheKubernetesPage,
	"kubectl rollout status deploy/payments":                                                    onTheKubernetesPage,
	"kubectl rollout undo deploy/payments":                                                      onTheKubernetesPage,
	"kubectl get events --field-selector reason=FailedCreate":                                   onTheKubernetesPage,
	"kubectl exec deploy/payments -c dedup -- caddy-dedup keys list":                            onTheKubernetesPage,
	"kubectl logs deploy/payments -c dedup":                                                     onTheKubernetesPage,
	"go test ./...":                                                                             "this very run",
	"go -C bench run . -write ../docs/performance.md":                                           "TestSmallestRun in bench, and .ci/run long",
}

// onTheKubernetesPage is for commands that need a cluster. What they name is looked for.
const onTheKubernetesPage = "TestCommandsOfTheKubernetesPage in k8s/test"

// pagesOfExamples are the pages of which a test runs every command, whatever it is.
var pagesOfExamples = []string{"admin.md", "troubleshooting.md", "proxy.md"}

func TestCommandsOfThePagesAreRun(t *testing.T) {
	t.Parallel()
	checked := make(map[string]bool) // by TestChecksOfTheRecipes
	for _, page := range recipePages(t) {
		c := readChecks(t, page)
		for _, commands := range append([]check{{commands: c.start}}, c.run...) {
			for line := range strings.Lines(commands.commands) {
				checked[strings.TrimSpace(line)] = true
			}
		}
	}
	for _, b := range docBlocks(t) {
		if b.language != "sh" || slices.Contains(pagesOfExamples, b.page) || slices.Contains(guidePages, b.page) {
			continue
		}
		for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
			command, _, _ := strings.Cut(line, " #")
			if command = strings.TrimSpace(command); command == "" || strings.HasPrefix(command, "#") {
				continue
			}
			if commandsRunBy[command] == "" && !checked[command] {
				t.Errorf("%s:%d: no test is named that runs %q", b.page, b.line, command)
			}
		}
	}
}
