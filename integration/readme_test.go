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
		if len(fields) < 2 || fields[0] == "NAME" || fields[0] == "ROUTE" || fields[0] == "VERIFY" {
			continue
		}
		senders++
		if fields[1] == "yes" {
			verified[fields[0]] = true
		}
	}
	said := regexp.MustCompile(`\*\*(\d+) webhook senders by name\*\*, such as ([^;]+); (\d+) of them are verified`).FindStringSubmatch(string(page))
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
	configured := regexp.MustCompile("(?:`dedup|--provider) ([a-z_ ]+)").FindAllStringSubmatch(string(page), -1)
	if len(configured) == 0 {
		t.Error("the README configures no sender: is it where this test looks?")
	}
	for _, found := range configured {
		for _, name := range strings.Fields(found[1]) {
			if !verified[name] {
				t.Errorf("the README configures %s, which is not verified", name)
			}
		}
	}
}

// The README is one page.
func TestReadmeIsOnePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if words := len(strings.Fields(string(page))); words > 900 {
		t.Errorf("the README has %d words, want at most 900", words)
	}
}
