package initializer

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/remote"
)

const (
	// executableName starts the name of the executable on a machine; the digest follows.
	executableName = "ironherd-agent"
	// textLimit bounds what a machine says of itself, in bytes.
	textLimit = 300
	// mostWarnings bounds how many warnings of a takeover are kept.
	mostWarnings = 10
)

// takeover is one attempt on one machine.
type takeover struct {
	*Initializer
	work   *bmdb.Work
	target remote.Target
	way    Takeover
	logger *slog.Logger
	// reached: the host let us in.
	reached bool
	// notes are for history, if the takeover succeeds.
	notes []bmdb.Change
}

// answered returns what a failure says of the host.
func (t *takeover) answered(ctx context.Context, err error) fleet.Answer {
	answer := remote.Answered(err)
	switch {
	case t.reached:
		return fleet.AnswerGiven
	case ctx.Err() != nil:
		return fleet.AnswerUnknown
	case t.target.Via != nil && answer != fleet.AnswerRefused && answer != fleet.AnswerOtherKey:
		// it may be the jump host's
		return fleet.AnswerUnknown
	}
	return answer
}

// run puts the agent in charge, and returns the fact to record. Nothing is written to the host
// before the takeover generation is minted.
func (t *takeover) run(ctx context.Context) (fleet.AgentStarted, error) {
	host, err := t.dial(ctx, t.target)
	if err != nil {
		return fleet.AgentStarted{}, fmt.Errorf("dial: %w", err)
	}
	t.reached = true
	defer func() { _ = host.Close() }() // nothing is under way any more
	request, err := t.mint(ctx, host.HostKey(), 0)
	if err != nil {
		return fleet.AgentStarted{}, err
	}
	var started fleet.AgentStarted
	err = t.withAgent(ctx, host, t.logger, func(executable string) (err error) {
		started, err = t.takeOver(ctx, host, executable, request)
		return err
	})
	return started, err
}

// takeOver puts the agent in charge, with a second attempt where the database is older than what
// the host remembers.
func (t *takeover) takeOver(ctx context.Context, host Host, executable string, request *agentv1.TakeoverInit) (fleet.AgentStarted, error) {
	started, err := t.attempt(ctx, host, executable, request)
	seen, refused := errors.AsType[*supersededError](err)
	if !refused || seen.generation <= fleet.TakeoverGeneration(request.GetTakeoverGeneration()) {
		return started, err
	}
	// One step above that is enough.
	if request, err = t.mint(ctx, host.HostKey(), seen.generation); err != nil {
		return fleet.AgentStarted{}, err
	}
	return t.attempt(ctx, host, executable, request)
}

// errUnwanted says that nothing wants the agent any more.
var errUnwanted = fleet.Errorf(fleet.KindConflict,
	"nothing wants the agent any more, which was not run on the host: the install was called off, or its system has come up")

// errRestored says that the start waits, because the database looks restored.
var errRestored = fleet.Errorf(fleet.KindConflict, "the start of an agent waits for `ironherd db accept-restore`")

// attempt runs one takeover, whose generation is minted.
func (t *takeover) attempt(ctx context.Context, host Host, executable string, request *agentv1.TakeoverInit) (fleet.AgentStarted, error) {
	if err := t.unrestored(ctx); err != nil {
		return fleet.AgentStarted{}, err
	}
	if err := t.wanted(ctx, host, executable, request); err != nil {
		return fleet.AgentStarted{}, err
	}
	answer, err := t.execute(ctx, host, executable, request)
	if err != nil {
		return fleet.AgentStarted{}, err
	}
	started, err := check(request, answer)
	if err == nil {
		t.notes = notes(t.work.Record, answer)
	}
	return started, err
}

// unrestored is errRestored where the database looks restored by now, as after a failover (rule
// 11): nobody knows what runs on the machine, so nothing there is touched, an earlier agent
// included.
func (t *takeover) unrestored(ctx context.Context) error {
	env, err := t.db.Environment(ctx)
	if err != nil {
		return fmt.Errorf("read whether the database looks restored: %w", err)
	}
	if env.Restored != "" {
		return fmt.Errorf("the database looks restored or copied (%s): %w", env.Restored, errRestored)
	}
	return nil
}

