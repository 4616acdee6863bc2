package gate_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/gate"
)

func TestParseStatus(t *testing.T) {
	t.Parallel()
	s, err := gate.ParseStatus([]byte(`{"state":"working","version":"none","minimumCompatible":"v1.0.0","since":"a newer release"}`))
	if want := status(gate.Working, 0, 2); err != nil || s != want {
		t.Errorf("%+v, %v", s, err)
	}
	for _, text := range []string{
		"", "null", "[]", "{", `{"state":"done"}`, `{"state":"done","version":"none","minimumCompatible":"v1.0.0"}`,
		`{"state":"done","version":"v1.0.0","minimumCompatible":"none"}`, `{"state":"idle","version":"v1.0.0","minimumCompatible":"v1.0.0"}`,
		`{"state":"done","version":1,"minimumCompatible":"v1.0.0"}`, `{"state":"done","version":"v1.0.0","minimumCompatible":"1.0"}`,
		strings.Repeat(" ", 5000) + `{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`,
	} {
		if s, err := gate.ParseStatus([]byte(text)); fleet.KindOf(err) != fleet.KindInvalid || s != (gate.Status{}) {
			t.Errorf("%.80q: %+v, %v", text, s, err)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte(`{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`))
	f.Add([]byte(`{"state":"working","version":"none","minimumCompatible":"v1.0.0-rc.1"}`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := gate.ParseStatus(text)
		if err != nil {
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if same, err := gate.ParseStatus(again); err != nil || same != s {
			t.Fatalf("%q becomes %q, which is %+v, %v", text, again, same, err)
		}
	})
}
