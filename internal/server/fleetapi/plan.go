package fleetapi

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// CreatePlan implements fleetv1connect.FleetServiceHandler.
func (s *Service) CreatePlan(ctx context.Context, req *fleetv1.CreatePlanRequest) (*fleetv1.CreatePlanResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceCreatePlanProcedure, func(ctx context.Context, actor string) (*fleetv1.CreatePlanResponse, error) {
		plan, wanted, err := s.makePlan(ctx, actor, req)
		made := plan.ID != ""
		if made && (req.GetConfirm() || req.GetConfirmHarmless() && !plan.NeedsConfirmation) {
			plan, err = s.confirm(ctx, actor, plan.ID)
		}
		if err != nil && (made || !req.GetAllowRefused() || len(plan.Machines) == 0) {
			return nil, err
		}
		response := &fleetv1.CreatePlanResponse{Plan: planMessage(plan), Labels: req.GetLabels()}
		if wanted.Install != nil {
			response.Caveat = wanted.Install.Caveat("--seen-up ssh")
		}
		return response, nil
	})
}

// makePlan makes a plan. It has no ID where it is for no machine, and, with the error, where
// nothing can be done to any.
func (s *Service) makePlan(ctx context.Context, actor string, req *fleetv1.CreatePlanRequest) (plan bmdb.Plan, wanted bmdb.PlanRequest, err error) {
	if wanted, err = s.planOf(ctx, req); err != nil {
		return plan, wanted, err
	}
	plan, err = s.judgePlan(ctx, actor, req, &wanted)
	if err != nil || len(plan.Machines) == 0 {
		return plan, wanted, err
	}
	plan, err = s.db.KeepPlan(ctx, plan)
	return plan, wanted, err
}

// judgePlan works out, when its turn has come, for which machines a plan is, and what it would do.
// To keep the plan is not part of that turn: while the database takes no changes, whoever keeps one
// waits as long as they like, and no other plan is to wait for them.
func (s *Service) judgePlan(ctx context.Context, actor string, req *fleetv1.CreatePlanRequest, wanted *bmdb.PlanRequest) (plan bmdb.Plan, err error) {
	leave, err := s.enterPlanning(ctx, actor, req)
	if err != nil {
		return plan, err
	}
	defer leave()
	if err := s.choose(ctx, req, wanted); err != nil {
		return plan, err
	}
	if len(wanted.Machines) == 0 {
		return bmdb.Plan{Request: verb.Request{Verb: wanted.Verb, Reason: wanted.Reason}}, nil
	}
	return s.db.JudgePlan(ctx, actor, *wanted)
}

// confirm has a plan carried out, and logs that it was.
func (s *Service) confirm(ctx context.Context, actor, id string) (bmdb.Plan, error) {
	plan, err := s.db.ConfirmPlan(ctx, actor, id)
	if plan.ID == "" {
		return plan, err
	}
	level, outcome := slog.LevelInfo, map[bmdb.Outcome]int{}
	for _, o := range plan.Outcomes {
		outcome[o.Outcome]++
	}
	if err != nil {
		level = slog.LevelWarn
	}
	s.options.Logger.Log(ctx, level, "a plan was confirmed", slog.String("plan", plan.ID), slog.String("actor", actor),
		slog.String("verb", string(plan.Verb)), slog.String("reason", plan.Reason), slog.Int("machines", len(plan.Machines)),
		slog.Int("done", outcome[bmdb.OutcomeDone]), slog.Int("skipped", outcome[bmdb.OutcomeSkipped]),
		slog.Int("refused", outcome[bmdb.OutcomeRefused]), slog.Any("err", err))
	return plan, err
}

