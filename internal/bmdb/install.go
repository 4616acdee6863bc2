package bmdb

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// InstallOrder is one attempt at an install, to be handed to the agent exactly once.
type InstallOrder struct {
	// Hostname is the machine's name at its provider; may be empty.
	Hostname string
	// Request with its first-boot data.
	Request fleet.InstallRequest
	Attempt int
	// HostKey is the host key that the installed system is to be seen by; nil where it is not to be
	// seen by SSH. Only its public half is stored.
	HostKey ed25519.PrivateKey
	// Secret is what the installed system proves itself with. It is stored only as a hash.
	Secret  []byte
	Timeout time.Duration
}

// InstallSecretBytes is the length of an install's secret.
const InstallSecretBytes = 32

// HandOutInstall commits a new attempt and returns it, when lifecycle says that an install is due;
// nil when none is. The agent says which attempt it has started last (0, 0: none): one that was
// handed out and that the agent does not know of is closed as never started, because the answer
// with it was lost. An attempt is never handed out twice (I9).
func (db *DB) HandOutInstall(ctx context.Context, a AgentIdentity, lastGeneration fleet.InstallGeneration, lastAttempt int) (*InstallOrder, error) {
	last := attemptID{lastGeneration, lastAttempt}
	// most heartbeats end here
	wanted, err := read(ctx, db.view, "look for an install", func(ctx context.Context, t *transaction) (bool, error) {
		m, err := t.loadOf(ctx, a)
		if err != nil {
			return false, err
		}
		return t.installWanted(ctx, m, last)
	})
	if err != nil || !wanted {
		return nil, err
	}
	secret := make([]byte, InstallSecretBytes)
	_, _ = rand.Read(secret) // it never fails
	hostPublic, hostPrivate, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a host key: %w", err)
	}
	var order *InstallOrder
	err = db.fromAgent(ctx, "hand out install", a, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		order = nil
		changed, err := t.closeUnknownAttempt(ctx, m, last)
		if err != nil {
			return false, err
		}
		plan, err := t.judge(ctx, m)
		if err != nil || !installDue(m, plan) || m.facts.OpenInstallAttempt() != nil {
			return changed, err
		}
		var hostKey ed25519.PublicKey
		if m.facts.InstallRequest.SeenUp.By == fleet.SeenBySSH {
			hostKey = hostPublic
		}
		if order, err = t.newAttempt(ctx, m, last, secret, hostKey); err != nil {
			return false, err
		}
		if hostKey != nil {
			order.HostKey = hostPrivate
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return order, nil
}

// maxAttempt bounds what an agent may say of the attempts that it has started, so that there are
// numbers above it.
const maxAttempt = 1 << 20

type attemptID struct {
	generation fleet.InstallGeneration
	attempt    int
}

// installWanted says whether HandOutInstall has anything to write.
func (t *transaction) installWanted(ctx context.Context, m *machineRecord, last attemptID) (bool, error) {
	if open := m.facts.OpenInstallAttempt(); open != nil {
		return attemptID{open.Generation, open.Attempt} != last, nil
	}
	plan, err := t.judge(ctx, m)
	return installDue(m, plan), err
}

// installDue says whether an install may be handed out. What waits for a holder becomes due at the
// holder's deadline, but only the end of its session frees the lane (rule 4).
func installDue(m *machineRecord, plan lifecycle.Plan) bool {
	_, held := m.lane.hold()
	return !held && plan.For(fleet.ProcessInstall).Verdict == lifecycle.Due
}

// closeUnknownAttempt closes an open attempt that the agent does not know, without a backoff. It
// never got the answer, and nothing was tried. Or the agent that got it is gone, and may have
// written. Or the agent has started a later install, which an older copy of the database does not
// know, and starts none before that: then the attempt is refused, as by the disk.
func (t *transaction) closeUnknownAttempt(ctx context.Context, m *machineRecord, last attemptID) (bool, error) {
	open := m.facts.OpenInstallAttempt()
	if open == nil || (attemptID{open.Generation, open.Attempt}) == last {
		return false, nil
	}
	report := fleet.InstallReport{
		Generation: open.Generation, Attempt: open.Attempt, At: t.Now(), Error: "never started: the answer that handed it out was lost",
	}
	if started := m.facts.AgentStarted; started != nil && started.At.After(open.At) {
		report.Error = "its end is not known: the agent that it was handed to is gone, and the machine was taken over again"
		report.Disk = fleet.DiskUnknown
	}
	if last.generation > open.Generation {
		report.Error = fmt.Sprintf("the agent has started install generation %d, attempt %d already", last.generation, last.attempt)
		report.HeldGeneration, report.HeldAttempt, report.Disk = min(last.generation, fleet.MaxInstallGeneration), last.attempt, fleet.DiskUnknown
	}
	if err := t.putReport(ctx, m, report, actorBMDB); err != nil {
		return false, err
	}
	m.facts.InstallReport = &report
	return true, nil
}

// newAttempt commits the next attempt of the newest request, above the last that the agent has
// started.
func (t *transaction) newAttempt(ctx context.Context, m *machineRecord, last attemptID, secret []byte, hostKey ed25519.PublicKey) (*InstallOrder, error) {
	id, request := m.facts.ID, *m.facts.InstallRequest
	data, err := t.q.GetFirstBootData(ctx, string(id))
	if err != nil {
		return nil, err
	}
	request.FirstBootData = data
	order := &InstallOrder{Request: request, Attempt: 1, Secret: slices.Clone(secret), Timeout: t.env.Policy.InstallTimeout}
	if p := m.facts.Provided; p != nil {
		order.Hostname = p.Hostname
	}
	if was := m.facts.InstallAttempt; was != nil && was.Generation == request.Generation {
		order.Attempt = was.Attempt + 1
	}
	if last.generation == request.Generation {
		order.Attempt = max(order.Attempt, min(last.attempt, maxAttempt)+1)
	}
	if was, up := m.facts.InstallAttempt, m.facts.Installed; was != nil && up != nil && was.Generation == up.Generation && was.Attempt == up.Attempt {
		// Its system may go on, or come back, if the new attempt writes nothing.
		err := t.q.KeepInstalledSecret(ctx, statement.KeepInstalledSecretParams{
			Machine: string(id), Generation: int64(up.Generation), Attempt: int64(up.Attempt), SecretHash: was.SecretHash,
		})
		if err != nil {
			return nil, err
		}
	}
	hash := sha256.Sum256(secret)
	err = t.q.PutInstallAttempt(ctx, statement.PutInstallAttemptParams{
		Machine: string(id), Generation: int64(request.Generation), Attempt: int64(order.Attempt), At: micros(t.Now()), SecretHash: hash[:],
		HostKey: base64.StdEncoding.EncodeToString(hostKey),
	})
	if err != nil {
		return nil, err
	}
	err = t.q.PutInstallDeadline(ctx, statement.PutInstallDeadlineParams{Machine: string(id), At: micros(t.Now().Add(t.env.Policy.ReportWithin()))})
	if err != nil {
		return nil, err
	}
	t.addEvent(fleet.Subject{Machine: id}, actorAgent, fleet.ProcessInstall, fleet.EventInstallHandedOut,
		fmt.Sprintf("install generation %d, attempt %d: %s", request.Generation, order.Attempt, request.Image.Label()))
	return order, nil
}

// putReport writes how an attempt ended; the attempt is not open any more. Only the newest report
// is kept, so it also says whether an attempt before it may have written.
func (t *transaction) putReport(ctx context.Context, m *machineRecord, r fleet.InstallReport, actor string, warnings ...string) error {
	machine := m.facts.ID
	t.installFailed(m.facts, r, actor)
	if r.Untouched() && lifecycle.TouchedBefore(m.facts, r) {
		r.Disk = fleet.DiskUnknown
	}
	ok, event, detail := int64(0), fleet.EventInstallFailed, r.Error
	if r.OK {
		ok, event, detail = 1, fleet.EventDiskWritten, fmt.Sprintf("%d bytes to %s in %s", r.Bytes, r.Disk, r.Duration.Round(time.Millisecond))
	}
	for _, warning := range warnings {
		detail += "; warning: " + warning
	}
	err := t.q.PutInstallReport(ctx, statement.PutInstallReportParams{
		Machine: string(machine), Generation: int64(r.Generation), Attempt: int64(r.Attempt), At: micros(t.Now()), Ok: ok, Error: r.Error,
		Disk: r.Disk, Lasted: r.Duration.Microseconds(), Bytes: r.Bytes, HeldGeneration: int64(r.HeldGeneration), HeldAttempt: int64(r.HeldAttempt),
		NeedsErase: bit(r.NeedsErase), NotUnderstood: bit(r.NotUnderstood),
	})
	if err != nil {
		return err
	}
	if err := t.q.DeleteInstallDeadline(ctx, string(machine)); err != nil {
		return err
	}
	t.addEvent(fleet.Subject{Machine: machine}, actor, fleet.ProcessInstall, event,
		fmt.Sprintf("install generation %d, attempt %d: %s", r.Generation, r.Attempt, detail))
	return nil
}

// failInstall writes a failed attempt and its backoff; none where the install is not wanted. An
// attempt that was concluded to have failed has its backoff, and now a cause.
func (t *transaction) failInstall(ctx context.Context, m *machineRecord, r fleet.InstallReport, actor string, warnings ...string) error {
	if err := t.putReport(ctx, m, r, actor, warnings...); err != nil {
		return err
	}
	newer := m.facts.InstallRequest != nil && m.facts.InstallRequest.Generation != r.Generation
	if m.facts.InstallCalledOff(r.Generation) || newer {
		t.resetInstall(m.facts.ID)
		return nil
	}
	if lifecycle.Reported(m.facts, r) {
		if b, ok := m.facts.Backoffs[fleet.ProcessInstall]; ok {
			b.Cause = r.Error
			m.facts.Backoffs[fleet.ProcessInstall] = b
			t.buffer.backoff(machineKey(m.facts.ID), fleet.ProcessInstall, b)
		}
		return nil
	}
	failure := Failure{Cause: r.Error, Backoff: t.env.Policy.InstallRetry}
	t.backOff(m.facts.Backoffs, fleet.Subject{Machine: m.facts.ID}, fleet.ProcessInstall, failure, 0)
	return nil
}

// RecordInstallReport stores how an attempt ended, as the agent says. At is set by the transaction.
// Warnings are for history alone. Idempotent. It replaces what was only concluded of the attempt. A
// report of an attempt that is not the newest is history already and is accepted without effect;
// KindConflict for one that was never handed out.
func (db *DB) RecordInstallReport(ctx context.Context, a AgentIdentity, r fleet.InstallReport, warnings ...string) error {
	return db.fromAgent(ctx, "install report", a, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		newest := m.facts.InstallAttempt
		switch {
		case newest == nil || r.Generation > newest.Generation || r.Generation == newest.Generation && r.Attempt > newest.Attempt:
			return false, fleet.Errorf(fleet.KindConflict, "install generation %d, attempt %d of machine %s was never handed out", r.Generation,
				r.Attempt, a.Machine)
		case r.Generation != newest.Generation || r.Attempt != newest.Attempt:
			return false, nil
		}
		if lifecycle.Reported(m.facts, r) && !lifecycle.Outdone(m.facts, r) {
			return false, nil
		}
		if !r.OK && r.HeldGeneration == 0 && !r.NotUnderstood {
			return true, t.failInstall(ctx, m, r, actorAgent, warnings...)
		}
		// What the agent before this one refused, and could not tell any more, this one may understand.
		r.NotUnderstood = r.NotUnderstood && !newest.At.Before(m.facts.AgentStarted.At)
		// A success, or a refusal, which no time will change: no reason for the newest request to wait.
		if err := t.putReport(ctx, m, r, actorAgent, warnings...); err != nil {
			return false, err
		}
		t.resetInstall(a.Machine)
		return true, nil
	})
}

