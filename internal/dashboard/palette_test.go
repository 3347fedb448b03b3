package dashboard

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// palettes returns the colours of the light and of the dark page.
func palettes(t *testing.T) map[string]map[string]string {
	t.Helper()
	css, err := assets.ReadFile("assets/page.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(string(css), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d palettes", len(blocks))
	}
	all := make(map[string]map[string]string)
	for i, name := range []string{"light", "dark"} {
		all[name] = make(map[string]string)
		for _, one := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6});`).FindAllStringSubmatch(blocks[i][1], -1) {
			all[name][one[1]] = one[2]
		}
	}
	if len(all["light"]) != len(all["dark"]) || len(all["light"]) < 8 {
		t.Fatalf("the palettes are %v", all)
	}
	// No colour stands outside of them.
	if rest := string(css)[strings.Index(string(css), "* {"):]; regexp.MustCompile(`#[0-9a-fA-F]{3,8}\b[^-.\s{]|rgb|hsl`).MatchString(rest) {
		t.Error("a colour is not one of the palette")
	}
	return all
}

// luminance and contrast are those of WCAG 2.2.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	rgb, err := strconv.ParseUint(colour[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	part := func(shift int) float64 {
		c := float64(rgb>>shift&0xff) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}

func contrast(t *testing.T, a, b string) float64 {
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestContrastOfThePalette(t *testing.T) {
	for name, colours := range palettes(t) {
		for _, pair := range []struct {
			front, back string
			least       float64 // 4.5 for texts, 3 for borders and pictures (WCAG 2.2, 1.4.3 and 1.4.11)
		}{
			{"ink", "ground", 4.5}, {"ink", "surface", 4.5}, {"ink", "tint", 4.5},
			{"soft", "ground", 4.5}, {"soft", "surface", 4.5}, {"soft", "tint", 4.5},
			{"accent", "ground", 4.5}, {"accent", "surface", 4.5}, {"accent", "tint", 4.5}, {"on-accent", "accent", 4.5},
			{"alert", "surface", 4.5}, {"alert", "tint", 4.5},
			{"edge", "surface", 3}, {"edge", "ground", 3}, {"edge", "tint", 3},
		} {
			if got := contrast(t, colours[pair.front], colours[pair.back]); got < pair.least {
				t.Errorf("%s: %s on %s has a contrast of %.2f, want %.1f", name, pair.front, pair.back, got, pair.least)
			}
		}
	}
	if got := contrast(t, "#000000", "#ffffff"); math.Abs(got-21) > 0.01 {
		t.Errorf("black on white has %.2f", got)
	}
}

// Each state has a shape of its own.
func TestShapesOfStates(t *testing.T) {
	html, err := assets.ReadFile("assets/page.html")
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string]bool)
	for _, name := range append([]string{string(alertFailing), string(alertFailureKept)}, admin.States...) {
		shape := regexp.MustCompile(`<symbol id="shape-` + name + `"[^>]*>(.*)</symbol>`).FindSubmatch(html)
		if shape == nil || shapes[string(shape[1])] {
			t.Errorf("%s has the shape %q", name, shape)
			continue
		}
		shapes[string(shape[1])] = true
	}
}
