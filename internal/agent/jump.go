package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/kexec"
	"github.com/ironherd/ironherd/internal/agent/takeover"
)

const (
	// sessionWait is how long a jump waits for the end of the session that the takeover came by.
	// It looks every sessionPoll.
	sessionWait = 10 * time.Second
	sessionPoll = 50 * time.Millisecond
	// farewell is what the last packets of that session get to leave the machine.
	farewell = 200 * time.Millisecond
)

// Leave implements takeover.Kexec. What it starts jumps only after answered(true).
func (k *hostKexec) Leave(ctx context.Context) error {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = theirs.Close() }()
	err = startProcess(ctx, k.env, theirs, "jump", fmt.Sprintf("--after=%d", sessionServer()), fmt.Sprintf("--answer-fd=%d", givenFD))
	if err != nil {
		return errors.Join(err, ours.Close())
	}
	k.answer = ours
	return nil
}

// answered says whether the response of the takeover was written. A process that ends without it,
// because nobody reads any more, has not written it either.
func (k *hostKexec) answered(written bool) {
	if k.answer == nil {
		return
	}
	if written {
		_, _ = k.answer.Write([]byte{1})
	}
	_ = k.answer.Close()
}

// jumpForInstall jumps, so that the agent in memory fulfils the request that is recorded as
// running. It returns only when that fails.
func (k *hostKexec) jumpForInstall(ctx context.Context, store *takeover.Store, state *agentv1.AgentState, request *agentv1.InstallRequest) error {
	next := proto.CloneOf(state)
	var err error
	if next.PendingInstall, err = proto.Marshal(request); err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	warnings, err := k.Load(ctx, next)
	if err != nil {
		return err
	}
	for _, warning := range warnings {
		k.env.Logger.Warn("the jump for an install has a warning", attemptOf(request), slog.String("warning", warning))
	}
	if ctx.Err() != nil {
		unloadOwn(store, state.GetInit(), kexec.Unload)
		return context.Cause(ctx)
	}
	return leap(ctx, store, state.GetInit())
}

// leap records the jump and jumps, unless ctx ends before. After an error its kernel is not loaded
// any more.
func leap(ctx context.Context, store *takeover.Store, init *agentv1.TakeoverInit) error {
	return recordedJump(ctx, store, init, "/", kexec.Jump, kexec.Unload, rebootKernel)
}

// unloadOwn unloads the kernel of a jump that does not take place. The machine has room for one,
// whoever loaded it: that of a newer takeover, which loads it before it writes its state, stays.
func unloadOwn(store *takeover.Store, init *agentv1.TakeoverInit, unload func() error) {
	state, err := store.Load()
	if err == nil && !takeover.InCharge(state, init) && state.GetInit().GetMode() == agentv1.TakeoverMode_TAKEOVER_MODE_KEXEC {
		return
	}
	_ = unload()
}

// recordedJump jumps from the host below root. A jump that left the old system as it was is no
// record: the next restart, whenever it comes, is no return from memory. Its kernel goes before its
// record, because writing that may wait for a disk, and meanwhile the process may be killed.
func recordedJump(
	ctx context.Context, store *takeover.Store, init *agentv1.TakeoverInit, root string,
	jump func(context.Context) error, unload func() error, restart func(root string) error,
) error {
	bootID, err := takeover.BootID(root)
	if err == nil {
		err = store.RecordJump(init, bootID)
	}
	if err != nil {
		unloadOwn(store, init, unload)
		return fmt.Errorf("record the jump: %w", err)
	}
	err = restartReadOnly(jump(ctx), restart)
	unloadOwn(store, init, unload)
	if errors.Is(err, kexec.ErrReadOnly) {
		return err
	}
	if forget := store.ForgetJump(init); forget != nil {
		return errors.Join(err, fmt.Errorf("forget the jump: %w", forget))
	}
	return err
}

// restartReadOnly restarts a machine whose jump has failed after it made the disks read-only: the
// old system cannot go on with disks that it may not write. It returns the error of a jump that
// left the disks alone.
func restartReadOnly(jump error, restart func(root string) error) error {
	if !errors.Is(jump, kexec.ErrReadOnly) {
		return jump
	}
	return errors.Join(jump, restart("/"))
}

// sessionServer returns the process that serves the SSH session of this one: the parent of the
// leader of its session. 0: there is none.
func sessionServer() int {
	leader, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", leader))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil || parent <= 1 {
		return 0
	}
	return parent
}

// jump is the process that waits for the end of the session and jumps.
func jump(ctx context.Context, env Env, j jumper) int {
	logger := env.options().Logger
	j.root, j.leap, j.unload = env.Root, leap, kexec.Unload
	err := j.run(ctx)
	logger.Error("the jump did not take place", slog.Any("err", err))
	return exitFailed
}

// jumper holds the place of the agent until it jumps, so that a newer takeover ends it.
type jumper struct {
	root string
	// after is the process that serves the session; 0: there is none.
	after int
	// ready and answer are the file descriptors on which it says that it waits, and hears that the
	// response of the takeover was written.
	ready, answer int
	leap          func(context.Context, *takeover.Store, *agentv1.TakeoverInit) error
	unload        func() error
}

func (j jumper) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	hostLock, err := takeover.LockHost(j.root, stop)
	if err != nil {
		_ = reportReady(j.ready, err.Error())
		return err
	}
	defer hostLock.Release()
	store := takeover.NewStore(j.root)
	state, err := store.Load()
	if err != nil {
		_ = reportReady(j.ready, err.Error())
		return err
	}
	if err := reportReady(j.ready, readyWord); err != nil {
		return err
	}
	written := awaitAnswer(ctx, j.answer)
	if written {
		awaitEnd(ctx, "/proc", j.after)
	}
	switch {
	case ctx.Err() != nil || store.Superseded(state.GetInit()):
		err = takeover.ErrSuperseded
	case !written:
		err = errUnanswered
	default:
		return j.leap(ctx, store, state.GetInit())
	}
	unloadOwn(store, state.GetInit(), j.unload)
	return err
}

// errUnanswered is why a system is not ended for an agent that no control plane would admit.
var errUnanswered = errors.New("nobody has taken the response of the takeover, so no control plane knows the agent's key")

// awaitAnswer says whether the response of the takeover was written: not where its end of the pipe
// closes without a word.
func awaitAnswer(ctx context.Context, fd int) bool {
	_ = unix.SetNonblock(fd, true) // without that nothing ends the reading
	file := os.NewFile(uintptr(fd), "answer")
	if file == nil {
		return false
	}
	defer func() { _ = file.Close() }()
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	n, _ := file.Read(make([]byte, 1))
	return n == 1
}

// awaitEnd waits until the process has ended, but not for ever. It looks again and again, because
// kernels before 5.3 cannot tell.
func awaitEnd(ctx context.Context, proc string, pid int) {
	path := filepath.Join(proc, strconv.Itoa(pid))
	for waited := time.Duration(0); pid > 0 && waited < sessionWait && ctx.Err() == nil; waited += sessionPoll {
		if _, err := os.Stat(path); err != nil {
			break
		}
		pause(ctx, sessionPoll)
	}
	pause(ctx, farewell)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