// wanted is errUnwanted where nothing wants the agent any more, whose executable it takes off the
// host again. It is the last point at which what runs on the machine can be left alone. Where an
// earlier start may have run an agent, this one goes on: nobody else would take that agent off.
func (t *takeover) wanted(ctx context.Context, host Host, executable string, request *agentv1.TakeoverInit) error {
	before := t.work.Record
	if s := before.AgentStarted; before.TakeoverGeneration > 0 && (s == nil || s.TakeoverGeneration < before.TakeoverGeneration) {
		return nil
	}
	record, err := t.db.Machine(ctx, before.ID)
	if err != nil {
		return fmt.Errorf("read whether the agent is still wanted: %w", err)
	}
	if !lifecycle.Installed(record) && !lifecycle.Returning(record) {
		return nil
	}
	err = t.leave(ctx, host, t.logger, executable, before.ID, fleet.TakeoverGeneration(request.GetTakeoverGeneration()))
	if err != nil {
		return fmt.Errorf("%w; its executable may still be there: %w", errUnwanted, err)
	}
	return errUnwanted
}

// notes returns what an answer that was accepted tells for history. The record is from before the
// takeover.
func notes(record fleet.Record, answer []byte) []bmdb.Change {
	var response agentv1.TakeoverResponse
	if proto.Unmarshal(answer, &response) != nil {
		return nil
	}
	var changes []bmdb.Change
	if returned := response.GetReturned(); returned != nil {
		generation := fleet.TakeoverGeneration(returned.GetTakeoverGeneration())
		changes = append(changes, bmdb.RecordHistory(fleet.EventTakeoverReturned,
			fmt.Sprintf("takeover generation %d: %s%s", generation, clip(returned.GetCause()), heardInMemory(record, generation))))
	}
	warnings := response.GetSuccess().GetWarnings()
	if more := len(warnings) - mostWarnings; more > 0 {
		warnings = append(warnings[:mostWarnings-1:mostWarnings-1], fmt.Sprintf("%d more warnings were left out", more+1))
	}
	for _, warning := range warnings {
		changes = append(changes, bmdb.RecordHistory(fleet.EventTakeoverWarning, clip(warning)))
	}
	return changes
}

// heardInMemory says whether the control plane has heard the agent in memory of a takeover
// generation. The host cannot know that. It is "" where the record tells of a newer takeover.
func heardInMemory(r fleet.Record, generation fleet.TakeoverGeneration) string {
	started, seen := r.AgentStarted, r.AgentSeen
	if started == nil || started.TakeoverGeneration != generation {
		return ""
	}
	// An agent in place that jumps for an install goes on under the same generation; only the boot
	// tells the two apart.
	if seen == nil || seen.TakeoverGeneration != generation || seen.BootID == started.BootID {
		return " (the control plane never heard the agent in memory)"
	}
	return fmt.Sprintf(" (the control plane heard the agent in memory last at %s)", fleet.Instant(seen.LastAt))
}

// supersededError is the answer of a host that has seen another takeover generation: to a takeover
// one that is not below ours, with fleet.KindConflict; to an order to leave one that is above it.
type supersededError struct {
	error
	// generation that the host has seen; 0 when it does not say a number that can be.
	generation fleet.TakeoverGeneration
}

func (e *supersededError) Unwrap() error { return e.error }

// maxGeneration bounds what a host may say that it has seen: above it nothing could be counted.
const maxGeneration = 1 << 40

