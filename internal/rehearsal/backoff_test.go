package rehearsal

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestLongestBackoff: what the watch allows is the longest interval that any backoff of the setup
// comes to (I5), also where it says none, and where the loop has one of its own.
func TestLongestBackoff(t *testing.T) {
	t.Parallel()
	brief, grows := fleet.Backoff{Initial: 10 * time.Second}, fleet.Backoff{Initial: 10 * time.Second, Exponent: 1.5}
	for name, c := range map[string]struct {
		change func(s *Setup)
		want   time.Duration
	}{
		"a constant one":             {func(s *Setup) { s.Operations.Backoff = fleet.Backoff{Initial: 20 * time.Minute, Maximum: time.Hour} }, 20 * time.Minute},
		"one that grows to an hour":  {func(s *Setup) { s.Operations.Backoff = grows }, time.Hour},
		"the prober's":               {func(s *Setup) { s.Prober.Backoff = grows }, time.Hour},
		"the provisioner's, growing": {func(s *Setup) { s.Providers[0].Provisioner.Backoff = grows }, time.Hour},
		"that of a pass":             {func(*Setup) {}, 5 * time.Minute},
		"part of a second":           {func(s *Setup) { s.Recoverer.Backoff.Initial = 10*time.Minute + time.Millisecond }, 10*time.Minute + time.Second},
	} {
		s := Brisk()
		s.Policy.InstallRetry, s.Initializer.StartBackoff, s.Initializer.ProviderBackoff, s.Initializer.IDBackoff = brief, brief, brief, brief
		s.Recoverer.Backoff, s.Operations.Backoff, s.Prober.Backoff = brief, brief, brief
		s.Providers[0].Provisioner.Backoff, s.Providers[0].Updater.Backoff = brief, brief
		c.change(&s)
		if got := (&world{setup: s}).longestBackoff(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
