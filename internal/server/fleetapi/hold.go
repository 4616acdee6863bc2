package fleetapi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// AdoptMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) AdoptMachine(ctx context.Context, req *fleetv1.AdoptMachineRequest) (*fleetv1.AdoptMachineResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceAdoptMachineProcedure, func(ctx context.Context, actor string) (*fleetv1.AdoptMachineResponse, error) {
		name, err := s.namedProvider(ctx, req.GetProvider())
		if err != nil {
			return nil, err
		}
		const longest = 300
		if id := req.GetProviderId(); id == "" || len(id) > longest {
			return nil, fleet.Errorf(fleet.KindInvalid, "provider_id must be the provider's name for the machine, of at most %d bytes", longest)
		}
		reason, err := reasonOf(req.GetReason())
		if err != nil {
			return nil, err
		}
		if err := s.db.RequestAdoption(ctx, actor, name, fleet.ProviderID(req.GetProviderId()), req.GetInstalled(), reason); err != nil {
			return nil, err
		}
		a := &fleetv1.AdoptMachineResponse{Installed: req.GetInstalled()}
		providers, err := s.db.Providers(ctx)
		for _, p := range providers {
			if p.Name == name {
				a.Paused = pauseOf(p)
			}
		}
		return a, err
	})
}

// toProvider does to a provider what a person asks for, who must say why.
func (s *Service) toProvider(ctx context.Context, actor string, asked interface {
	GetProvider() string
	GetReason() string
},
	do func(ctx context.Context, actor string, name fleet.ProviderName, reason string) error,
) error {
	name, err := s.namedProvider(ctx, asked.GetProvider())
	if err != nil {
		return err
	}
	reason, err := reasonOf(asked.GetReason())
	if err != nil {
		return err
	}
	return do(ctx, actor, name, reason)
}

// PauseProvider implements fleetv1connect.FleetServiceHandler.
func (s *Service) PauseProvider(ctx context.Context, req *fleetv1.PauseProviderRequest) (*fleetv1.PauseProviderResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServicePauseProviderProcedure, func(ctx context.Context, actor string) (*fleetv1.PauseProviderResponse, error) {
		return &fleetv1.PauseProviderResponse{}, s.toProvider(ctx, actor, req, s.db.PauseProvider)
	})
}

// ResumeProvider implements fleetv1connect.FleetServiceHandler.
func (s *Service) ResumeProvider(ctx context.Context, req *fleetv1.ResumeProviderRequest) (*fleetv1.ResumeProviderResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceResumeProviderProcedure, func(ctx context.Context, actor string) (*fleetv1.ResumeProviderResponse, error) {
		return &fleetv1.ResumeProviderResponse{}, s.toProvider(ctx, actor, req, s.db.ResumeProvider)
	})
}

// ForgetProvider implements fleetv1connect.FleetServiceHandler.
func (s *Service) ForgetProvider(ctx context.Context, req *fleetv1.ForgetProviderRequest) (*fleetv1.ForgetProviderResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceForgetProviderProcedure, func(ctx context.Context, actor string) (*fleetv1.ForgetProviderResponse, error) {
		return &fleetv1.ForgetProviderResponse{}, s.toProvider(ctx, actor, req, s.db.ForgetProvider)
	})
}

// RetryProvider implements fleetv1connect.FleetServiceHandler.
func (s *Service) RetryProvider(ctx context.Context, req *fleetv1.RetryProviderRequest) (*fleetv1.RetryProviderResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceRetryProviderProcedure, func(ctx context.Context, actor string) (*fleetv1.RetryProviderResponse, error) {
		name, err := s.namedProvider(ctx, req.GetProvider())
		if err != nil {
			return nil, err
		}
		if len(req.GetCapacities()) > 0 {
			return s.retryCapacity(ctx, actor, name, req)
		}
		reason, err := optionalReason(req.GetReason())
		if err != nil {
			return nil, err
		}
		retried, ended, kept, err := s.db.RetryProvider(ctx, actor, name, reason)
		if err != nil {
			return nil, err
		}
		return &fleetv1.RetryProviderResponse{Processes: fleet.Strings(retried), Penalties: int64(ended), Kept: int64(kept)}, nil
	})
}

// retryCapacity is RetryProvider where capacity is named.
func (s *Service) retryCapacity(ctx context.Context, actor string, name fleet.ProviderName, req *fleetv1.RetryProviderRequest,
) (*fleetv1.RetryProviderResponse, error) {
	const most, longest = 1000, 300
	if n := len(req.GetCapacities()); n > most {
		return nil, fleet.Errorf(fleet.KindInvalid, "capacities has %d entries: at most %d are possible", n, most)
	}
	named := make(map[fleet.CapacityID]bool)
	for _, c := range req.GetCapacities() {
		if c == "" || len(c) > longest {
			return nil, fleet.Errorf(fleet.KindInvalid, "capacities must hold the provider's names for capacity, of at most %d bytes", longest)
		}
		named[fleet.CapacityID(c)] = true
	}
	reason, err := reasonOf(req.GetReason())
	if err != nil {
		return nil, err
	}
	if err := s.db.RetryCapacity(ctx, actor, name, slices.Collect(maps.Keys(named)), reason); err != nil {
		return nil, err
	}
	return &fleetv1.RetryProviderResponse{Penalties: int64(len(named))}, nil
}