// planOf reads what is wanted, all but the machines. It asks the database for no more than the
// time: what makes no sense is told at once, and not when its turn has come.
func (s *Service) planOf(ctx context.Context, req *fleetv1.CreatePlanRequest) (wanted bmdb.PlanRequest, err error) {
	wanted = bmdb.PlanRequest{Reason: req.GetReason(), Refused: map[fleet.MachineID]error{}}
	if wanted.Verb, err = fleet.ParseVerb(req.GetVerb()); err != nil {
		return wanted, err
	}
	if wanted.Reason, err = reasonOf(req.GetReason()); err != nil {
		return wanted, err
	}
	if wanted.Until, err = s.endOf(ctx, req); err != nil {
		return wanted, err
	}
	switch {
	case wanted.Verb == fleet.VerbReinstall:
		install, err := s.installOf(req.GetInstall())
		if err != nil {
			return wanted, err
		}
		wanted.Install = &install
	case req.GetInstall() != nil:
		return wanted, fleet.Errorf(fleet.KindInvalid, "install belongs to the verb %s, not to %s", fleet.VerbReinstall, wanted.Verb)
	}
	if err := (verb.Request{Verb: wanted.Verb, Reason: wanted.Reason, Until: wanted.Until, Install: wanted.Install}).Validate(); err != nil {
		return wanted, err
	}
	wanted.Selector, err = selectorOf(req)
	return wanted, err
}

// selects reports whether the machines are selected, and not named.
func selects(req *fleetv1.CreatePlanRequest) bool {
	return req.GetProvider() != "" || len(req.GetStates())+len(req.GetLocations())+len(req.GetLabels()) > 0
}

// selectorOf returns what the machines are selected by; its zero value where they are named.
func selectorOf(req *fleetv1.CreatePlanRequest) (filter bmdb.MachineFilter, err error) {
	selected := selects(req)
	switch {
	case (selected || req.GetLimit() != 0 || req.GetAfter() != "") && len(req.GetMachines()) > 0:
		return filter, fleet.Errorf(fleet.KindInvalid, "machines and a selector contradict each other: name machines, or select them by provider, state, location and label")
	case !selected && len(req.GetMachines()) == 0:
		return filter, fleet.Errorf(fleet.KindInvalid, "name machines, or select them by provider, state, location and label")
	case req.GetLimit() < 0 || req.GetLimit() > bmdb.MaxPlanned:
		return filter, fleet.Errorf(fleet.KindInvalid, "limit must be from 1 to %d, not %d: one plan has at most so many machines", bmdb.MaxPlanned, req.GetLimit())
	case len(req.GetMachines()) > bmdb.MaxPlanned:
		return filter, fleet.Errorf(fleet.KindInvalid, "%d machines are too many for one plan: at most %d are possible", len(req.GetMachines()), bmdb.MaxPlanned)
	case !selected:
		return filter, nil
	}
	filter, err = filterOf(&fleetv1.ListMachinesRequest{
		Provider: req.GetProvider(), States: req.GetStates(), Locations: req.GetLocations(), Labels: req.GetLabels(),
	})
	if err != nil {
		return filter, err
	}
	if req.GetAfter() != "" {
		if filter.After, err = fleet.ParseMachineID(req.GetAfter()); err != nil {
			return filter, fleet.Errorf(fleet.KindInvalid, "after must be the ID of a machine: %w", err)
		}
	}
	filter.Limit = bmdb.MaxPlanned + 1
	if n := int(req.GetLimit()); n > 0 {
		filter.Limit = n
	}
	return filter, nil
}

// choose fills in the machines that were named, or those that the selector fits, and which of them
// are not suited. Only behind some other, and with allow_refused, there may be none. They are
// judged once more when the plan is made, and when it is carried out: what is stored of their
// states may be older.
func (s *Service) choose(ctx context.Context, req *fleetv1.CreatePlanRequest, wanted *bmdb.PlanRequest) (err error) {
	if selects(req) {
		wanted.Machines, err = s.selected(ctx, wanted.Selector, req.GetAllowRefused())
	} else {
		wanted.Machines, err = s.named(ctx, req.GetMachines())
	}
	if err != nil || wanted.Install == nil {
		return err
	}
	for _, id := range wanted.Machines {
		unsuited := s.suits(ctx, id, wanted.Install.Image)
		if unsuited != nil && fleet.KindOf(unsuited) != fleet.KindConflict {
			return unsuited
		}
		if unsuited != nil {
			wanted.Refused[id] = unsuited
		}
	}
	return nil
}

