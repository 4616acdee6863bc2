package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestBackoffBounds is I5: intervals are whole seconds within [initial, maximum] and grow strictly
// until the maximum.
func TestBackoffBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := fleet.Backoff{
			Initial:  time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "initial")),
			Exponent: rapid.Float64Range(1.01, 4).Draw(t, "exponent"),
			Maximum:  time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "maximum")),
		}
		previous := time.Duration(0)
		for range 20 {
			next := b.Next(previous)
			if next%time.Second != 0 || next < b.Initial {
				t.Fatalf("interval %s after %s", next, previous)
			}
			if b.Maximum > 0 && next > max(b.Maximum, b.Initial)+time.Second {
				t.Fatalf("interval %s is above the maximum %s", next, b.Maximum)
			}
			if next <= previous && b.Next(next) != next {
				t.Fatalf("interval %s after %s, and %s after that: it neither grows nor has reached its maximum", next, previous, b.Next(next))
			}
			previous = next
		}
	})
}

func TestBackoffOfTheDesign(t *testing.T) {
	t.Parallel()
	start := fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour}
	for previous, want := range map[time.Duration]time.Duration{
		0: time.Minute, time.Minute: 90 * time.Second, 90 * time.Second: 135 * time.Second, 135 * time.Second: 203 * time.Second,
		50 * time.Minute: time.Hour, time.Hour: time.Hour,
	} {
		if got := start.Next(previous); got != want {
			t.Errorf("after %s comes %s, want %s", previous, got, want)
		}
	}
	constant := fleet.Backoff{Initial: 30 * time.Second}
	if got := constant.Next(30 * time.Second); got != 30*time.Second {
		t.Errorf("without an exponent the interval is constant, not %s", got)
	}
	if got := fleet.Jittered(time.Minute, 0.999); got < time.Minute || got > 75*time.Second {
		t.Errorf("a quarter at most is added, not %s", got-time.Minute)
	}
}

func TestErrorKinds(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("create: %w", fleet.Errorf(fleet.KindThrottled, "the provider said: %w", io.ErrUnexpectedEOF))
	if fleet.KindOf(err) != fleet.KindThrottled || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("kind %s, chain kept: %t", fleet.KindOf(err), errors.Is(err, io.ErrUnexpectedEOF))
	}
	if got, want := err.Error(), "create: the provider said: unexpected EOF"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if fleet.KindOf(io.EOF) != fleet.KindUnknown || fleet.KindOf(nil) != fleet.KindUnknown {
		t.Error("what nobody classified is unknown")
	}
	if fleet.KindOf(context.DeadlineExceeded) != fleet.KindTimeout {
		t.Error("a context's deadline is a timeout")
	}
	if !errors.Is(fleet.Errorf(fleet.KindTimeout, "out of retries"), os.ErrDeadlineExceeded) {
		t.Error("a timeout is os.ErrDeadlineExceeded")
	}
	if lost := fleet.Errorf(fleet.KindLeaseLost, "epoch 4 is not 5"); !errors.Is(lost, fleet.ErrLeaseLost) {
		t.Error("every lost lease is ErrLeaseLost")
	}
	seen := map[string]bool{}
	for _, k := range fleet.Kinds() {
		if seen[k.String()] {
			t.Errorf("two kinds are called %q", k)
		}
		seen[k.String()] = true
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	if _, err := fleet.ParseMachineID("nonsense"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("a machine ID is a UUID: %v", err)
	}
	id := fleet.NewMachineID()
	if got, err := fleet.ParseMachineID(" " + string(id) + "\n"); err != nil || got != id {
		t.Errorf("parsed %q, %v", got, err)
	}
	for name, ok := range map[string]bool{"metal": true, "m-2": true, "": false, "2m": false, "Metal": false, "a b": false} {
		if _, err := fleet.ParseProviderName(name); (err == nil) != ok {
			t.Errorf("provider name %q: %v", name, err)
		}
	}
	if _, err := fleet.ParseProcess("agent-start"); err != nil {
		t.Error(err)
	}
	if _, err := fleet.ParseProcess("dance"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Errorf("unknown process: %v", err)
	}
}

func TestPolicyNamesEveryFault(t *testing.T) {
	t.Parallel()
	if err := fleet.DefaultPolicy().Validate(); err != nil {
		t.Fatal(err)
	}
	bad := fleet.DefaultPolicy()
	bad.InstallTimeout, bad.UpdateInterval, bad.SilentAfter, bad.RecoveryAtOnce = 0, -1, time.Minute, -1
	joined, ok := bad.Validate().(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 4 {
		t.Errorf("four faults, got: %v", bad.Validate())
	}
}
