package webui

import (
	"slices"
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

// TestMachinesByLocationAndLabel: the list is narrowed by what a machine's own page links to, tells
// no counts of others, and each choice can be taken back alone.
func TestMachinesByLocationAndLabel(t *testing.T) {
	t.Parallel()
	fleet := smallFleet()
	site := New(overWire(t, fleet), Options{})
	page := get(t, site, "/machines/"+first).Body.String()
	for _, link := range []string{"/machines?label=role%3Ddatabase", "/machines?location=da11&amp;provider=metal"} {
		if !strings.Contains(page, `href="`+link+`"`) {
			t.Errorf("the machine's page has no link to %s", link)
		}
	}
	const narrowed = "/machines?label=role%3Ddatabase&label=zone&location=da11&provider=metal&state=installed"
	body := get(t, site, narrowed+"&label=zone").Body.String()
	if got := fleet.asked; !slices.Equal(got.GetLocations(), []string{"da11"}) || !slices.Equal(got.GetLabels(), []string{"role=database", "zone"}) ||
		got.GetProvider() != "metal" || !slices.Equal(got.GetStates(), []string{"installed"}) {
		t.Errorf("asked for %v", got)
	}
	for _, want := range []string{
		"<h1>Installed machines at metal in da11 with role=database, zone <small>2 on this page</small></h1>",
		`href="/machines?label=role%3Ddatabase&amp;label=zone&amp;provider=metal&amp;state=installed"`,
		`href="/machines?label=zone&amp;location=da11&amp;provider=metal&amp;state=installed"`,
		`href="/machines?label=role%3Ddatabase&amp;label=zone&amp;location=da11&amp;provider=metal"`,
		`href="/machines?provider=metal&amp;state=installed"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the list has no %s", want)
		}
	}
	for _, some := range []string{"label=zone", "location=da11"} {
		if strings.Contains(get(t, site, "/machines?"+some).Body.String(), "installed <b>") {
			t.Errorf("%s: how many of the whole fleet are installed is told", some)
		}
	}
	for _, wrong := range []string{"label=", "label=a%20b", "label=a&" + strings.Repeat("label=a&", 20), "location=" + strings.Repeat("a", 600)} {
		if response := get(t, site, "/machines?"+wrong); response.Code != 400 {
			t.Errorf("%.40s: status %d", wrong, response.Code)
		}
	}
}