// selected returns the machines that a selector fits; none only behind some other, where there need
// be none.
func (s *Service) selected(ctx context.Context, filter bmdb.MachineFilter, mayBeNone bool) ([]fleet.MachineID, error) {
	rows, err := s.db.ListMachines(ctx, filter)
	if err == nil && len(rows) == 0 && filter.Provider != "" {
		err = s.mustExist(ctx, filter.Provider)
	}
	switch {
	case err != nil:
		return nil, err
	case len(rows) == 0 && filter.After != "" && mayBeNone:
		return nil, nil
	case len(rows) == 0 && filter.After != "":
		return nil, fleet.Errorf(fleet.KindNotFound, "the selector fits no machine behind %s", filter.After)
	case len(rows) == 0:
		return nil, fleet.Errorf(fleet.KindNotFound, "the selector fits no machine")
	case len(rows) > bmdb.MaxPlanned:
		return nil, fleet.Errorf(fleet.KindInvalid, "the selector fits more than %d machines, which is the most for one plan: take the first %d (limit), "+
			"and then, plan after plan, those behind the last machine of the one before (after)", bmdb.MaxPlanned, bmdb.MaxPlanned)
	}
	return each(rows, func(r bmdb.MachineRow) fleet.MachineID { return r.ID }), nil
}

// named returns the machines of those names, each of them once. Its error names every name that
// fits none, or several.
func (s *Service) named(ctx context.Context, refs []string) (ids []fleet.MachineID, err error) {
	var faults []error
	kind := fleet.KindUnknown
	for _, ref := range refs {
		id, err := s.resolve(ctx, ref)
		switch k := fleet.KindOf(err); {
		case err == nil && !slices.Contains(ids, id):
			ids = append(ids, id)
		case err == nil:
		case k == fleet.KindNotFound || k == fleet.KindConflict || k == fleet.KindInvalid:
			kind, faults = k, append(faults, err)
		default:
			return nil, err
		}
	}
	if len(faults) == 1 {
		return nil, faults[0]
	}
	if len(faults) > 0 {
		return nil, &fleet.Error{Kind: kind, Err: errors.Join(faults...)}
	}
	return ids, nil
}

// reasonOf returns the reason that somebody gave.
func reasonOf(reason string) (string, error) {
	switch {
	case strings.TrimSpace(reason) == "":
		return "", fleet.Errorf(fleet.KindInvalid, "reason must be set: history and everybody who asks are to be told why")
	case len(reason) > fleet.MaxReason:
		return "", fleet.Errorf(fleet.KindInvalid, "reason has %d bytes: at most %d are possible", len(reason), fleet.MaxReason)
	}
	for _, c := range reason {
		if c < ' ' || c == 0x7f {
			return "", fleet.Errorf(fleet.KindInvalid, "reason must be one line of text")
		}
	}
	return reason, nil
}

// optionalReason is reasonOf where nobody has to say why.
func optionalReason(reason string) (string, error) {
	if reason == "" {
		return "", nil
	}
	return reasonOf(reason)
}

// GetPlan implements fleetv1connect.FleetServiceHandler.
func (s *Service) GetPlan(ctx context.Context, req *fleetv1.GetPlanRequest) (*fleetv1.GetPlanResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceGetPlanProcedure, func(ctx context.Context, _ string) (*fleetv1.GetPlanResponse, error) {
		plan, err := s.db.Plan(ctx, req.GetId())
		if err != nil {
			return nil, err
		}
		return &fleetv1.GetPlanResponse{Plan: planMessage(plan)}, nil
	})
}

// ConfirmPlan implements fleetv1connect.FleetServiceHandler.
func (s *Service) ConfirmPlan(ctx context.Context, req *fleetv1.ConfirmPlanRequest) (*fleetv1.ConfirmPlanResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceConfirmPlanProcedure, func(ctx context.Context, actor string) (*fleetv1.ConfirmPlanResponse, error) {
		plan, err := s.confirm(ctx, actor, req.GetId())
		if err != nil {
			return nil, err
		}
		return &fleetv1.ConfirmPlanResponse{Plan: planMessage(plan)}, nil
	})
}

