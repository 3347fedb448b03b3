package integration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const llms = "../llms.txt"

// llms.txt has the pages of the index, in its order, with one line each. -update writes it.
func TestPagesForModels(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString(`# caddy-dedup

> A Caddy module and a sidecar for idempotency: the first request with a key runs, its response is kept,
> and every duplicate gets that response. For APIs with Idempotency-Key, webhooks, forms and MCP tool calls.

- [README](README.md): what it does, how to try it, and its limits.
`)
	_, sections, _ := strings.Cut(string(index), "\n\n")
	sections, _, _ = strings.Cut(sections, "\n\nTo build")
	want.WriteString("\n" + regexp.MustCompile(`(?m)^(- \[.*?\]\()`).ReplaceAllString(sections, "${1}docs/") + "\n")
	got, err := os.ReadFile(llms)
	if err == nil && string(got) == want.String() {
		return
	}
	if !*update {
		t.Fatalf("llms.txt is stale (%v); write it anew with: go test ./integration -run TestPagesForModels -update", err)
	}
	if err := os.WriteFile(llms, []byte(want.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pageFor returns the page of the only line of llms.txt that has these words.
func pageFor(t *testing.T, words string) page {
	t.Helper()
	text, err := os.ReadFile(llms)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^- \[.*\]\((.*?)\).*`+regexp.QuoteMeta(words)).FindAllStringSubmatch(string(text), -1)
	if len(lines) != 1 {
		t.Fatalf("llms.txt has %d lines with %q, want one", len(lines), words)
	}
	pages := docPages(t)
	i := slices.IndexFunc(pages, func(p page) bool { return p.path == lines[0][1] })
	if i < 0 {
		t.Fatalf("llms.txt has %s, which is no page", lines[0][1])
	}
	return pages[i]
}

// Five tasks are solved with what one page says, and llms.txt says which.
func TestTasksOfOnePage(t *testing.T) {
	t.Parallel()
	const replay = "Idempotent-Replayed: true"
	const form = "Content-Type: application/x-www-form-urlencoded\n"
	for task, c := range map[string]struct {
		line     string   // words of the line
		words    string   // words of the page's Caddyfile
		instead  []string // texts of the page, each with one that stands for it. UP is the service
		requests []asked
	}{
		"a script of another origin reads a refusal": {"CORS", "@preflight method OPTIONS", nil, []asked{
			{"/orders", "1", "Idempotency-Key: k", 201, "Access-Control-Allow-Origin: https://shop.example.com"},
			{"/orders", "2", "Idempotency-Key: k", 422, "Access-Control-Allow-Origin: https://shop.example.com"},
		}},
		"a form is submitted twice": {"pressed twice", "dedup /checkout {", nil, []asked{
			{"/checkout", "order_token=t&csrf=1", form + "Cookie: session=alice", 201, `"id": "1"`},
			{"/checkout", "order_token=t&csrf=2", form + "Cookie: session=alice", 201, replay},
			{"/checkout", "order_token=t&csrf=1", form + "Cookie: session=bob", 201, `"id": "2"`},
		}},
		"a proxy repeats where the first replica is down": {"proxy that retries", "lb_retries", []string{"dedup-1:8080 dedup-2:8080", "127.0.0.1:1 UP"}, []asked{
			{"/orders", "1", "Idempotency-Key: k", 201, `"id": "1"`},
		}},
		"a client sends the token of AWS": {"AWS", "clientToken", []string{"aws.example.com {", "http://:PORT {"}, []asked{
			{"/", `{"clientToken": "k"}`, "Authorization: AWS4 Credential=a/1, Signature=1", 201, `"id": "1"`},
			{"/", `{"clientToken": "k"}`, "Authorization: AWS4 Credential=a/1, Signature=2", 201, replay},
		}},
		"a third-party API gets a message once": {"third-party", "scope shared slack", []string{"https://hooks.slack.com", "http://UP", "https://api.stripe.com", "http://UP"}, []asked{
			{"/slack", "{}", "Idempotency-Key: k", 201, `"id": "1"`},
			{"/slack", "{}", "Idempotency-Key: k\nAuthorization: Bearer another", 201, replay},
			{"/slack", "{}", "", 400, "idempotency_key_missing"},
		}},
	} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, standInService())
			if page := pageFor(t, c.line); !strings.Contains(page.text, caddyfileWith(t, c.words)) {
				t.Fatalf("%s does not have the Caddyfile with %q", page.path, c.words)
			}
			sites := strings.NewReplacer("UP", up.addr, "localhost:3000", up.addr).Replace(sitesOfAPage(t, c.words, c.instead...))
			ask(t, start(t, conf{store: "store memory", sites: sites}), c.requests)
		})
	}
}
