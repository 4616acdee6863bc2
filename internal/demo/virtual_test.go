package demo_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
)

// TestVirtualNeedsItsDisk says by one sentence what to run.
func TestVirtualNeedsItsDisk(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	o := options(t)
	o.Virtual = 1
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	d, err := demo.Open(t.Context(), o, slog.New(slog.DiscardHandler))
	if err == nil {
		_ = d.Close()
	}
	if fleet.KindOf(err) != fleet.KindNotFound || !strings.Contains(err.Error(), "make ") {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

// TestVirtualLeavesNoWorldToSpeakOf: what is said of a world is refused.
func TestVirtualLeavesNoWorldToSpeakOf(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*demo.Options){
		"--vm must be from 1 to 16, not 17": func(o *demo.Options) { o.Virtual = 17 },
		"leave --dir out":                   func(o *demo.Options) { o.Dir = os.TempDir() },
		"leave --seen-up":                   func(o *demo.Options) { o.SeenUp.By = fleet.SeenBySSH },
	} {
		o := options(t)
		o.Virtual = 1
		change(&o)
		if err := o.Validate(); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}
