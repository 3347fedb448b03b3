package k8s

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

var update = flag.Bool("update", false, "write the catalogue of providers into inject/validating.yaml anew")

// catalogueLists are the lists of inject/validating.yaml that are made of the catalogue.
type catalogueLists struct {
	names []string   // all providers
	alike [][]string // providers of which a handler can have one, if it does not verify them
	// unverifiable are those for which a secret alone is not enough.
	unverifiable []string
}

// fromCatalogue asks the catalogue about each pair of providers.
func fromCatalogue(t *testing.T) catalogueLists {
	t.Helper()
	var lists catalogueLists
	all := delivery.Providers()
	for _, p := range all {
		if verified, _ := signature.ProviderNamed(p.Name); verified.Reason != "" || verified.URL() {
			lists.unverifiable = append(lists.unverifiable, p.Name)
		}
		lists.names = append(lists.names, p.Name)
		group := []string{p.Name}
		for _, q := range all {
			if q.Name != p.Name && delivery.CheckDistinct([]string{p.Name, q.Name}) != nil {
				group = append(group, q.Name)
			}
		}
		slices.Sort(group)
		known := slices.ContainsFunc(lists.alike, func(g []string) bool { return slices.Equal(g, group) })
		if len(group) > 1 && !known {
			lists.alike = append(lists.alike, group)
		}
	}
	return lists
}

// The lists say of each pair of providers what the handler would.
func TestCatalogueListsAgreeWithTheHandler(t *testing.T) {
	lists := fromCatalogue(t)
	for i, p := range lists.names {
		for _, q := range lists.names[i+1:] {
			alike := slices.ContainsFunc(lists.alike, func(group []string) bool { return slices.Contains(group, p) && slices.Contains(group, q) })
			if taken := delivery.CheckDistinct([]string{p, q}) == nil; taken == alike {
				t.Errorf("%s and %s: the handler takes them: %t; the policy's lists say %t", p, q, taken, !alike)
			}
		}
	}
}

// catalogueVariables is the part of the policy that this test writes.
var catalogueVariables = regexp.MustCompile(`(?s)(    # What follows is of the catalogue of providers[^\n]*\n).*(    # Here it ends\.\n)`)

func TestPolicyKnowsTheCatalogue(t *testing.T) {
	const file = "inject/validating.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := catalogueVariables.FindSubmatch(text)
	if parts == nil {
		t.Fatalf("%s has no part for the catalogue", file)
	}
	want := string(parts[1]) + variablesOf(fromCatalogue(t)) + string(parts[2])
	if string(parts[0]) == want {
		return
	}
	if !*update {
		t.Fatalf("%s does not have the providers of the catalogue; go test ./k8s -update writes them", file)
	}
	if err := os.WriteFile(file, catalogueVariables.ReplaceAllLiteral(text, []byte(want)), 0o644); err != nil { //nolint:gosec // a file of the repository
		t.Fatal(err)
	}
}

func variablesOf(lists catalogueLists) string {
	var b strings.Builder
	writeNames(&b, "catalogue", lists.names)
	b.WriteString("    # These cannot be verified, or need a URL too.\n")
	writeNames(&b, "unverifiable", lists.unverifiable)
	b.WriteString("    # Providers whose requests look the same: at most one of each line.\n")
	b.WriteString("    - name: alike\n      expression: >-\n        [\n")
	for i, group := range lists.alike {
		comma := ","
		if i == len(lists.alike)-1 {
			comma = ""
		}
		b.WriteString(`          ["` + strings.Join(group, `", "`) + `"]` + comma + "\n")
	}
	b.WriteString("        ]\n")
	return b.String()
}

func writeNames(b *strings.Builder, variable string, names []string) {
	b.WriteString("    - name: " + variable + "\n      expression: >-\n        [\n")
	line := "         "
	for i, name := range names {
		word := ` "` + name + `"`
		if i < len(names)-1 {
			word += ","
		}
		if len(line)+len(word) > 92 {
			b.WriteString(line + "\n")
			line = "         "
		}
		line += word
	}
	b.WriteString(line + "\n        ]\n")
}

// The annotations of the page are those that the policy knows, with the defaults that both policies take.
func TestAnnotationsOfThePage(t *testing.T) {
	var texts []string
	for _, file := range []string{"../docs/kubernetes.md", "inject/mutating.yaml", "inject/validating.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	var shown []string
	for _, row := range regexp.MustCompile("(?m)^\\| `caddy-dedup/([a-z-]+)` \\| (?:`([^`]+)` \\|)?").FindAllStringSubmatch(texts[0], -1) {
		shown = append(shown, `"`+row[1]+`"`)
		for _, policy := range texts[1:] {
			if want := fmt.Sprintf(`"caddy-dedup/%s"].orValue("%s")`, row[1], row[2]); row[2] != "" && !strings.Contains(policy, want) {
				t.Errorf("a policy does not have %s", want)
			}
		}
	}
	known := regexp.MustCompile(`- name: known\s+expression: >-\s+\[(.*)\]`).FindStringSubmatch(texts[2])
	slices.Sort(shown)
	if known == nil || !slices.Equal(shown, slices.Sorted(strings.SplitSeq(known[1], ", "))) {
		t.Errorf("the page has %s; the policy knows %q", shown, known)
	}
}

// Under a path for a prefix, a captured request runs again under another path.
func TestExamplesVerifyExactPaths(t *testing.T) {
	files, err := filepath.Glob("examples/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q: %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "verify") && strings.Contains(string(text), "/*") {
			t.Errorf("%s has verify and a path for a prefix", file)
		}
	}
}
