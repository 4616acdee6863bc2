package initializer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
)

const (
	// otherMachine is the exit code of `ironherd-agent leave` on a host that belongs to another
	// machine now.
	otherMachine = 5
	// superseded is that on a host that has seen a newer takeover, whose generation it writes to
	// standard output.
	superseded = 8
)

// errOtherMachine says that the host was taken over as another machine, and was left as it is.
var errOtherMachine = fleet.Errorf(fleet.KindConflict, "the host belongs to another machine now, and is left as it is")

// Clean stops our agent on the host of a machine and removes its files. It brings the agent's
// executable to the host, because that knows what there is to remove, and it goes with the rest. It
// can be repeated. A host that was taken over as another machine is left as it is. What was done is
// said in words.
func (i *Initializer) Clean(ctx context.Context, work *bmdb.Work, entry provider.Entry) (did string, err error) {
	switch err := i.cleanInTime(ctx, work, entry); {
	case errors.Is(err, errOtherMachine):
		return "the host belongs to another machine now, and was left as it is", nil
	case err != nil:
		return "", err
	}
	return "the agent was stopped, and its files were removed from the host", nil
}

// takeOff is agent-start on a machine that returns (lifecycle/leave.go): it takes the agent off.
// That the host lets us in shows that the installed system is up again. An agent of a newer
// takeover than the work knows of is left alone if the work is not ours any more; else the database
// is older than what the host remembers.
func (i *Initializer) takeOff(ctx context.Context, source Source, work *bmdb.Work) shepherd.Outcome {
	entry, backoff, err := i.ask(ctx, source, work.Record)
	if err != nil {
		return shepherd.Fail{Err: err, Backoff: backoff}
	}
	if err := i.clean(ctx, work, entry, work.Record.TakeoverGeneration); err != nil {
		return shepherd.Fail{Err: fmt.Errorf("take the agent off: %w", err)}
	}
	return shepherd.Finish{Changes: []bmdb.Change{bmdb.RecordBack()}}
}

// cleanInTime is clean within the time that a piece of work may take.
func (i *Initializer) cleanInTime(ctx context.Context, work *bmdb.Work, entry provider.Entry) error {
	late := fleet.Errorf(fleet.KindTimeout, "the host was not clean within %s", i.config.WorkTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, i.config.WorkTimeout, late)
	defer cancel()
	err := i.clean(limited, work, entry, 0)
	if err != nil && ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, late) {
		return fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// clean takes the agent off. Where the host has seen a newer takeover than the generation, it first
// mints one above that, which only whoever holds the lease can do (0: whichever takeover was the
// newest will do).
func (i *Initializer) clean(ctx context.Context, work *bmdb.Work, entry provider.Entry, generation fleet.TakeoverGeneration) error {
	source, err := i.sources.Of(work)
	if err != nil {
		return err
	}
	if fault := unreachable(entry); fault != "" {
		return fleet.Errorf(fleet.KindTemporary, "%s", fault)
	}
	target, err := i.target(ctx, source, work.Record.ID, entry)
	if err != nil {
		return err
	}
	host, err := i.dial(ctx, target)
	if changes, refused := refusal(work.Record.ID, err); changes != nil {
		return errors.Join(refused, work.Note(ctx, changes...))
	}
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = host.Close() }() // nothing is under way any more
	logger := i.logger.With(slog.String("machine", string(work.Record.ID)))
	return i.withAgent(ctx, host, logger, func(executable string) error {
		err := i.leave(ctx, host, logger, executable, work.Record.ID, generation)
		seen, refused := errors.AsType[*supersededError](err)
		if !refused || seen.generation <= generation {
			return err
		}
		// Only who holds the lease can mint, and no newer takeover than ours is under way then.
		if err := work.Note(ctx, bmdb.MintTakeover(seen.generation, &generation)); err != nil {
			return fmt.Errorf("record a takeover generation above that of the host: %w", err)
		}
		return i.leave(ctx, host, logger, executable, work.Record.ID, generation)
	})
}

// leave runs `ironherd-agent leave`.
func (i *Initializer) leave(
	ctx context.Context, host Host, logger *slog.Logger, executable string, machine fleet.MachineID, generation fleet.TakeoverGeneration,
) error {
	args := []string{executable, "leave", "--machine", string(machine)}
	if generation > 0 {
		args = append(args, "--generation", strconv.FormatInt(int64(generation), 10))
	}
	for _, directory := range i.config.directories() {
		args = append(args, "--directory", directory)
	}
	stdout, err := host.Run(ctx, remote.Command{
		Args: args, Timeout: i.config.ExecuteTimeout,
		OnStderr: func(line string) {
			logger.InfoContext(ctx, "agent wrote to stderr", slog.String("line", line))
		},
	})
	exit, exited := errors.AsType[*remote.ExitError](err)
	if exited && exit.Status == otherMachine {
		logger.WarnContext(ctx, "host belongs to another machine now, and is left as it is")
		return errOtherMachine
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("stop the agent and remove its files: %w", err)
	if seen, fault := strconv.ParseInt(string(stdout), 10, 64); exited && exit.Status == superseded && fault == nil && seen <= maxGeneration {
		return &supersededError{err, fleet.TakeoverGeneration(seen)}
	}
	return err
}