// resetInstall lets the next attempt wait for nothing.
func (t *transaction) resetInstall(machine fleet.MachineID) {
	t.buffer.resetBackoff(machineKey(machine), fleet.ProcessInstall)
}

// wantsAnew lets another install wait for nothing. What probes wait for is of the system before it.
func (t *transaction) wantsAnew(machine fleet.MachineID) {
	t.buffer.resetBackoff(machineKey(machine), fleet.ProcessInstall, fleet.ProcessProbe)
}

// RecordInstalled records that the system installed by that attempt has come up and has proved
// itself with the attempt's secret. The SSH host keys that it says it has, in authorized_keys form,
// are those that the machine is known by from then on; when it says none, what was known stays.
// Where the request asked for a probe, it is recorded no more than that the disk was written, and
// where that is by HTTP, the host keys, because such a probe proves none. The
// system that was seen up last is heard also when a newer attempt was handed out: that may have
// written nothing. Its word alone does not say that it is back, because an agent in place may be
// there, too. KindForbidden, alike in every other case. KindTemporary where something that is
// recorded of the machine cannot be read: another version may know it. Idempotent.
//
// A system that is watched by the calls of its unit is to call again after the returned time, and
// so on; zero: nobody waits for another call.
func (db *DB) RecordInstalled(ctx context.Context, machine fleet.MachineID, generation fleet.InstallGeneration, attempt int, secret []byte,
	bootID string, hostKeys ...string,
) (again time.Duration, err error) {
	refused := fleet.Errorf(fleet.KindForbidden, "no such install of machine %s", machine)
	hash := sha256.Sum256(secret)
	// Anybody may call: only who has the secret, and tells something new, locks the machine, and keeps
	// others from writing.
	nothing, err := read(ctx, db.view, "look for an installed system", func(ctx context.Context, t *transaction) (nothing bool, err error) {
		m, err := t.load(ctx, machine)
		if err != nil {
			return false, err
		}
		if ok, err := t.hasSecret(ctx, m.facts, generation, attempt, hash[:]); err != nil || !ok {
			return false, cmp.Or(err, refused)
		}
		again, nothing, err = t.nothingNew(ctx, m, generation, attempt, hostKeys)
		return nothing, err
	})
	switch {
	case fleet.KindOf(err) == fleet.KindNotFound:
		return 0, refused
	case err != nil || nothing:
		return again, err
	}
	err = db.onMachine(ctx, "installed", machine, func(ctx context.Context, t *transaction, m *machineRecord) (changed bool, err error) {
		again = 0
		if ok, err := t.hasSecret(ctx, m.facts, generation, attempt, hash[:]); err != nil || !ok {
			return false, cmp.Or(err, refused)
		}
		nothing := false
		if again, nothing, err = t.nothingNew(ctx, m, generation, attempt, hostKeys); err != nil || nothing {
			return false, err
		}
		if i := m.facts.Installed; i != nil && i.Generation == generation && i.Attempt == attempt {
			if err := t.runsStill(ctx, m.facts); err != nil {
				return false, err
			}
			if err := t.unitCalled(ctx, m); err != nil {
				return false, err
			}
			return true, t.unitTold(ctx, m, i.SeenUp.By, generation, attempt, hostKeys)
		}
		q := m.facts.InstallRequest
		if q != nil && q.Generation == generation && q.SeenUp.By != fleet.SeenByUnit {
			if err := t.unitTold(ctx, m, q.SeenUp.By, generation, attempt, hostKeys); err != nil {
				return false, err
			}
			return true, t.writtenAfterAll(ctx, m, *m.facts.InstallAttempt)
		}
		if q != nil && q.Generation == generation && q.SeenUp.Watch {
			again = t.env.Policy.CallInterval()
		}
		return true, t.installed(ctx, m, seenInstalled{actor: actorInstalled, bootID: bootID, hostKeys: hostKeys})
	})
	if fleet.KindOf(err) == fleet.KindNotFound {
		return 0, refused
	}
	return again, err
}

