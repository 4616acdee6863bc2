package webui

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

//go:generate go test -run TestStatesAreOnTheirPage . -update

// TestStatesAreOnTheirPage writes down every state as the web page explains it.
func TestStatesAreOnTheirPage(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/reference/states.md"
	var page strings.Builder
	page.WriteString("<!-- Generated from the source by `make generate`; do not edit. -->\n# States of machines\n\n" +
		"`ironherd machine list` shows them, `--state` selects by them, and `ironherd machine explain NAME` says why a machine is in one. Nobody\n" +
		"sets them: they follow from what is recorded of the machine.\n\n" +
		"* *moves*: it gets on by itself; where it does not, `machine explain` says what is missing.\n" +
		"* *trouble*: somebody should look; `machine explain` says who acts next, Ironherd or a person.\n" +
		"* *rests*: nothing is waited for, and nothing is wrong.\n\n" +
		"| state | meaning | what it is |\n|---|---|---|\n")
	for _, s := range states {
		what := "rests"
		switch {
		case s.trouble():
			what = "trouble"
		case s.moving():
			what = "moves"
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s |\n", s.name, s.meaning, what)
	}
	if *update {
		if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != page.String() {
		t.Errorf("%s is not what the source says (%v): run `go generate ./internal/server/webui`", file, err)
	}
}
