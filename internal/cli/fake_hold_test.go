package cli_test

import (
	"context"
	"fmt"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (f *fakeFleet) PauseProvider(_ context.Context, r *fleetv1.PauseProviderRequest) (*fleetv1.PauseProviderResponse, error) {
	f.hold("pause " + r.GetProvider() + ": " + r.GetReason())
	return &fleetv1.PauseProviderResponse{}, failing(r.GetProvider())
}

func (f *fakeFleet) ResumeProvider(_ context.Context, r *fleetv1.ResumeProviderRequest) (*fleetv1.ResumeProviderResponse, error) {
	f.hold("resume " + r.GetProvider() + ": " + r.GetReason())
	return &fleetv1.ResumeProviderResponse{}, failing(r.GetProvider())
}

func (f *fakeFleet) ForgetProvider(_ context.Context, r *fleetv1.ForgetProviderRequest) (*fleetv1.ForgetProviderResponse, error) {
	f.hold("forget " + r.GetProvider() + ": " + r.GetReason())
	return &fleetv1.ForgetProviderResponse{}, failing(r.GetProvider())
}

func (f *fakeFleet) RetryProvider(_ context.Context, r *fleetv1.RetryProviderRequest) (*fleetv1.RetryProviderResponse, error) {
	if all := r.GetCapacities(); len(all) > 0 {
		f.hold(fmt.Sprintf("retry %s %q: %s", r.GetProvider(), all, r.GetReason()))
		return &fleetv1.RetryProviderResponse{Penalties: int64(len(all))}, failing(r.GetProvider())
	}
	f.hold("retry " + r.GetProvider() + r.GetReason())
	return &fleetv1.RetryProviderResponse{Processes: []string{"provision"}, Penalties: 2, Kept: 2}, failing(r.GetProvider())
}

func (f *fakeFleet) PauseRecovery(_ context.Context, r *fleetv1.PauseRecoveryRequest) (*fleetv1.PauseRecoveryResponse, error) {
	f.hold(fmt.Sprintf("pause recovery: %s, until: %t, lasts: %s", r.GetReason(), r.GetUntil() != nil, r.GetLasts().AsDuration()))
	if r.GetLasts() == nil {
		return &fleetv1.PauseRecoveryResponse{}, nil
	}
	if r.GetReason() == "both" {
		return &fleetv1.PauseRecoveryResponse{Until: at(11, 0), Reason: "both; also stopped by ada until 2026-11-21 10:30:00Z: a switch"}, nil
	}
	return &fleetv1.PauseRecoveryResponse{Until: at(11, 0), Reason: r.GetReason()}, nil
}

func (f *fakeFleet) ResumeRecovery(_ context.Context, r *fleetv1.ResumeRecoveryRequest) (*fleetv1.ResumeRecoveryResponse, error) {
	f.hold("resume recovery" + r.GetReason())
	return &fleetv1.ResumeRecoveryResponse{}, nil
}