// nothingNew says whether the word of an installed system changes nothing, and when the system is
// to call again where it is one that has called before.
func (t *transaction) nothingNew(ctx context.Context, m *machineRecord, generation fleet.InstallGeneration, attempt int, hostKeys []string) (
	again time.Duration, nothing bool, err error,
) {
	r := m.facts
	if why := r.Unreadable; why != "" { // what is written would lack what is not known here
		return 0, false, fleet.Errorf(fleet.KindTemporary, "what is recorded of machine %s cannot be read: %s", r.ID, why)
	}
	i, q := r.Installed, r.InstallRequest
	switch {
	case i != nil && i.Generation > generation: // an operator has said so, or an older disk was booted
		return 0, true, nil
	case i != nil && i.Generation == generation && i.Attempt == attempt:
		again, due, err := t.callDue(ctx, r)
		if err != nil {
			return 0, false, err
		}
		_, tells, err := t.tellsKeys(ctx, m, i.SeenUp.By, generation, attempt, hostKeys)
		return again, !due && !tells && !answersElsewhere(r), err
	case q != nil && q.Generation == generation && q.SeenUp.By != fleet.SeenByUnit:
		_, tells, err := t.tellsKeys(ctx, m, q.SeenUp.By, generation, attempt, hostKeys)
		return 0, !tells && hasWritten(r, *r.InstallAttempt), err
	}
	return 0, false, nil
}