// planMessage says nothing of what a reinstall installs but what each machine's line says.
func planMessage(p bmdb.Plan) *fleetv1.Plan {
	a := &fleetv1.Plan{
		Id: p.ID, At: stamp(p.At), ExpiresAt: stamp(p.ExpiresAt), Actor: p.Actor, Verb: string(p.Verb), Reason: p.Reason,
		Until: stampPointer(p.Until), NeedsConfirmation: p.NeedsConfirmation, ConfirmedAt: stampPointer(p.ConfirmedAt),
		Confirmable: &p.Confirmable,
		Machines: each(p.Machines, func(m verb.Planned) *fleetv1.PlannedMachine {
			return &fleetv1.PlannedMachine{
				MachineId: string(m.Machine), Name: m.Name, State: string(m.State), Does: m.Does, Destroys: m.Destroys, InUse: m.InUse, Refused: m.Refused,
			}
		}),
	}
	for i, o := range p.Outcomes {
		m := a.GetMachines()[i]
		m.Outcome, m.Detail, m.Operation, m.InstallGeneration = string(o.Outcome), o.Detail, o.Operation, int64(o.Generation)
	}
	return a
}

// operationOf returns the newest operation of a machine; nil when none was asked for.
func operationOf(r fleet.Record) *fleetv1.Operation {
	q := r.Operation
	if q == nil {
		return nil
	}
	o := &fleetv1.Operation{Number: q.Number, Operation: string(q.Operation), At: stamp(q.At), Actor: q.Actor, Reason: q.Reason}
	if a := r.CurrentOperationAttempt(); a != nil {
		o.Attempts, o.AcceptedAt = int32(a.Attempt), stampPointer(a.AcceptedAt)
	}
	if e := r.CurrentOperationReport(); e != nil {
		o.EndedAt, o.Ok, o.Detail = stamp(e.At), e.OK, e.Detail
	}
	return o
}

// latest bounds instants that people name.
var latest = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func instantOf(field string, at interface {
	CheckValid() error
	AsTime() time.Time
},
) (time.Time, error) {
	if err := at.CheckValid(); err != nil || at.AsTime().After(latest) {
		return time.Time{}, fleet.Errorf(fleet.KindInvalid, "%s is not an instant", field)
	}
	return at.AsTime(), nil
}

// clocksAgree is how far apart the clocks of the database and of this host may be for an instant
// that a person names.
const clocksAgree = time.Minute

// endOf returns when something ends by itself; nil: it does not. What lasts ends by the clock of
// the database, by which it is ended: whoever asks may have another. An instant is refused where
// that clock is known to differ, since it would come too early or too late.
func (s *Service) endOf(ctx context.Context, req interface {
	GetUntil() *timestamppb.Timestamp
	GetLasts() *durationpb.Duration
},
) (*time.Time, error) {
	at := time.Time{}
	switch until, lasts := req.GetUntil(), req.GetLasts(); {
	case lasts != nil:
		if lasts.CheckValid() != nil || lasts.AsDuration() <= 0 {
			return nil, fleet.Errorf(fleet.KindInvalid, "lasts must be a positive duration, such as 2h")
		}
		now, err := s.db.Now(ctx)
		if err != nil {
			return nil, err
		}
		at = now.Add(lasts.AsDuration())
	case until != nil:
		var err error
		if at, err = instantOf("until", until); err != nil {
			return nil, err
		}
		now, err := s.db.Now(ctx)
		if err != nil {
			return nil, err
		}
		if here := time.Now(); now.Sub(here).Abs() > clocksAgree {
			return nil, fleet.Errorf(fleet.KindConflict, "by the clock of the database, which would end this, it is %s, and by that of the control plane's host %s: "+
				"give a duration (--for) in place of an instant", fleet.Instant(now), fleet.Instant(here))
		}
	default:
		return nil, nil
	}
	return &at, nil
}
