package fleetapi

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// Bounds of one answer.
const (
	defaultPage    = 100
	defaultHistory = 200
	maxRows        = 1000
	// maxLocations is how many locations one question may name: each is looked for by itself.
	maxLocations = 100
)

// GetSummary implements fleetv1connect.FleetServiceHandler.
func (s *Service) GetSummary(ctx context.Context, req *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceGetSummaryProcedure, func(ctx context.Context, _ string) (*fleetv1.GetSummaryResponse, error) {
		summary, err := s.db.Summary(ctx)
		if err != nil {
			return nil, err
		}
		a := summaryOf(summary)
		if bmdb.SuspectsUs(summary.RecoveryHold) {
			env, err := s.db.Environment(ctx)
			if err != nil {
				return nil, err
			}
			a.RecoveryHold.Suspects = s.suspects(env, summary.At)
		}
		providers, err := s.db.Providers(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range providers {
			if pause := pauseOf(p); pause != nil {
				a.PausedProviders = append(a.PausedProviders, pause)
			}
		}
		if a.Concerns, err = s.concerns(ctx, summary, providers); err != nil {
			return nil, err
		}
		if !req.GetPhases() {
			return a, nil
		}
		phases, err := s.db.Phases(ctx)
		if err != nil {
			return nil, err
		}
		a.Phases = each(phases, phaseOf)
		return a, nil
	})
}

// ListMachines implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListMachines(ctx context.Context, req *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceListMachinesProcedure, func(ctx context.Context, _ string) (*fleetv1.ListMachinesResponse, error) {
		filter, err := filterOf(req)
		if err != nil {
			return nil, err
		}
		page := filter.Limit
		filter.Limit++ // one more tells whether there is another page
		rows, err := s.db.ListMachines(ctx, filter)
		if err == nil && len(rows) == 0 && filter.Provider != "" {
			err = s.mustExist(ctx, filter.Provider)
		}
		if err != nil {
			return nil, err
		}
		a := &fleetv1.ListMachinesResponse{}
		if len(rows) > page {
			rows = rows[:page]
			a.NextPageToken = string(rows[page-1].ID)
		}
		a.Machines = each(rows, machineOf)
		return a, nil
	})
}

// mustExist fails as not found, naming those that there are, when no provider has that name.
func (s *Service) mustExist(ctx context.Context, name fleet.ProviderName) error {
	rows, err := s.db.Providers(ctx)
	if err != nil {
		return err
	}
	names := each(rows, func(p bmdb.ProviderRow) string { return string(p.Name) })
	switch {
	case slices.Contains(names, string(name)):
		return nil
	case len(names) == 0:
		return fleet.Errorf(fleet.KindNotFound, "no provider is named %q: there are none", name)
	}
	return fleet.Errorf(fleet.KindNotFound, "no provider is named %q: use one of %s", name, strings.Join(names, ", "))
}

func filterOf(req *fleetv1.ListMachinesRequest) (bmdb.MachineFilter, error) {
	var f bmdb.MachineFilter
	var err error
	if f.Limit, err = limit("page_size", req.GetPageSize(), defaultPage); err != nil {
		return f, err
	}
	if req.GetProvider() != "" {
		if f.Provider, err = fleet.ParseProviderName(req.GetProvider()); err != nil {
			return f, err
		}
	}
	for _, name := range req.GetStates() {
		state, err := fleet.ParseState(name)
		if err != nil {
			return f, err
		}
		f.States = append(f.States, state)
	}
	if f.Locations = req.GetLocations(); len(f.Locations) > maxLocations || slices.Contains(f.Locations, "") {
		return f, fleet.Errorf(fleet.KindInvalid, "locations must be at most %d, and each must be named", maxLocations)
	}
	if len(req.GetLabels()) > fleet.MaxLabels {
		return f, fleet.Errorf(fleet.KindInvalid, "%d labels are too many: a machine has at most %d", len(req.GetLabels()), fleet.MaxLabels)
	}
	for _, label := range req.GetLabels() {
		selector, err := fleet.ParseLabelSelector(label)
		if err != nil {
			return f, err
		}
		f.Labels = append(f.Labels, selector)
	}
	if req.GetPageToken() != "" {
		if f.After, err = fleet.ParseMachineID(req.GetPageToken()); err != nil {
			return f, fleet.Errorf(fleet.KindInvalid, "page_token is not one that this API gave out")
		}
	}
	return f, nil
}

