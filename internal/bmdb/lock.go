package bmdb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ironherd/ironherd/internal/fleet"
)

// locks is the one lock order (rule 1): the own session, providers by name, machines by ID. Lanes,
// agenda and everything else belong to whoever has the row of their subject. After all of these a
// claim may take concurrency limits, and a step of recovery its own lock (lockRecovery). Every
// transaction that writes about a subject takes its locks here, once, before it reads anything that
// it relies on; a claim takes the same ones in the same order by itself (claimRound.run).
type locks struct {
	session   fleet.SessionID
	providers []fleet.ProviderName
	machines  []fleet.MachineID
	// skipLocked leaves out machines that somebody else has, instead of waiting for them.
	skipLocked bool
}

func (l *locks) add(s fleet.Subject) {
	if s.Machine != "" {
		l.machines = append(l.machines, s.Machine)
	} else {
		l.providers = append(l.providers, s.Provider)
	}
}

// lack reports whether a subject is a machine that was left out.
func (l *locks) lack(s fleet.Subject) bool {
	return s.Machine != "" && !slices.Contains(l.machines, s.Machine)
}

// take takes the locks, and then reads the environment, so that nothing is ever computed under a
// lower policy than it was before (rule 10). Afterwards machines are those that it has.
func (l *locks) take(ctx context.Context, t *transaction) (err error) {
	if l.session != "" {
		if err := t.LockSession(ctx, l.session, false); err != nil {
			return err
		}
	}
	slices.Sort(l.providers)
	l.providers = slices.Compact(l.providers)
	if len(l.providers) > 0 {
		if _, err := t.LockProviders(ctx, l.providers, false); err != nil {
			return err
		}
	}
	slices.Sort(l.machines)
	l.machines = slices.Compact(l.machines)
	if len(l.machines) > 0 {
		if l.machines, err = t.LockMachines(ctx, l.machines, l.skipLocked); err != nil {
			return err
		}
	}
	_, err = t.environment(ctx)
	return err
}

// onMachine is the shape of most writes of facts: lock the machine, read it by a later statement,
// write, rewrite its agenda. KindNotFound.
func (db *DB) onMachine(ctx context.Context, kind string, id fleet.MachineID,
	fn func(ctx context.Context, t *transaction, m *machineRecord) (changed bool, err error),
) error {
	return db.update(ctx, kind, func(ctx context.Context, t *transaction) error {
		l := locks{machines: []fleet.MachineID{id}}
		if err := l.take(ctx, t); err != nil {
			return err
		}
		m, err := t.load(ctx, id)
		if err != nil {
			return err
		}
		changed, err := fn(ctx, t, m)
		if err != nil || !changed {
			return err
		}
		return t.rewriteSubjects(ctx, []fleet.Subject{{Machine: id}})
	})
}

// eachFree does something for each of a list. It goes on past those that somebody else has locked,
// which are in the error; any other failure ends it. what says what is done. It returns how many of
// the list it has come past.
func eachFree[T any](list []T, what string, do func(T) error) (n int, err error) {
	var stuck []error
	for _, one := range list {
		switch err := do(one); {
		case lockedByOthers(err):
			stuck = append(stuck, fmt.Errorf("%s %v: %w", what, one, err))
		case err != nil:
			return n, fmt.Errorf("%s %v: %w", what, one, err)
		}
		n++
	}
	return n, errors.Join(stuck...)
}
