package webui

import (
	"strings"
	"testing"
)

// TestScript: what the script must not lose. Nothing here runs it.
func TestScript(t *testing.T) {
	t.Parallel()
	script, err := assetFiles.ReadFile("assets/live.js")
	if err != nil {
		t.Fatal(err)
	}
	for what, wanted := range map[string]string{
		"who may not read any more has no lost connection": "denied = page?.status === 401 || page?.status === 403;\n    if (!page?.ok && !denied) return miss();",
		"who may not read any more does not try again":     "if (denied) {\n      clearTimeout(again);",
		"a page that lacks an element is loaded anew":      "later = setTimeout(() => { if (stream?.readyState === EventSource.OPEN && !waiting.size) anew(); }, rest());",
		"what waits for a selection is not called live":    `waiting.size ? say("paused: text is selected", "paused") : say("live", "live")`,
	} {
		if !strings.Contains(string(script), wanted) {
			t.Errorf("%s: the script lacks %q", what, wanted)
		}
	}
}