// ListHistory implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListHistory(ctx context.Context, req *fleetv1.ListHistoryRequest) (*fleetv1.ListHistoryResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceListHistoryProcedure, func(ctx context.Context, _ string) (*fleetv1.ListHistoryResponse, error) {
		n, err := limit("limit", req.GetLimit(), defaultHistory)
		if err != nil {
			return nil, err
		}
		rows, err := s.history(ctx, req, n)
		if err != nil {
			return nil, err
		}
		slices.Reverse(rows) // the newest come first
		return &fleetv1.ListHistoryResponse{Entries: each(rows, historyOf)}, nil
	})
}

// history returns that of the machine, or of the provider, that was named.
func (s *Service) history(ctx context.Context, req *fleetv1.ListHistoryRequest, most int) ([]bmdb.HistoryRow, error) {
	switch {
	case req.GetProvider() != "" && req.GetMachine() != "":
		return nil, fleet.Errorf(fleet.KindInvalid, "history is that of a machine or of a provider: name one of them")
	case req.GetProvider() != "":
		return s.providerHistory(ctx, req, most)
	case req.GetWithoutFinished():
		return nil, fleet.Errorf(fleet.KindInvalid, "without_finished is for the history of a provider")
	}
	id, err := s.resolve(ctx, req.GetMachine())
	if fleet.KindOf(err) == fleet.KindNotFound {
		id, err = s.db.ResolveFormer(ctx, req.GetMachine())
	}
	if err != nil {
		return nil, err
	}
	return s.db.History(ctx, id, most)
}

// providerHistory is history of a provider, also of one that was forgotten.
func (s *Service) providerHistory(ctx context.Context, req *fleetv1.ListHistoryRequest, most int) (rows []bmdb.HistoryRow, err error) {
	name, err := fleet.ParseProviderName(req.GetProvider())
	if err != nil {
		return nil, err
	}
	rows, err = s.db.ProviderHistory(ctx, name, most, req.GetWithoutFinished())
	if err == nil && len(rows) == 0 {
		err = s.mustExist(ctx, name)
	}
	return rows, err
}

// ListProviders implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListProviders(ctx context.Context, req *fleetv1.ListProvidersRequest) (*fleetv1.ListProvidersResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceListProvidersProcedure, func(ctx context.Context, _ string) (*fleetv1.ListProvidersResponse, error) {
		rows, err := s.db.Providers(ctx)
		if err != nil {
			return nil, err
		}
		a := &fleetv1.ListProvidersResponse{Providers: each(rows, providerOf)}
		for i, row := range rows {
			if s.options.Pacing != nil {
				a.Providers[i].Pacing = s.options.Pacing(row.Name)
			}
			if string(row.Name) != req.GetKeptOutOf() {
				continue
			}
			penalties, err := s.db.Penalties(ctx, row.Name)
			if err != nil {
				return nil, err
			}
			a.Providers[i].KeptOut = keptOut(penalties)
		}
		return a, nil
	})
}

