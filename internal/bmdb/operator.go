package bmdb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/verb"
)

// RequestInstall asks for an operating system on a machine and voids whatever is being done to its
// host (rule 8). Asking for what is asked for already returns that generation. KindConflict when an
// installed system runs, or is on the disk and has not come up yet, and reinstall is not set.
func (db *DB) RequestInstall(ctx context.Context, actor string, machine fleet.MachineID, request fleet.InstallRequest, reinstall bool,
) (generation fleet.InstallGeneration, err error) {
	err = db.onMachine(ctx, "request install", machine, func(ctx context.Context, t *transaction, m *machineRecord) (changed bool, err error) {
		generation, changed, err = t.wantInstall(ctx, m, actor, request, reinstall)
		return changed, err
	})
	if err != nil {
		return 0, err
	}
	return generation, nil
}

// wantInstall does what RequestInstall promises, to a machine that is locked.
func (t *transaction) wantInstall(ctx context.Context, m *machineRecord, actor string, request fleet.InstallRequest, reinstall bool,
) (generation fleet.InstallGeneration, changed bool, err error) {
	machine, was := m.facts.ID, m.facts.InstallRequest
	if err := verb.Kept(m.facts); err != nil {
		return 0, false, err
	}
	if m.facts.Installed != nil && !reinstall {
		return 0, false, verb.OnlyReinstall(m.facts)
	}
	held := m.facts.HeldInstall()
	if was != nil {
		same, err := t.sameInstall(ctx, m.facts, request)
		if err != nil {
			return 0, false, err
		}
		if same && !reinstall && !m.facts.InstallCalledOff(was.Generation) {
			if m.facts.Intent == nil || was.Actor != fleet.ConfigurationOf(m.facts.Provider) {
				return was.Generation, false, nil
			}
			// From now on it is a person's, whatever becomes of the configuration.
			request.Generation, request.Actor = was.Generation, actor
			t.addEvent(fleet.Subject{Machine: machine}, actor, fleet.ProcessInstall, fleet.EventInstallRequested,
				fmt.Sprintf("install generation %d, which the %s asks for as well", was.Generation, was.Actor))
			return was.Generation, true, t.putInstallRequest(ctx, machine, request)
		}
		if lifecycle.OnDisk(m.facts) && !reinstall {
			return 0, false, verb.OnlyReinstall(m.facts)
		}
		if held != 0 && !reinstall {
			return 0, false, fleet.Errorf(fleet.KindConflict, "a disk of machine %s holds install generation %d, which a reinstall destroys: ask for one "+
				"(`ironherd machine install %s --image IMAGE --reinstall --reason WHY`)", m.facts.Name(), held, machine)
		}
	}
	generation = max(m.facts.NewestInstall(), held) + 1
	request.Generation, request.Actor = generation, actor
	if err := t.putInstallRequest(ctx, machine, request); err != nil {
		return 0, false, err
	}
	t.wantsAnew(machine)
	t.revoke(m, actor, "an install was asked for")
	t.addEvent(fleet.Subject{Machine: machine}, actor, fleet.ProcessInstall, fleet.EventInstallRequested,
		fmt.Sprintf("install generation %d: %s (%s)", generation, request.Image.Label(), request.Image.Identity()))
	return generation, true, nil
}

// sameInstall reports whether the request is for what is asked for already, whatever recovery has
// added to that (installAnew).
func (t *transaction) sameInstall(ctx context.Context, r fleet.Record, request fleet.InstallRequest) (bool, error) {
	was := *r.InstallRequest
	if r.Repair != nil && r.Repair.Steps[fleet.RungReinstall] > 0 && !request.RootDisk.Erase {
		was.RootDisk.Serial, was.RootDisk.Erase = request.RootDisk.Serial, false
	}
	if r.Unreadable != "" { // what cannot be read may differ
		return false, nil
	}
	if lifecycle.OnDisk(r) { // what was written is the same, whatever is said since of what it is for
		was.Image.Architecture = request.Image.Architecture
	}
	if was.Image != request.Image || was.RootDisk != request.RootDisk || was.SeenUp != request.SeenUp {
		return false, nil
	}
	data, err := t.q.GetFirstBootData(ctx, string(r.ID))
	if err != nil {
		return false, err
	}
	return bytes.Equal(data, request.FirstBootData), nil
}

