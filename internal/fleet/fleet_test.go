package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestBackoffBounds is I5: intervals are whole seconds from the initial one to the maximum. Each is
// longer than the one before until the maximum is reached, and the maximum is reached.
func TestBackoffBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := fleet.Backoff{
			Initial:  time.Duration(rapid.Int64Range(1, int64(2*time.Minute)).Draw(t, "initial")),
			Exponent: rapid.OneOf(rapid.Float64Range(1, 4), rapid.SampledFrom(exponents)).Draw(t, "exponent"),
			Maximum:  time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "maximum")),
		}
		first := wholeSeconds(b.Initial)
		last := max(first, wholeSeconds(b.Maximum))
		switch {
		case b.Exponent == 1:
			last = first
		case b.Maximum == 0:
			last = max(first, time.Hour)
		}
		previous := b.Next(0)
		if previous != first {
			t.Fatalf("the first interval is %s, want %s", previous, first)
		}
		for previous < last {
			next := b.Next(previous)
			if next <= previous || next > last || next%time.Second != 0 {
				t.Fatalf("after %s comes %s; it must grow up to %s in whole seconds", previous, next, last)
			}
			previous = next
		}
		if next := b.Next(last); next != last {
			t.Fatalf("after the maximum of %s comes %s", last, next)
		}
		stored := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "stored"))
		if next := b.Next(stored); next < first || next > last || next%time.Second != 0 {
			t.Fatalf("after %s, which other limits have left, comes %s; it must be from %s to %s", stored, next, first, last)
		}
	})
}

// exponents are where a product of floating-point numbers misses a whole number of seconds, and the
// ends of the range.
var exponents = []float64{
	1, math.Nextafter(1, 2), 1.1, 1.2, 1.3, 1.4, 1.7, 2.2, math.MaxFloat64, math.Inf(1),
}

func wholeSeconds(d time.Duration) time.Duration {
	if rest := d % time.Second; rest > 0 {
		d += time.Second - rest
	}
	return d
}

// TestBackoffIntervals has the intervals that a person computes by hand. 90 s × 1.1 is 99 s, where
// the product of the floating-point numbers is a little more, and would be rounded up to 100 s.
func TestBackoffIntervals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		backoff fleet.Backoff
		want    []int // seconds
	}{
		{fleet.Backoff{Initial: time.Minute, Exponent: 1.1, Maximum: time.Hour}, []int{60, 66, 73, 81, 90, 99, 109, 120}},
		{fleet.Backoff{Initial: time.Minute, Exponent: 1.5, Maximum: time.Hour}, []int{60, 90, 135, 203, 305, 458, 687, 1031, 1547, 2321, 3482, 3600, 3600}},
		{fleet.Backoff{Initial: time.Minute, Exponent: 1.2, Maximum: 100 * time.Second}, []int{60, 72, 87, 100, 100}},
		{fleet.Backoff{Initial: 1500 * time.Millisecond, Exponent: 1.01}, []int{2, 3, 4, 5}},
		{fleet.Backoff{Initial: 30 * time.Second}, []int{30, 30, 30}},
		{fleet.Backoff{Initial: time.Second, Exponent: math.NaN()}, []int{1, 1}},
		{fleet.Backoff{Initial: time.Second, Exponent: math.Inf(1)}, []int{1, 3600}},
		{fleet.Backoff{Initial: time.Second, Exponent: math.MaxFloat64, Maximum: math.MaxInt64}, []int{1, math.MaxInt64 / int(time.Second)}},
	} {
		previous := time.Duration(0)
		for i, want := range test.want {
			next := test.backoff.Next(previous)
			if next != time.Duration(want)*time.Second {
				t.Errorf("%+v: interval %d is %s, want %d s", test.backoff, i+1, next, want)
			}
			previous = next
		}
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

// TestContextError: whoever asks for the context's error finds it, and whoever asks for its cause.
func TestContextError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := fleet.ContextError(ctx); err != nil {
		t.Errorf("it goes on: %v", err)
	}
	cancel(io.ErrUnexpectedEOF)
	if err := fleet.ContextError(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cancelled with a cause: %v", err)
	}
	bare, cancelBare := context.WithCancel(t.Context())
	cancelBare()
	if err := fleet.ContextError(bare); err.Error() != context.Canceled.Error() {
		t.Errorf("cancelled without one: %v", err)
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
	bad.InstallTimeout, bad.UpdateInterval, bad.SilentAfter, bad.RecoveryAtOnce, bad.RecoveryAtOncePerLocation = 0, -1, time.Minute, -1, 1001
	joined, ok := bad.Validate().(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 5 {
		t.Errorf("five faults, got: %v", bad.Validate())
	}
}

// TestPolicyChecksItsBackoff as all others are checked.
func TestPolicyChecksItsBackoff(t *testing.T) {
	t.Parallel()
	for _, b := range []fleet.Backoff{{}, {Initial: time.Minute, Exponent: 0.5}, {Initial: time.Minute, Exponent: math.NaN()}, {Initial: time.Minute, Maximum: time.Second}} {
		bad := fleet.DefaultPolicy()
		bad.InstallRetry = b
		if err := bad.Validate(); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "policy.install_retry.") {
			t.Errorf("%+v: %v", b, err)
		}
	}
}
