package cli

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// TestWhatConfirmingAPlanDoes: no command is named that would be refused.
func TestWhatConfirmingAPlanDoes(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	then := timestamppb.New(time.Date(2026, 11, 21, 10, 10, 0, 0, time.UTC))
	for name, c := range map[string]struct {
		confirmed   *timestamppb.Timestamp
		confirmable *bool
		want        string
	}{
		"new":                     {nil, &yes, "It can be confirmed until 2026-11-21 10:10:00Z: ironherd plan confirm k3j2m9x4qp"},
		"expired":                 {nil, &no, "It expired at 2026-11-21 10:10:00Z: make it anew."},
		"confirmed":               {then, &yes, "Where confirming it was interrupted, this goes on, and repeats nothing: ironherd plan confirm k3j2m9x4qp"},
		"confirmed long ago":      {then, &no, ""},
		"new, older server":       {nil, nil, "It can be confirmed until 2026-11-21 10:10:00Z: ironherd plan confirm k3j2m9x4qp"},
		"confirmed, older server": {then, nil, ""},
	} {
		plan := &fleetv1.Plan{Id: "k3j2m9x4qp", ExpiresAt: then, ConfirmedAt: c.confirmed, Confirmable: c.confirmable}
		if got := (&app{}).toConfirm(plan); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAPlanIsConfirmedWhereItWasMade: whoever named a control plane is told the command with that
// name, as a shell takes it.
func TestAPlanIsConfirmedWhereItWasMade(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]*app{
		"": {},
		" --server https://ctl.example:8443 --token-file /home/ada/ada.token --ca-file ca.crt": {server: "https://ctl.example:8443", tokenFile: "/home/ada/ada.token", caFile: "ca.crt"},
		` --config '/srv/ada'\''s fleet/herd.yaml'`:                                            {configFile: "/srv/ada's fleet/herd.yaml"},
	} {
		if got := a.confirm(&fleetv1.Plan{Id: "k3j2m9x4qp"}); got != "ironherd plan confirm k3j2m9x4qp"+want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
