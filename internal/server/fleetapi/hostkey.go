package fleetapi

import (
	"context"
	"slices"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
)

// GetHostKeys implements fleetv1connect.FleetServiceHandler.
func (s *Service) GetHostKeys(ctx context.Context, req *fleetv1.GetHostKeysRequest) (*fleetv1.GetHostKeysResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceGetHostKeysProcedure, func(ctx context.Context, _ string) (*fleetv1.GetHostKeysResponse, error) {
		id, err := s.resolve(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		keys, err := s.db.HostKeys(ctx, id)
		if err != nil {
			return nil, err
		}
		response := &fleetv1.GetHostKeysResponse{
			Known: each(keys.Known, hostKey), Source: string(keys.Source), Since: stamp(keys.At), RefusedAt: stamp(keys.RefusedAt),
		}
		if keys.Refused != "" {
			response.Refused = hostKey(keys.Refused)
		}
		return response, nil
	})
}

func hostKey(key string) *fleetv1.HostKey {
	return &fleetv1.HostKey{Fingerprint: remote.Fingerprint(key), Key: key}
}

// AcceptHostKey implements fleetv1connect.FleetServiceHandler.
func (s *Service) AcceptHostKey(ctx context.Context, req *fleetv1.AcceptHostKeyRequest) (*fleetv1.AcceptHostKeyResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceAcceptHostKeyProcedure, func(ctx context.Context, actor string) (*fleetv1.AcceptHostKeyResponse, error) {
		id, err := s.resolve(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		reason, err := reasonOf(req.GetReason())
		if err != nil {
			return nil, err
		}
		keys, err := s.db.HostKeys(ctx, id)
		if err != nil {
			return nil, err
		}
		if keys.Refused == "" && keys.Source == fleet.HostKeyAccepted && slices.ContainsFunc(keys.Known, func(key string) bool { return remote.Fingerprint(key) == req.GetFingerprint() }) {
			return &fleetv1.AcceptHostKeyResponse{}, nil // the answer was lost
		}
		if keys.Refused == "" || remote.Fingerprint(keys.Refused) != req.GetFingerprint() {
			return nil, fleet.Errorf(fleet.KindConflict, "machine %s has not shown a host key with the fingerprint %q: "+
				"`ironherd machine host-key show %s` shows which are known", id, req.GetFingerprint(), id)
		}
		return &fleetv1.AcceptHostKeyResponse{}, s.db.AcceptHostKey(ctx, actor, id, keys.Refused, req.GetFingerprint(), reason)
	})
}
