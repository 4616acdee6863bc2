package bmdb

import (
	"errors"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestEachFree: what somebody has locked is passed, and a database that takes nothing ends it.
func TestEachFree(t *testing.T) {
	t.Parallel()
	locked := fleet.Errorf(fleet.KindTemporary, "somebody else has it")
	for _, c := range []struct {
		err  error
		n    int
		came []string
	}{
		{nil, 3, []string{"a", "b", "c"}},
		{locked, 3, []string{"a", "b", "c"}},
		{Unavailable("the disk is full: %w", errors.New("13")), 1, []string{"a", "b"}},
		{errors.New("a fault"), 1, []string{"a", "b"}},
	} {
		var came []string
		n, err := eachFree([]string{"a", "b", "c"}, "judge", func(one string) error {
			if came = append(came, one); one == "b" {
				return c.err
			}
			return nil
		})
		if n != c.n || !slices.Equal(came, c.came) || !errors.Is(err, c.err) || fleet.KindOf(err) != fleet.KindOf(c.err) {
			t.Errorf("%v: %d, %v, %v", c.err, n, came, err)
		}
	}
}
