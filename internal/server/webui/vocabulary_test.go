package webui

import (
	"os"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// TestVocabulary: the page has words for every process and kind of discrepancy, a class for every
// event, and a colour for every class.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	style, err := os.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range fleet.DiscrepancyKinds() {
		if words := discrepancyWords(string(kind)); words == string(kind) || words == "" {
			t.Errorf("a discrepancy of kind %s is shown as %q", kind, words)
		}
	}
	for _, process := range fleet.Processes() {
		if processMeaning(string(process)) == "" {
			t.Errorf("the page does not say what %s does", process)
		}
	}
	for _, event := range fleet.Events() {
		class, ok := eventClasses[event]
		if !ok {
			t.Errorf("the event %q has no class", event)
		}
		if !strings.Contains(string(style), "."+class+" ") {
			t.Errorf("the event %q has the class %q, which the style sheet lacks", event, class)
		}
	}
	if n := len(fleet.Events()); len(eventClasses) != n {
		t.Errorf("%d events have a class, but there are %d", len(eventClasses), n)
	}
	for v, class := range map[lifecycle.Verdict]string{
		lifecycle.Running: "v-now", lifecycle.Due: "v-now", lifecycle.Later: "v-later", lifecycle.Waiting: "v-waiting", lifecycle.NotWanted: "v-none",
	} {
		if got := verdictClass(v.String()); got != class {
			t.Errorf("the verdict %s has the class %s, want %s", v, got, class)
		}
	}
	if got := discrepancyWords("quarrel"); got != "quarrel" {
		t.Errorf("an unknown kind is shown as %q", got)
	}
	if got := eventClass("danced"); got != eventFact {
		t.Errorf("an unknown event has the class %q", got)
	}
}