// Retry ends the backoff of a process of the machine (empty: of all of them) and returns those that
// were in backoff.
func (db *DB) Retry(ctx context.Context, actor string, machine fleet.MachineID, process fleet.Process) (retried []fleet.Process, err error) {
	err = db.onMachine(ctx, "retry", machine, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		retried = nil
		for _, p := range slices.Sorted(maps.Keys(m.facts.Backoffs)) {
			if m.facts.Backoffs[p].Cause != "" && (process == "" || p == process) {
				t.tryAgain(m.facts, p)
				t.backoffEnded(fleet.Subject{Machine: machine}, actor, p, m.facts.Backoffs[p])
				retried = append(retried, p)
			}
		}
		return len(retried) > 0, nil
	})
	return retried, err
}

// tryAgain ends backoffs of a machine by a person's word. A host whose agent is silent, and that
// has refused the start of another one, may let us in now: its silence counts from this instant, so
// that recovery does not restart the machine before an agent was started. A row without a cause
// keeps that until the next start has ended.
func (t *transaction) tryAgain(r fleet.Record, processes ...fleet.Process) {
	for _, process := range processes {
		b, waits := r.Backoffs[process]
		switch {
		case process == fleet.ProcessAgentStart && b.Refused && lifecycle.HasAgent(r):
			t.buffer.backoff(machineKey(r.ID), process, fleet.BackoffState{NotBefore: t.Now(), UnansweredSince: t.Now()})
		case waits && b.Cause == "": // a person has said so before
		default:
			t.buffer.resetBackoff(machineKey(r.ID), process)
		}
	}
}

// backoffEnded tells history of a backoff that a person has ended.
func (t *transaction) backoffEnded(subject fleet.Subject, actor string, process fleet.Process, was fleet.BackoffState) {
	t.addEvent(subject, actor, process, fleet.EventRetryRequested, "the backoff was ended; it was for: "+was.Cause)
}

// quarantine keeps all work away from a machine, where that is possible, and voids what is being
// done to it (rule 8). An operation that the provider has not accepted is withdrawn.
func (t *transaction) quarantine(ctx context.Context, m *machineRecord, actor string, reason string) error {
	if verb.Withdrawable(m.facts) == nil {
		if err := t.withdrawOperation(ctx, m, actor, "quarantined: "+reason); err != nil {
			return err
		}
	}
	err := t.q.PutQuarantine(ctx, statement.PutQuarantineParams{Machine: string(m.facts.ID), At: micros(t.Now()), Actor: actor, Reason: reason})
	if err != nil {
		return err
	}
	t.revoke(m, actor, "quarantined: "+reason)
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, "", fleet.EventQuarantined, reason)
	return nil
}

// AcceptHostKey makes the key that the host has shown the one that the machine is known by.
// KindConflict unless it is the one that was refused last. Whatever waits for it is tried at once.
func (db *DB) AcceptHostKey(ctx context.Context, actor string, machine fleet.MachineID, key, fingerprint, reason string) error {
	return db.onMachine(ctx, "accept host key", machine, func(ctx context.Context, t *transaction, m *machineRecord) (bool, error) {
		was, err := t.hostKeys(ctx, machine)
		if err != nil {
			return false, err
		}
		if key == "" || was.Refused != key {
			return false, fleet.Errorf(fleet.KindConflict, "machine %s has not shown the host key %s", m.facts.Name(), fingerprint)
		}
		if err := t.putHostKeys(ctx, machine, fleet.HostKeyAccepted, key); err != nil {
			return false, err
		}
		waits := []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessProbe}
		if open := m.facts.OpenOperation(); open != nil && open.Operation.GivesBack() && lifecycle.Listed(m.facts) {
			waits = append(waits, fleet.ProcessOperation) // a host of a list is asked to stop our agent
		}
		t.tryAgain(m.facts, waits...)
		t.addEvent(fleet.Subject{Machine: machine}, actor, "", fleet.EventHostKeyAccepted, fingerprint+"; "+reason)
		return true, nil
	})
}

