package integration

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The README counts the senders as `caddy-dedup providers` prints them, and names among
// them none that is unverified.
func TestSendersOfTheReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	output, code := command(t, shortTempDir(t), "providers")
	if code != 0 {
		t.Fatal(output)
	}
	senders, verified := 0, make(map[string]bool)
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] == "NAME" {
			continue
		}
		senders++
		if fields[1] == "yes" {
			verified[fields[0]] = true
		}
	}
	said := regexp.MustCompile(`webhooks of (\d+) senders by name, such as ([^:]+): .* For (\d+) of them`).FindStringSubmatch(string(page))
	if said == nil {
		t.Fatal("the README does not say how many senders there are")
	}
	if said[1] != strconv.Itoa(senders) || said[3] != strconv.Itoa(len(verified)) {
		t.Errorf("the README says %s senders, %s verified; there are %d, %d verified", said[1], said[3], senders, len(verified))
	}
	for _, name := range regexp.MustCompile(`\w+`).FindAllString(strings.ReplaceAll(said[2], " and ", ", "), -1) {
		if !verified[strings.ToLower(name)] {
			t.Errorf("the README names %s, which is not verified", name)
		}
	}
	for _, found := range regexp.MustCompile(`(?m)^\s*dedup (\w+) `).FindAllStringSubmatch(string(page), -1) {
		if !verified[found[1]] {
			t.Errorf("a Caddyfile of the README has %s, which is not verified", found[1])
		}
	}
}
