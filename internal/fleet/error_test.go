package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestSplit: what is joined comes apart, and nothing loses its words.
func TestSplit(t *testing.T) {
	t.Parallel()
	a, b := errors.New("a"), errors.New("b")
	both := fmt.Errorf("both %w and %w", a, b)
	for _, c := range []struct {
		err  error
		want []error
	}{
		{nil, nil},
		{a, []error{a}},
		{errors.Join(a, nil, errors.Join(errors.Join(b), a)), []error{a, b, a}},
		{both, []error{both}},
		{errors.Join(both, a), []error{both, a}},
	} {
		if got := fleet.Split(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