// unquarantine lets work come back to a machine in quarantine, which has the time that it has after
// a maintenance: its silence counts from now on, and agents are started and recovery works as if
// nothing had failed before.
func (t *transaction) unquarantine(ctx context.Context, m *machineRecord, actor string, reason string) error {
	if err := t.q.DeleteQuarantine(ctx, string(m.facts.ID)); err != nil {
		return err
	}
	if err := t.q.DeleteRepair(ctx, string(m.facts.ID)); err != nil { // its ladder begins anew
		return err
	}
	t.forgetFailures(m.facts)
	if err := t.excuseSilence(ctx, m.facts, actor, "the quarantine has ended: "+reason); err != nil {
		return err
	}
	t.addEvent(fleet.Subject{Machine: m.facts.ID}, actor, "", fleet.EventUnquarantined, reason)
	return nil
}

// forgetFailures ends the backoffs of agent starts and of recovery. What has failed before somebody
// was at the machine, its agent was heard again, or a system came up, says nothing of what follows:
// while it counts, the next start waits, and recovery restarts the machine as one whose agent
// cannot be started.
func (t *transaction) forgetFailures(r fleet.Record) {
	t.buffer.resetBackoff(machineKey(r.ID), fleet.ProcessAgentStart, fleet.ProcessRecovery)
}

// SetPolicy makes the policy the newest one, under a number of its own, unless it is that already.
// Rows computed under older numbers are recomputed by the janitor (rule 10). It logs that the
// policy takes the place of another, because all control planes follow it.
func (db *DB) SetPolicy(ctx context.Context, policy fleet.Policy) (fleet.Policy, error) {
	if err := policy.Validate(); err != nil {
		return fleet.Policy{}, err
	}
	var replaces int64 // 0: it is the newest one already
	set, err := read(ctx, db.update, "set policy", func(ctx context.Context, t *transaction) (fleet.Policy, error) {
		replaces = 0
		// A transaction that writes and locks nothing does not wait for a synchronous standby: who
		// repeats this, because nobody knows the outcome, would be told too early that it is done.
		if _, err := t.q.LockListener(ctx); err != nil {
			return fleet.Policy{}, err
		}
		env, err := t.environment(ctx)
		if err != nil {
			return fleet.Policy{}, err
		}
		if policy.Number = env.Policy.Number; policy == env.Policy {
			return policy, nil
		}
		was, set, err := t.nextPolicy(ctx, func(fleet.Policy) fleet.Policy { return policy })
		if err != nil {
			return fleet.Policy{}, err
		}
		if set.RecoveryAtOnce != was.RecoveryAtOnce || set.RecoveryAtOncePerLocation != was.RecoveryAtOncePerLocation {
			t.becomesDue(fleet.ProcessRecovery, "", t.Now()) // there may be room for more
		}
		replaces = was.Number
		return set, nil
	})
	if err == nil && replaces != 0 {
		db.logger.InfoContext(ctx, "another policy takes the place of the newest one", slog.Int64("policy", set.Number), slog.Int64("replaces", replaces))
	}
	return set, err
}

// nextPolicy makes what of makes of the newest policy the newest one, under the next number, and
// returns the two. Where somebody else takes that number meanwhile, it begins anew: machines may
// have been judged under the number already, without what this transaction changes. KindTemporary
// where that goes on.
func (t *transaction) nextPolicy(ctx context.Context, of func(was fleet.Policy) fleet.Policy) (was, set fleet.Policy, err error) {
	for range 10 {
		env, err := t.reread(ctx)
		if err != nil {
			return was, set, err
		}
		was, set = env.Policy, of(env.Policy)
		set.Number = was.Number + 1
		body, err := json.Marshal(set)
		if err != nil {
			return was, set, err
		}
		n, err := t.q.InsertPolicy(ctx, statement.InsertPolicyParams{Number: set.Number, At: micros(t.Now()), Body: string(body)})
		if err != nil || n == 1 {
			return was, set, err
		}
	}
	return was, set, fleet.Errorf(fleet.KindTemporary, "others changed the policy each of the ten times that it was to be written: try again")
}

// renumber makes the janitor judge every machine again: the newest policy gets a new number.
func (t *transaction) renumber(ctx context.Context) error {
	_, _, err := t.nextPolicy(ctx, func(was fleet.Policy) fleet.Policy { return was })
	return err
}

// Environment returns what lifecycle is given besides facts, as of now.
func (db *DB) Environment(ctx context.Context) (fleet.Environment, error) {
	return read(ctx, db.view, "environment", func(ctx context.Context, t *transaction) (env fleet.Environment, err error) {
		env, err = t.environment(ctx)
		return env, err
	})
}