// namedProvider returns the provider that a person named. KindNotFound, with the names that there
// are.
func (s *Service) namedProvider(ctx context.Context, name string) (fleet.ProviderName, error) {
	parsed, err := fleet.ParseProviderName(name)
	if err != nil {
		return "", err
	}
	return parsed, s.mustExist(ctx, parsed)
}

// PauseRecovery implements fleetv1connect.FleetServiceHandler.
func (s *Service) PauseRecovery(ctx context.Context, req *fleetv1.PauseRecoveryRequest) (*fleetv1.PauseRecoveryResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServicePauseRecoveryProcedure, func(ctx context.Context, actor string) (*fleetv1.PauseRecoveryResponse, error) {
		reason, err := reasonOf(req.GetReason())
		if err != nil {
			return nil, err
		}
		until, err := s.endOf(ctx, req)
		if err != nil {
			return nil, err
		}
		if err := s.db.HoldRecovery(ctx, actor, until, reason); err != nil {
			return nil, err
		}
		s.options.Logger.WarnContext(ctx, "recovery was stopped", slog.String("actor", actor), slog.String("reason", reason))
		response := &fleetv1.PauseRecoveryResponse{Until: stampPointer(until)}
		// Whatever fails here, it is stopped.
		if env, err := s.db.Environment(ctx); err == nil && env.RecoveryHold != nil {
			response.Reason = env.RecoveryHold.Reason
		}
		return response, nil
	})
}

// ResumeRecovery implements fleetv1connect.FleetServiceHandler.
func (s *Service) ResumeRecovery(ctx context.Context, req *fleetv1.ResumeRecoveryRequest) (*fleetv1.ResumeRecoveryResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceResumeRecoveryProcedure, func(ctx context.Context, actor string) (*fleetv1.ResumeRecoveryResponse, error) {
		reason, err := optionalReason(req.GetReason())
		if err != nil {
			return nil, err
		}
		env, err := s.db.Environment(ctx)
		if err != nil {
			return nil, err
		}
		if err := s.db.ResumeRecovery(ctx, actor, reason); err != nil {
			return nil, err
		}
		s.options.Logger.WarnContext(ctx, "recovery goes on", slog.String("actor", actor))
		return &fleetv1.ResumeRecoveryResponse{Ended: bmdb.HoldOfAnother(env.RecoveryHold, actor)}, nil
	})
}

// suspects says what to check on our side while recovery is stopped because so many machines are
// silent at once: where agents are told to call, the certificate there, and the clock.
func (s *Service) suspects(env fleet.Environment, now time.Time) (all []string) {
	where := "the listener"
	if s.options.Endpoint != "" {
		where = fmt.Sprintf("whether machines reach the listener at %s", s.options.Endpoint)
	}
	if env.ListenerUpSince.IsZero() {
		all = append(all, where+": none is up")
	} else {
		all = append(all, fmt.Sprintf("%s: one is up since %s", where, clock(env.ListenerUpSince, now)))
	}
	if now.Before(env.ListenerFullUntil) {
		all = append(all, fmt.Sprintf("its room and certificate: not every caller has been served since %s", clock(env.ListenerFullSince, now)))
	}
	here := time.Now()
	for _, c := range s.options.Certificates {
		if c.Listener() != string(fleet.RoleAgentAPI) {
			continue
		}
		if fault := c.Fault(here); fault != "" {
			all = append(all, "its certificate: "+fault)
		} else {
			end := c.Ends(here)
			which, expires := "it", "expires"
			if end.Of != "" {
				which = end.Of + ", which it leads to,"
			}
			if !end.At.After(here) {
				expires = "has expired"
			}
			all = append(all, fmt.Sprintf("its certificate: %s %s at %s", which, expires, fleet.Instant(end.At)))
		}
	}
	return append(all, fmt.Sprintf("the clocks: it is %s here, and %s by the database", fleet.Instant(here), fleet.Instant(now)))
}

func recoveryHoldOf(h *fleet.RecoveryHold) *fleetv1.RecoveryHold {
	if h == nil {
		return nil
	}
	return &fleetv1.RecoveryHold{At: stamp(h.At), Until: stampPointer(h.Until), Actor: h.Actor, Reason: h.Reason, Cause: string(h.Cause)}
}