// hasSecret says whether a hash is that of the secret of the newest attempt, or of the attempt
// whose system was seen up last.
func (t *transaction) hasSecret(ctx context.Context, r fleet.Record, generation fleet.InstallGeneration, attempt int, hash []byte) (bool, error) {
	if a := r.InstallAttempt; a != nil && a.Generation == generation && a.Attempt == attempt {
		return subtle.ConstantTimeCompare(a.SecretHash, hash) == 1, nil
	}
	rows, err := t.q.GetInstalledSecret(ctx, statement.GetInstalledSecretParams{
		Machine: string(r.ID), Generation: int64(generation), Attempt: int64(attempt),
	})
	return len(rows) == 1 && subtle.ConstantTimeCompare(rows[0], hash) == 1, err
}

// actorInstalled is who says that an installed system has come up.
const actorInstalled = "installed system"

// seenInstalled is how an installed system was seen to have come up.
type seenInstalled struct {
	actor, bootID string
	hostKeys      []string
	// detail is added to what history says; may be empty.
	detail string
}

// installed writes that the system of the newest attempt has come up.
func (t *transaction) installed(ctx context.Context, m *machineRecord, seen seenInstalled) error {
	machine, a := m.facts.ID, m.facts.InstallAttempt
	t.recovered(m.facts, seen.actor, seen.bootID)
	seenUp := ""
	if q := m.facts.InstallRequest; q != nil && q.Generation == a.Generation {
		var err error
		if seenUp, err = seenUpText(q.SeenUp); err != nil {
			return err
		}
	}
	err := t.q.PutInstalled(ctx, statement.PutInstalledParams{
		Machine: string(machine), Generation: int64(a.Generation), Attempt: int64(a.Attempt), At: micros(t.Now()), BootID: seen.bootID,
		SeenUp: seenUp, SecretHash: []byte{},
	})
	if err != nil {
		return err
	}
	if err := t.q.DeleteInstallDeadline(ctx, string(machine)); err != nil {
		return err
	}
	if len(seen.hostKeys) > 0 {
		if err := t.putHostKeys(ctx, machine, fleet.HostKeyInstalled, seen.hostKeys...); err != nil {
			return err
		}
	}
	t.resetInstall(machine)
	t.forgetFailures(m.facts)
	t.addEvent(fleet.Subject{Machine: machine}, seen.actor, fleet.ProcessInstall, fleet.EventInstalled,
		fmt.Sprintf("install generation %d, attempt %d has come up%s", a.Generation, a.Attempt, seen.detail))
	return nil
}