// mint commits a takeover generation above the one that the host has seen (0: it has not said yet),
// and with the first one a host key that is trusted on first use.
func (t *takeover) mint(ctx context.Context, key remote.HostKey, seen fleet.TakeoverGeneration) (*agentv1.TakeoverInit, error) {
	env, err := t.db.Environment(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	var generation fleet.TakeoverGeneration
	changes := []bmdb.Change{bmdb.MintTakeover(seen, &generation)}
	if seen == 0 && key.Source == remote.SourceFirstUse {
		t.logger.WarnContext(ctx, "host key is trusted on first use", slog.String("fingerprint", key.Fingerprint))
		changes = append(changes,
			bmdb.PinHostKeys(t.work.Record.ID, []string{key.Key}),
			bmdb.RecordHistory(fleet.EventHostKeyTrusted, key.Fingerprint))
	}
	if err := t.work.Note(ctx, changes...); err != nil {
		return nil, fmt.Errorf("record the takeover: %w", err)
	}
	request := &agentv1.TakeoverInit{
		MachineId:           string(t.work.Record.ID),
		TakeoverGeneration:  int64(generation),
		Endpoint:            t.config.Endpoint,
		CaCertificate:       t.authority,
		HeartbeatIntervalMs: env.Policy.HeartbeatInterval.Milliseconds(),
		// Also for an agent in place, which may jump later.
		ContactLimitMs: t.config.ContactLimit.Milliseconds(),
		SentAt:         timestamppb.Now(),
	}
	if t.way == TakeoverKexec {
		request.Mode = agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC
	}
	return request, nil
}

// execute runs `ironherd-agent takeover` and returns its answer. Where there is one, it counts, and
// the exit status does not.
func (t *takeover) execute(ctx context.Context, host Host, executable string, request *agentv1.TakeoverInit) ([]byte, error) {
	stdin, err := proto.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the takeover: %w", err)
	}
	stdout, err := host.Run(ctx, remote.Command{
		Args: []string{executable, "takeover"}, Stdin: bytes.NewReader(stdin), Timeout: t.config.ExecuteTimeout,
		OnStderr: func(line string) { t.logger.InfoContext(ctx, "agent wrote to stderr", slog.String("line", line)) },
	})
	if _, exited := errors.AsType[*remote.ExitError](err); err == nil || exited && len(stdout) > 0 {
		return stdout, nil
	}
	return nil, fmt.Errorf("run agent: %w", err)
}

// check accepts an answer that echoes the request and carries a key.
func check(request *agentv1.TakeoverInit, answer []byte) (fleet.AgentStarted, error) {
	var response agentv1.TakeoverResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
		return fleet.AgentStarted{}, notUnderstood("is no takeover response", answer)
	}
	if failure := response.GetFailure(); failure != nil && response.Init == nil {
		return fleet.AgentStarted{}, fleet.Errorf(fleet.KindUnknown, "the agent did not understand what it was given: %s", remote.Quote(failure.GetMessage()))
	}
	if !proto.Equal(response.GetInit(), request) {
		return fleet.AgentStarted{}, notUnderstood("does not echo what it was given", answer)
	}
	success := response.GetSuccess()
	switch failure := response.GetFailure(); {
	case failure.GetSuperseded():
		seen := failure.GetSeenGeneration()
		if seen < 0 || seen > maxGeneration {
			seen = 0
		}
		return fleet.AgentStarted{}, &supersededError{
			fleet.Errorf(fleet.KindConflict, "the host refused takeover generation %d: %s", request.GetTakeoverGeneration(), remote.Quote(failure.GetMessage())),
			fleet.TakeoverGeneration(seen),
		}
	case failure != nil:
		before := ""
		if returned := response.GetReturned(); returned != nil {
			before = "; the takeover before it did not last: " + remote.Quote(returned.GetCause())
		}
		return fleet.AgentStarted{}, fleet.Errorf(fleet.KindUnknown, "the agent did not take the machine over: %s%s",
			remote.Quote(failure.GetMessage()), before)
	case success == nil:
		return fleet.AgentStarted{}, fleet.Errorf(fleet.KindInvalid, "the agent's answer has no outcome")
	case len(success.GetPublicKey()) != ed25519.PublicKeySize:
		return fleet.AgentStarted{}, fleet.Errorf(fleet.KindInvalid, "the agent's public key has %d bytes, not %d",
			len(success.GetPublicKey()), ed25519.PublicKeySize)
	case request.GetMode() == agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC && success.GetMode() != request.GetMode():
		return fleet.AgentStarted{}, fleet.Errorf(fleet.KindInvalid, "the agent took the machine over in place and not by kexec, as it was told to: "+
			"agent_executable is older than this control plane")
	}
	return fleet.AgentStarted{
		TakeoverGeneration: fleet.TakeoverGeneration(request.GetTakeoverGeneration()),
		PublicKey:          success.GetPublicKey(),
		AgentVersion:       clip(success.GetAgentVersion()),
		BootID:             clip(success.GetBootId()),
	}, nil
}

// notUnderstood says what came in the place of an answer, and what may have written it.
func notUnderstood(fault string, answer []byte) error {
	return fleet.Errorf(fleet.KindInvalid, "the agent's answer %s: the host wrote %s (only the agent may write to standard output "+
		"once it was started: look at what else runs on the host)", fault, remote.Quote(string(answer)))
}

// clip bounds a text from a machine, and makes it fit to be stored and shown.
func clip(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, fleet.Clip(text, textLimit))
}
