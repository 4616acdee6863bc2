package bmdb

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// judged is a machine as read in one transaction, with what the last judgement left of it.
type judged struct {
	record fleet.Record
	agenda map[fleet.Process]time.Time
	row    statement.GetMachineRow
}

// freed returns a copy of its own, as the machine is when its holder has freed it and nobody has
// written about it meanwhile.
func (j *judged) freed() *judged {
	c := *j
	c.agenda, c.record.Backoffs = maps.Clone(j.agenda), maps.Clone(j.record.Backoffs)
	c.row.LaneSession, c.record.Holds = "", nil
	return &c
}

// load reads everything that lifecycle judges the machine by. Where the result is to be written
// upon, the machine's row must have been locked by an earlier statement. KindNotFound.
func (t *transaction) load(ctx context.Context, id fleet.MachineID) (*judged, error) {
	if j, ok := t.loaded[id]; ok {
		delete(t.loaded, id)
		return j, nil
	}
	if t.pen.subjects[machineSubject(id)] {
		if err := t.flush(ctx); err != nil {
			return nil, err
		}
	}
	row, err := t.q.GetMachine(ctx, string(id))
	if absent(err) {
		return nil, fleet.Errorf(fleet.KindNotFound, "there is no machine %s", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read machine %s: %w", id, err)
	}
	j := &judged{row: row, agenda: make(map[fleet.Process]time.Time)}
	if j.record, err = recordOf(row); err != nil {
		return nil, err
	}
	if j.record.Backoffs, err = t.backoffs(ctx, machineSubject(id)); err != nil {
		return nil, err
	}
	if j.agenda, err = t.agenda(ctx, machineSubject(id)); err != nil {
		return nil, err
	}
	return j, nil
}

func (t *transaction) backoffs(ctx context.Context, subject string) (map[fleet.Process]fleet.Waiting, error) {
	rows, err := t.q.GetBackoffs(ctx, subject)
	if err != nil {
		return nil, fmt.Errorf("read backoffs of %s: %w", subject, err)
	}
	backoffs := make(map[fleet.Process]fleet.Waiting, len(rows))
	for _, b := range rows {
		backoffs[fleet.Process(b.Process)] = waitingOf(statement.Backoff{
			NotBefore: b.NotBefore, Lasts: b.Lasts, Cause: b.Cause, Failures: b.Failures,
		})
	}
	return backoffs, nil
}

func (t *transaction) agenda(ctx context.Context, subject string) (map[fleet.Process]time.Time, error) {
	if t.pen.subjects[subject] {
		if err := t.flush(ctx); err != nil {
			return nil, err
		}
	}
	rows, err := t.q.GetAgenda(ctx, subject)
	if err != nil {
		return nil, fmt.Errorf("read the agenda of %s: %w", subject, err)
	}
	agenda := make(map[fleet.Process]time.Time, len(rows))
	for _, a := range rows {
		agenda[fleet.Process(a.Process)] = time.UnixMicro(a.DueAt).UTC()
	}
	return agenda, nil
}

// heldByTheDead says that the lane's session has ended while it held the lane.
func (j *judged) heldByTheDead() bool { return j.row.LaneSession != "" && j.row.SessionEndedAt != 0 }

// plan is what lifecycle says now.
func (t *transaction) plan(ctx context.Context, j *judged) (lifecycle.Plan, error) {
	env, err := t.environment(ctx)
	if err != nil {
		return lifecycle.Plan{}, err
	}
	// a newer policy was committed after this transaction had read its own
	if j.row.StatePolicy > env.Policy.Number {
		t.env = nil
		if env, err = t.environment(ctx); err != nil {
			return lifecycle.Plan{}, err
		}
	}
	return lifecycle.Decide(j.record, env, t.Now()), nil
}

// rewrite makes the machine's whole agenda and its state what lifecycle says of its facts. Every
// write of facts, work or backoff calls it, in the same transaction, with the machine's row locked.
// A machine that is gone loses both.
func (t *transaction) rewrite(ctx context.Context, id fleet.MachineID) error {
	_, err := t.rewritten(ctx, id)
	return err
}

// rewritten is rewrite; it returns what it has read and left. Nil when the machine is gone.
func (t *transaction) rewritten(ctx context.Context, id fleet.MachineID) (*judged, error) {
	j, err := t.load(ctx, id)
	if fleet.KindOf(err) == fleet.KindNotFound {
		return nil, t.forget(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	if err := t.settle(ctx, j); err != nil {
		return nil, err
	}
	t.stir(j)
	return j, nil
}

// stir tells whoever holds the machine that what it has read of it is not all any more. Everybody
// who writes about a machine does, the holder included: of two of its own writes, the later one may
// be told of first.
func (t *transaction) stir(j *judged) {
	if j.row.LaneSession == "" || t.pen.stirred[j.record.ID] {
		return
	}
	t.pen.stirred[j.record.ID] = true
	t.pen.subjects[machineSubject(j.record.ID)] = true
	j.row.LaneRevision++
}

// settle is the rest of rewrite, for a machine that was loaded after the last write, and of which
// no facts were written.
func (t *transaction) settle(ctx context.Context, j *judged) error {
	if err := t.freeDeadLane(ctx, j); err != nil {
		return err
	}
	plan, err := t.plan(ctx, j)
	if err != nil {
		return err
	}
	written := t.putState(j, plan)
	for _, process := range fleet.MachineProcesses() {
		if t.putAgenda(machineSubject(j.record.ID), j.record.Provider, plan.For(process), j.agenda) {
			written = true
		}
	}
	if written {
		t.stir(j)
	}
	return nil
}

// putAgenda writes the row of one decision if it differs from what is there, and says whether it
// does.
func (t *transaction) putAgenda(
	subject string, provider fleet.ProviderName, d lifecycle.Decision, there map[fleet.Process]time.Time,
) (written bool) {
	old, exists := there[d.Process]
	k := agendaKey{subject, d.Process}
	if !d.Verdict.Scheduled() {
		if exists {
			delete(there, d.Process)
			t.pen.agenda(k, agendaRow{gone: true})
		}
		return exists
	}
	dueAt := d.DueAt.Truncate(time.Microsecond) // never later than lifecycle says
	if exists && old.Equal(dueAt) {
		return false
	}
	if !exists || dueAt.Before(old) {
		t.becomesDue(headKey{d.Process, provider}, dueAt)
	}
	there[d.Process] = dueAt
	t.pen.agenda(k, agendaRow{provider: provider, dueAt: dueAt.UnixMicro()})
	return true
}

// putState writes the state if it differs from what is there, and says whether it does. The reason
// alone is not worth a row while somebody is at work: lists say who is, and the end of the work
// writes it.
func (t *transaction) putState(j *judged, plan lifecycle.Plan) (written bool) {
	if j.row.State == string(plan.State) && j.row.StatePolicy == t.env.Policy.Number {
		if _, atWork := j.record.Holds[fleet.LaneHost]; atWork || j.row.StateReason == plan.Reason {
			return false
		}
	}
	since, was := j.row.StateSince, j.row.State
	if was != string(plan.State) {
		since = micros(t.Now())
	}
	j.row.State, j.row.StateReason, j.row.StateSince = string(plan.State), plan.Reason, since
	j.row.StatePolicy = t.env.Policy.Number
	t.pen.state(was, statement.MachineState{
		Machine: string(j.record.ID), Provider: string(j.record.Provider), State: string(plan.State), Reason: plan.Reason, Since: since,
		Policy: t.env.Policy.Number,
	})
	return true
}

// forget removes what a rewrite leaves, for a machine whose row has gone, and ends what was still
// being done to it.
func (t *transaction) forget(ctx context.Context, id fleet.MachineID) error {
	if t.pen.subjects[machineSubject(id)] {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	l, err := t.q.GetLane(ctx, statement.GetLaneParams{Subject: machineSubject(id), Lane: string(fleet.LaneHost)})
	if err != nil && !absent(err) {
		return fmt.Errorf("forget machine %s: %w", id, err)
	}
	if err == nil && l.Session != "" {
		err := t.end(ctx, held{
			subject: fleet.Subject{Machine: id}, lane: fleet.LaneHost, epoch: fleet.Epoch(l.Epoch),
			session: fleet.SessionID(l.Session), process: fleet.Process(l.Process), since: l.Since,
		}, history{actor: actorBMDB, event: fleet.EventRevoked, detail: "the machine is gone"})
		if err != nil {
			return err
		}
	}
	for _, process := range fleet.MachineProcesses() {
		if err := t.q.DeleteAgenda(ctx, statement.DeleteAgendaParams{Subject: machineSubject(id), Process: string(process)}); err != nil {
			return fmt.Errorf("forget machine %s: %w", id, err)
		}
		if _, err := t.q.DeleteBackoff(ctx, statement.DeleteBackoffParams{Subject: machineSubject(id), Process: string(process)}); err != nil {
			return fmt.Errorf("forget machine %s: %w", id, err)
		}
	}
	states, err := t.q.DeleteState(ctx, string(id))
	if err != nil {
		return fmt.Errorf("forget machine %s: %w", id, err)
	}
	for _, s := range states {
		t.pen.count(s.Provider, s.State, -1)
	}
	return nil
}

// recordOf turns a row into the record that lifecycle judges. What cannot be read is an error that
// names the machine.
func recordOf(r statement.GetMachineRow) (fleet.Record, error) {
	record := fleet.Record{
		Machine: fleet.Machine{
			ID: fleet.MachineID(r.ID), Provider: fleet.ProviderName(r.Provider), ProviderID: fleet.ProviderID(r.ProviderID),
			CreatedAt: instant(r.CreatedAt),
		},
		TakeoverGeneration: fleet.TakeoverGeneration(r.TakeoverGeneration),
		Intent:             intentOfMachine(r),
		Provided:           providedOfMachine(r),
		Holds:              holdsOfMachine(r),
	}
	if r.StartedAt != 0 {
		record.AgentStarted = &fleet.AgentStarted{
			At: instant(r.StartedAt), TakeoverGeneration: fleet.TakeoverGeneration(r.StartedGeneration), PublicKey: r.StartedKey,
			AgentVersion: r.StartedVersion, BootID: r.StartedBootID,
		}
	}
	if r.SeenFirstAt != 0 {
		record.AgentSeen = &fleet.AgentSeen{
			TakeoverGeneration: fleet.TakeoverGeneration(r.SeenGeneration), FirstAt: instant(r.SeenFirstAt),
			LastAt: instant(max(r.SeenLastAt, r.SeenFirstAt)), BootID: r.SeenBootID,
		}
	}
	if r.HardwareAt != 0 {
		record.Hardware = &fleet.Hardware{FirstAt: instant(r.HardwareFirstAt), At: instant(r.HardwareAt), Digest: r.HardwareDigest}
	}
	if r.QuarantineAt != 0 {
		record.Quarantine = &fleet.Quarantine{At: instant(r.QuarantineAt), Actor: r.QuarantineActor, Reason: r.QuarantineReason}
	}
	if err := installOfMachine(r, &record); err != nil {
		return fleet.Record{}, fmt.Errorf("machine %s: %w", r.ID, err)
	}
	return record, nil
}

func intentOfMachine(r statement.GetMachineRow) *fleet.Intent {
	if r.IntentOpenedAt == 0 {
		return nil
	}
	return &fleet.Intent{
		Machine: fleet.MachineID(r.ID), Provider: fleet.ProviderName(r.Provider), Capacity: fleet.CapacityID(r.IntentCapacity),
		Token: fleet.Token(r.IntentToken), OpenedAt: instant(r.IntentOpenedAt), PlannedAt: instant(r.IntentPlannedAt),
		CalledAt: instantPointer(r.IntentCalledAt), Calls: int(r.IntentCalls), Rejected: int(r.IntentRejected),
	}
}

func providedOfMachine(r statement.GetMachineRow) *fleet.Provided {
	return providedOf(statement.FactProvided{
		At: r.ProvidedAt, CreatedAt: r.ProvidedCreatedAt, ActiveAt: r.ProvidedActiveAt, Status: r.ProvidedStatus,
		Detail: r.ProvidedDetail, Hostname: r.ProvidedHostname, Address: r.ProvidedAddress, Location: r.ProvidedLocation,
		Capacity: r.ProvidedCapacity, HostKeys: r.ProvidedHostKeys,
	})
}

func providedOf(f statement.FactProvided) *fleet.Provided {
	if f.At == 0 {
		return nil
	}
	address, _ := netip.ParseAddr(f.Address) // invalid while there is none
	return &fleet.Provided{
		At: instant(f.At), CreatedAt: instant(f.CreatedAt), ActiveAt: instantPointer(f.ActiveAt),
		Status: fleet.ProviderStatus(f.Status), Detail: f.Detail, Hostname: f.Hostname, Address: address, Location: f.Location,
		Capacity: fleet.CapacityID(f.Capacity), HostKeys: splitLines(f.HostKeys),
	}
}

// holdsOfMachine: only a session that has not ended holds anything.
func holdsOfMachine(r statement.GetMachineRow) map[fleet.Lane]fleet.Hold {
	if r.LaneSession == "" || r.SessionEndedAt != 0 {
		return map[fleet.Lane]fleet.Hold{}
	}
	return map[fleet.Lane]fleet.Hold{fleet.LaneHost: {
		Session: fleet.SessionID(r.LaneSession), Component: r.SessionComponent, Host: r.SessionHost,
		Process: fleet.Process(r.LaneProcess), Epoch: fleet.Epoch(r.LaneEpoch), Since: instant(r.LaneSince),
		Deadline: instant(r.SessionDeadlineAt),
	}}
}

func installOfMachine(r statement.GetMachineRow, record *fleet.Record) error {
	if r.RequestGeneration != 0 {
		q := &fleet.InstallRequest{
			Generation: fleet.InstallGeneration(r.RequestGeneration), At: instant(r.RequestAt), Actor: r.RequestActor,
		}
		if err := json.Unmarshal([]byte(r.RequestImage), &q.Image); err != nil {
			return fmt.Errorf("read the image of its install request: %w", err)
		}
		if err := json.Unmarshal([]byte(r.RequestRootDisk), &q.RootDisk); err != nil {
			return fmt.Errorf("read the disk selector of its install request: %w", err)
		}
		record.InstallRequest = q
	}
	if r.AttemptGeneration != 0 {
		record.InstallAttempt = &fleet.InstallAttempt{
			Generation: fleet.InstallGeneration(r.AttemptGeneration), Attempt: int(r.AttemptAttempt), At: instant(r.AttemptAt),
			SecretHash: r.AttemptSecretHash,
		}
	}
	if r.ReportGeneration != 0 {
		record.InstallReport = &fleet.InstallReport{
			Generation: fleet.InstallGeneration(r.ReportGeneration), Attempt: int(r.ReportAttempt), At: instant(r.ReportAt),
			OK: r.ReportOk != 0, Error: r.ReportError, Disk: r.ReportDisk, Duration: lasting(r.ReportLasted), Bytes: r.ReportBytes,
		}
	}
	if r.InstalledGeneration != 0 {
		record.Installed = &fleet.Installed{
			Generation: fleet.InstallGeneration(r.InstalledGeneration), Attempt: int(r.InstalledAttempt), At: instant(r.InstalledAt),
			BootID: r.InstalledBootID,
		}
	}
	return nil
}
