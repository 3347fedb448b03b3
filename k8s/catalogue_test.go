package k8s

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

var update = flag.Bool("update", false, "write the catalogue of providers into inject/validating.yaml anew")

// catalogueLists are the lists of inject/validating.yaml that are made of the catalogue.
type catalogueLists struct {
	names []string   // all providers
	alike [][]string // providers of which a handler can have one
	last  []string   // providers that no other one can come after
}

// fromCatalogue asks the catalogue about each pair of providers.
func fromCatalogue(t *testing.T) catalogueLists {
	t.Helper()
	var lists catalogueLists
	all := delivery.Providers()
	apart := func(first, second delivery.Provider) bool {
		return delivery.SameMember([]delivery.Provider{first, second}) != nil
	}
	for _, p := range all {
		lists.names = append(lists.names, p.Name)
		group, last := []string{p.Name}, false
		for _, q := range all {
			switch {
			case p.Name == q.Name:
			case apart(p, q) && apart(q, p):
				group = append(group, q.Name)
			case apart(p, q):
				last = true
			}
		}
		slices.Sort(group)
		known := slices.ContainsFunc(lists.alike, func(g []string) bool { return slices.Equal(g, group) })
		if len(group) > 1 && !known {
			lists.alike = append(lists.alike, group)
		}
		if last {
			lists.last = append(lists.last, p.Name)
		}
	}
	return lists
}

// allows says what the policy says of a list of providers.
func (l catalogueLists) allows(providers ...string) bool {
	for i, name := range providers {
		if !slices.Contains(l.names, name) || slices.Contains(l.last, name) && i != len(providers)-1 {
			return false
		}
	}
	for _, group := range l.alike {
		in := 0
		for _, name := range providers {
			if slices.Contains(group, name) {
				in++
			}
		}
		if in > 1 {
			return false
		}
	}
	return true
}

// The lists say of each pair of providers what the handler would.
func TestCatalogueListsAgreeWithTheHandler(t *testing.T) {
	lists := fromCatalogue(t)
	for _, p := range delivery.Providers() {
		for _, q := range delivery.Providers() {
			if p.Name == q.Name {
				continue
			}
			if want := delivery.SameMember([]delivery.Provider{p, q}) == nil; lists.allows(p.Name, q.Name) != want {
				t.Errorf("%s and then %s: the handler takes them: %t; the policy's lists say %t", p.Name, q.Name, want, !want)
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
	b.WriteString("    - name: catalogue\n      expression: >-\n        [\n")
	line := "         "
	for i, name := range lists.names {
		word := ` "` + name + `"`
		if i < len(lists.names)-1 {
			word += ","
		}
		if len(line)+len(word) > 92 {
			b.WriteString(line + "\n")
			line = "         "
		}
		line += word
	}
	b.WriteString(line + "\n        ]\n")
	b.WriteString("    # Providers that read the same member of the body, or the whole of it: of each line one\n    # at most.\n")
	b.WriteString("    - name: alike\n      expression: >-\n        [\n")
	for i, group := range lists.alike {
		b.WriteString("          " + quoted(group))
		if i < len(lists.alike)-1 {
			b.WriteString(",")
		}
		b.WriteString("\n")
	}
	b.WriteString("        ]\n")
	b.WriteString("    # Providers that read the whole body, and so would take the deliveries of those after\n    # them.\n")
	b.WriteString("    - name: last\n      expression: >-\n        " + quoted(lists.last) + "\n")
	return b.String()
}

func quoted(names []string) string { return `["` + strings.Join(names, `", "`) + `"]` }
