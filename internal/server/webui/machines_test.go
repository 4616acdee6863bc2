package webui

import (
	"strings"
	"testing"
)

// TestOneProvidersMachines: beside a provider's name there are no counts of the whole fleet, and
// the rows of one page are not told as all there are.
func TestOneProvidersMachines(t *testing.T) {
	t.Parallel()
	site := New(overWire(t, smallFleet()), Options{})
	for _, c := range []struct{ target, heading string }{
		{"/machines", "Machines <small>2 of 1\u202f234"},
		{"/machines?state=installed", "Installed machines <small>2 of 1\u202f200"},
		{"/machines?provider=metal", "Machines at metal <small>2 of 1\u202f230"},
		{"/machines?provider=metal&state=installed", "Installed machines at metal <small>2 on this page"},
		{"/machines?provider=metal&state=installed&page=" + first, "Installed machines at metal <small>2 on this page"},
	} {
		body := get(t, site, c.target).Body.String()
		if !strings.Contains(body, "<h1>"+c.heading+"</small></h1>") {
			_, head, _ := strings.Cut(body, "<h1>")
			head, _, _ = strings.Cut(head, "</h1>")
			t.Errorf("%s: the heading is %q, want %q", c.target, head, c.heading)
		}
		ofFleet := strings.Contains(body, "installed <b>1\u202f200</b>")
		if ofFleet == strings.Contains(c.target, "provider=") {
			t.Errorf("%s: how many of the whole fleet are installed is told: %t", c.target, ofFleet)
		}
	}
	few := smallFleet()
	few.next = ""
	body := get(t, New(overWire(t, few), Options{}), "/machines?provider=metal&state=installed").Body.String()
	if !strings.Contains(body, "Installed machines at metal <small>2</small>") {
		t.Errorf("all there are are on the page, and it says:\n%s", body)
	}
}
