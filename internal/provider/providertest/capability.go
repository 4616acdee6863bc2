package providertest

import (
	"context"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// actions returns what a provider can do with a machine, by the name of the capability's method.
func actions(p provider.Provider) map[string]func(context.Context, fleet.ProviderID) error {
	can := make(map[string]func(context.Context, fleet.ProviderID) error)
	if rebooter, ok := p.(provider.Rebooter); ok {
		can["reboot"] = rebooter.Reboot
	}
	if powerer, ok := p.(provider.Powerer); ok {
		can["power on"], can["power off"], can["power cycle"] = powerer.PowerOn, powerer.PowerOff, powerer.PowerCycle
	}
	if reinstaller, ok := p.(provider.Reinstaller); ok {
		can["reinstall"] = reinstaller.Reinstall
	}
	if releaser, ok := p.(provider.Releaser); ok {
		can["release"] = releaser.Release
	}
	return can
}

// limit bounds how long a backend of a test takes to do what it accepted.
const limit = 30 * time.Second

// becomes waits until the provider says of a machine that it has a status.
func becomes(t *testing.T, h Harness, id fleet.ProviderID, status fleet.ProviderStatus) provider.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		entry, err := h.Provider.Get(ctx, id)
		if err != nil {
			t.Fatalf("the machine should become %s: %v", status, err)
		}
		if entry.Status == status {
			return entry
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the machine stays %s (%s), and should become %s", entry.Status, entry.Detail, status)
		}
	}
}

// running creates a machine and waits until it runs.
func running(t *testing.T, h Harness) fleet.ProviderID {
	t.Helper()
	if h.Seen == nil {
		t.Fatal("a provider with this capability needs Seen in its harness")
	}
	id := create(t, h, request(h.Free[0])).ID
	becomes(t, h, id, fleet.ProviderStatusActive)
	return id
}

// can returns the method of a capability. It skips the test of a provider without it, and checks
// that a machine which does not exist is not taken for one that was acted on.
func can(t *testing.T, h Harness, name string) func(fleet.ProviderID) error {
	t.Helper()
	action := actions(h.Provider)[name]
	if action == nil {
		t.Skip("this kind of provider cannot do it")
	}
	if err := action(t.Context(), h.Absent); fleet.KindOf(err) != fleet.KindNotFound && name != "release" {
		t.Errorf("%s of an absent machine gives %v (%s)", name, err, fleet.KindOf(err))
	}
	if h.NotAnID != "" {
		if err := action(t.Context(), h.NotAnID); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%s of what is no ID gives %v (%s)", name, err, fleet.KindOf(err))
		}
	}
	return func(id fleet.ProviderID) error { return action(t.Context(), id) }
}

// seen checks what the backend has done with a machine.
func seen(t *testing.T, h Harness, after string, id fleet.ProviderID, want Seen) {
	t.Helper()
	if got := h.Seen(id); got != want {
		t.Errorf("after %s the machine is %+v, want %+v", after, got, want)
	}
}

func testReboot(t *testing.T, h Harness) {
	t.Helper()
	reboot := can(t, h, "reboot")
	id := running(t, h)
	for starts := range 2 {
		if err := reboot(id); err != nil {
			t.Fatal(err)
		}
		becomes(t, h, id, fleet.ProviderStatusActive)
		seen(t, h, "a reboot", id, Seen{On: true, Starts: 2 + starts, Installs: 1})
	}
}

func testPower(t *testing.T, h Harness) {
	t.Helper()
	off, on, cycle := can(t, h, "power off"), can(t, h, "power on"), can(t, h, "power cycle")
	id := running(t, h)
	starts := 1
	for _, step := range []struct {
		name   string
		do     func(fleet.ProviderID) error
		status fleet.ProviderStatus
		starts int
	}{
		{"on, when it is on", on, fleet.ProviderStatusActive, 0},
		{"off", off, fleet.ProviderStatusOff, 0},
		{"off, when it is off", off, fleet.ProviderStatusOff, 0},
		{"on", on, fleet.ProviderStatusActive, 1},
		{"a cycle", cycle, fleet.ProviderStatusActive, 1},
		{"off again", off, fleet.ProviderStatusOff, 0},
		{"a cycle of a machine that is off", cycle, fleet.ProviderStatusActive, 1},
	} {
		eventually(t, "power "+step.name+" is accepted", func() bool {
			err := step.do(id)
			// A machine that is turning off cannot be turned on yet, and both are off in a list.
			if err != nil && fleet.KindOf(err) != fleet.KindConflict {
				t.Fatalf("power %s: %v (%s)", step.name, err, fleet.KindOf(err))
			}
			return err == nil
		})
		becomes(t, h, id, step.status)
		starts += step.starts
		if step.status == fleet.ProviderStatusOff {
			eventually(t, "the machine is off", func() bool { return !h.Seen(id).On })
		}
		seen(t, h, "power "+step.name, id, Seen{On: step.status == fleet.ProviderStatusActive, Starts: starts, Installs: 1})
	}
	if reboot := actions(h.Provider)["reboot"]; reboot != nil {
		if err := off(id); err != nil {
			t.Fatal(err)
		}
		becomes(t, h, id, fleet.ProviderStatusOff)
		if err := reboot(t.Context(), id); fleet.KindOf(err) != fleet.KindConflict {
			t.Errorf("reboot of a machine that is off gives %v (%s)", err, fleet.KindOf(err))
		}
	}
}

func testReinstall(t *testing.T, h Harness) {
	t.Helper()
	reinstall := can(t, h, "reinstall")
	id := running(t, h)
	before, err := h.Provider.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := reinstall(id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is installed a second time", func() bool { return h.Seen(id).Installs == 2 })
	after := becomes(t, h, id, fleet.ProviderStatusActive)
	seen(t, h, "a reinstall", id, Seen{On: true, Starts: 2, Installs: 2})
	if after.ID != before.ID || after.Capacity != before.Capacity || len(after.Tokens) != len(before.Tokens) {
		t.Errorf("a reinstall made %+v of %+v", after, before)
	}
}

func testRelease(t *testing.T, h Harness) {
	t.Helper()
	release := can(t, h, "release")
	if err := release(h.Absent); err != nil {
		t.Errorf("release of an absent machine gives %v", err)
	}
	id := create(t, h, request(h.Free[0])).ID
	becomes(t, h, id, fleet.ProviderStatusActive)
	for _, what := range []string{"a machine", "the same again"} {
		if err := release(id); err != nil {
			t.Fatalf("release of %s gives %v (%s)", what, err, fleet.KindOf(err))
		}
	}
	eventually(t, "the provider is certain that it is gone", func() bool {
		_, err := h.Provider.Get(t.Context(), id)
		return fleet.KindOf(err) == fleet.KindNotFound
	})
}

// eventually waits for something that is sure to come.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.NewTimer(limit)
	defer over.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-over.C:
			t.Fatalf("never: %s", what)
		}
	}
}
