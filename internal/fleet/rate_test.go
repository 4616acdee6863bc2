package fleet_test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestRateText(t *testing.T) {
	t.Parallel()
	var r fleet.Rate
	if err := r.UnmarshalText([]byte("250ms, 8")); err != nil || r != (fleet.Rate{Every: 250 * time.Millisecond, Burst: 8}) {
		t.Errorf("got %v, %v", r, err)
	}
	if text, _ := r.MarshalText(); string(text) != "250ms,8" {
		t.Errorf("written as %q", text)
	}
	for _, bad := range []string{"", "1s", "1s,0", "0s,1", "-1s,1", "1,1", "1s,1,1", "1s,x"} {
		if err := new(fleet.Rate).UnmarshalText([]byte(bad)); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%q: got %v, want an error of kind invalid", bad, err)
		}
	}
}