// keptOut is capacity that is not used, those pieces first that are so until a person names them.
func keptOut(penalties map[fleet.CapacityID]bmdb.Penalty) []*fleetv1.Penalty {
	const most = 10_000
	ids := slices.SortedFunc(maps.Keys(penalties), func(a, b fleet.CapacityID) int {
		if first := penalties[a].ForEver(); first != penalties[b].ForEver() {
			if first {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	})
	return each(ids[:min(len(ids), most)], func(id fleet.CapacityID) *fleetv1.Penalty {
		p := &fleetv1.Penalty{Capacity: string(id), Cause: penalties[id].Cause}
		if !penalties[id].ForEver() {
			p.Until = stamp(penalties[id].Until)
		}
		return p
	})
}

// ListSessions implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListSessions(ctx context.Context, req *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceListSessionsProcedure, func(ctx context.Context, _ string) (*fleetv1.ListSessionsResponse, error) {
		rows, err := s.db.Sessions(ctx, req.GetAll())
		if err != nil {
			return nil, err
		}
		return &fleetv1.ListSessionsResponse{Sessions: each(rows, sessionOf)}, nil
	})
}

// ListDiscrepancies implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListDiscrepancies(ctx context.Context, request *fleetv1.ListDiscrepanciesRequest) (*fleetv1.ListDiscrepanciesResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceListDiscrepanciesProcedure, func(ctx context.Context, _ string) (*fleetv1.ListDiscrepanciesResponse, error) {
		if request.GetLimit() < 0 {
			return nil, fleet.Errorf(fleet.KindInvalid, "limit must not be negative, not %d", request.GetLimit())
		}
		// First: what is compared meanwhile may have been found to differ.
		uncompared, err := s.db.Uncompared(ctx)
		if err != nil {
			return nil, err
		}
		rows, err := s.db.Discrepancies(ctx, int(request.GetLimit()))
		if err != nil {
			return nil, err
		}
		return &fleetv1.ListDiscrepanciesResponse{Discrepancies: each(rows, discrepancyOf), Uncompared: each(uncompared, uncomparedOf)}, nil
	})
}

// ListImages implements fleetv1connect.FleetServiceHandler.
func (s *Service) ListImages(ctx context.Context, _ *fleetv1.ListImagesRequest) (*fleetv1.ListImagesResponse, error) {
	return answerAtOnce(ctx, s, fleetv1connect.FleetServiceListImagesProcedure, func(context.Context, string) (*fleetv1.ListImagesResponse, error) {
		return &fleetv1.ListImagesResponse{Images: each(s.options.Images, namedImageOf)}, nil
	})
}

// GetVersion implements fleetv1connect.FleetServiceHandler.
func (s *Service) GetVersion(ctx context.Context, _ *fleetv1.GetVersionRequest) (*fleetv1.GetVersionResponse, error) {
	return answerAtOnce(ctx, s, fleetv1connect.FleetServiceGetVersionProcedure, func(context.Context, string) (*fleetv1.GetVersionResponse, error) {
		return &fleetv1.GetVersionResponse{
			Version: s.options.Version, GoVersion: runtime.Version(), Database: s.options.Database, Schema: s.options.Schema,
		}, nil
	})
}

// resolve returns the machine that a person named.
func (s *Service) resolve(ctx context.Context, ref string) (fleet.MachineID, error) {
	const longest = 300
	if ref == "" || len(ref) > longest {
		return "", fleet.Errorf(fleet.KindInvalid,
			"machine must be a UUID, a host name, provider/provider-ID, or a prefix of a UUID with at least 8 characters")
	}
	id, err := s.db.Resolve(ctx, ref)
	if fleet.KindOf(err) == fleet.KindNotFound {
		if former, e := s.db.ResolveFormer(ctx, ref); e == nil {
			err = fleet.Errorf(fleet.KindNotFound, "no machine is known as %q any more: `ironherd machine history %s` tells what became of it", ref, former)
		}
	}
	return id, err
}

func limit(field string, n, byDefault int32) (int, error) {
	if n < 0 || n > maxRows {
		return 0, fleet.Errorf(fleet.KindInvalid, "%s must be 1 to %d (0 means %d), not %d", field, maxRows, byDefault, n)
	}
	if n == 0 {
		n = byDefault
	}
	return int(n), nil
}

func each[A, B any](all []A, convert func(A) B) []B {
	converted := make([]B, len(all))
	for i, a := range all {
		converted[i] = convert(a)
	}
	return converted
}