// InstallUnwanted reports whether nobody wants that install any more: it was called off, or a newer
// one was asked for. An agent may be at work at it, whatever became of its attempts here.
func (db *DB) InstallUnwanted(ctx context.Context, machine fleet.MachineID, generation fleet.InstallGeneration) (bool, error) {
	return read(ctx, db.view, "is an install wanted", func(ctx context.Context, t *transaction) (bool, error) {
		n, err := t.q.CountUnwanted(ctx, statement.CountUnwantedParams{Machine: string(machine), Generation: int64(generation)})
		return n > 0, err
	})
}

// ExpireInstalls reports as failed the attempts that have run out of time, at most limit of them.
// Called by the janitor. KindTemporary when somebody has a machine locked: the others' have expired
// all the same.
func (db *DB) ExpireInstalls(ctx context.Context, limit int) (n int, err error) {
	machines, err := read(ctx, db.view, "overdue installs", func(ctx context.Context, t *transaction) ([]string, error) {
		return t.q.ListInstallsPastDeadline(ctx, statement.ListInstallsPastDeadlineParams{Now: micros(t.Now()), MaxRows: int64(limit)})
	})
	if err != nil {
		return 0, err
	}
	_, err = eachFree(machines, "expire the install of machine", func(id string) error {
		expired := false
		err := db.onMachine(ctx, "expire install", fleet.MachineID(id), func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
			expired = false
			open := m.facts.OpenInstallAttempt()
			if open == nil {
				return false, t.q.DeleteInstallDeadline(ctx, id)
			}
			if rows, err := t.q.GetInstallDeadline(ctx, id); err != nil || len(rows) == 0 || rows[0] > micros(t.Now()) {
				return false, err // it was reported and handed out anew meanwhile
			}
			expired = true
			report := fleet.InstallReport{
				Generation: open.Generation, Attempt: open.Attempt,
				Error: fmt.Sprintf("no report within %s", t.Now().Sub(open.At).Round(time.Second)), Disk: fleet.DiskUnknown,
			}
			return true, t.failInstall(ctx, m, report, actorBMDB)
		})
		if fleet.KindOf(err) == fleet.KindNotFound {
			return nil
		}
		if err == nil && expired {
			n++
		}
		return err
	})
	return n, err
}
