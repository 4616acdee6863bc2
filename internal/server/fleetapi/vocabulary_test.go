package fleetapi_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestTheReferenceNamesTheVocabulary: the comments of the proto name every event and every kind of
// discrepancy, because a client's author has nothing else to go by.
func TestTheReferenceNamesTheVocabulary(t *testing.T) {
	t.Parallel()
	proto, err := os.ReadFile("../../../api/fleet/v1/fleet.proto")
	if err != nil {
		t.Fatal(err)
	}
	comments := func(message, field string) string {
		_, rest, _ := strings.Cut(string(proto), "\nmessage "+message+" {")
		text, _, found := strings.Cut(rest, "string "+field+" =")
		if !found {
			t.Fatalf("the proto has no field %s.%s", message, field)
		}
		text = text[strings.LastIndex(text, ";\n")+1:]
		return regexp.MustCompile(`[\s/]+`).ReplaceAllString(text, " ")
	}
	events := comments("HistoryEntry", "event")
	named := regexp.MustCompile(`[,;:.] *(?:then )?| or | [a-z]+: `).Split(strings.TrimSpace(events), -1)
	for _, e := range fleet.Events() {
		if !slices.Contains(named, string(e)) {
			t.Errorf("HistoryEntry.event does not name %q: it names %q", e, named)
		}
	}
	kinds := comments("Discrepancy", "kind")
	for _, k := range fleet.DiscrepancyKinds() {
		if !strings.Contains(kinds, string(k)+":") {
			t.Errorf("Discrepancy.kind does not name %q:\n%s", k, kinds)
		}
	}
}
