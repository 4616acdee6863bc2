package webui

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// colours reads the variables of the style sheet's two themes.
func colours(t *testing.T) (light, dark map[string]string) {
	t.Helper()
	css, err := os.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	day, night, ok := strings.Cut(string(css), "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("there is no dark theme")
	}
	night, _, _ = strings.Cut(night, "\n}\n")
	light, dark = map[string]string{}, map[string]string{}
	variable := regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6});`)
	for _, m := range variable.FindAllStringSubmatch(day, -1) {
		light[m[1]], dark[m[1]] = m[2], m[2]
	}
	for _, m := range variable.FindAllStringSubmatch(night, -1) {
		if _, known := light[m[1]]; !known {
			t.Errorf("--%s is in the dark theme alone", m[1])
		}
		dark[m[1]] = m[2]
	}
	return light, dark
}

// luminance is the relative luminance of a colour (WCAG 2.2).
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		n, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}

// TestTextCanBeRead: every colour of text has a contrast of at least 4.5 to each ground that it
// stands on, in both themes. Dots and bars are always named beside, so theirs do not count.
func TestTextCanBeRead(t *testing.T) {
	t.Parallel()
	light, dark := colours(t)
	if c := contrast(t, "#000000", "#ffffff"); math.Abs(c-21) > .01 {
		t.Fatalf("black on white has a contrast of %.2f", c)
	}
	grounds := []string{"ground", "card", "code"}
	for text, on := range map[string][]string{
		"text": grounds, "dim": grounds, "link": grounds, "bad": {"ground", "card", "bad-ground"}, "warn": {"card"}, "good": {"card"},
	} {
		for _, ground := range on {
			for theme, colours := range map[string]map[string]string{"light": light, "dark": dark} {
				if c := contrast(t, colours[text], colours[ground]); c < 4.5 {
					t.Errorf("%s theme: --%s on --%s has a contrast of %.2f", theme, text, ground, c)
				}
			}
		}
	}
}

// TestNoTableIsWiderThanAPhone: each is in a region that scrolls, and that the keyboard reaches.
func TestNoTableIsWiderThanAPhone(t *testing.T) {
	t.Parallel()
	region := regexp.MustCompile(`<div class="scroll" role="region" tabindex="0" aria-label="[A-Z][^"]+"><table`)
	tables := 0
	for name, v := range map[string]view{"overview": overviewView{}, "machines": machinesView{}, "machine": machineView{ref: "herd-0001"}} {
		var out strings.Builder
		ctx := live.CountFrom(t.Context(), instant("03:13:30"))
		if err := pageBody(look(t, v).Value.Fragments).Render(ctx, &out); err != nil {
			t.Fatal(err)
		}
		html := regexp.MustCompile(`>\s+<`).ReplaceAllString(out.String(), "><")
		all, held := strings.Count(html, "<table"), len(region.FindAllString(html, -1))
		if tables += all; all != held {
			t.Errorf("%s: %d of %d tables are in a region that scrolls", name, held, all)
		}
	}
	if tables < 8 {
		t.Error(fmt.Sprint(tables) + " tables show nothing")
	}
}
