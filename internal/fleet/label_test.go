package fleet_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestLabels(t *testing.T) {
	t.Parallel()
	labels := []string{"new=", "role=database", "zone=a/1"}
	for selector, want := range map[string]bool{
		"role=database": true, "role": true, "zone=a/1": true, "new": true, "new=": true,
		"role=": false, "role=data": false, "rol": false, "database": false, "new=yes": false, "Role": false,
	} {
		s, err := fleet.ParseLabelSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Fits(labels); got != want {
			t.Errorf("%s fits %v: %v, want %v", selector, labels, got, want)
		}
	}
	long := strings.Repeat("x", 64)
	for _, bad := range []string{"", "=", "=database", "-role", "role=a=b", "role=a,b", "role=a b", "role=a\nb", "röle", long, "role=" + long} {
		if _, err := fleet.ParseLabelSelector(bad); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%q: %v, want it to be invalid", bad, err)
		}
	}
}
