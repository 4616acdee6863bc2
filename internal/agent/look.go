package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/agent/inventory"
)

const (
	// lookLimit is how long a jump for an install waits for what the disks hold.
	lookLimit = time.Minute
	// takeoverLook is how long a takeover waits for that: the control plane waits for its answer, for
	// initializer.execute_timeout, which is a minute.
	takeoverLook = 15 * time.Second
)

// refusal returns the report of an install that this machine or a disk of it forbids; nil: none is
// known to. The install in memory would refuse for the same reason, but the system that runs would
// have ended for nothing.
func (j *job) refusal(ctx context.Context, options install.Options) *agentv1.InstallReport {
	return inTime(ctx, lookLimit, options.Busy, func() *agentv1.InstallReport {
		disks, err := inventory.Disks(options.Root)
		if err != nil {
			return nil
		}
		options.Disks = disks
		return install.Refused(j.request, options)
	})
}

// lookFor returns how long the jump of that state waits for what the disks hold.
func lookFor(state *agentv1.AgentState) time.Duration {
	if len(state.GetPendingInstall()) > 0 {
		return lookLimit
	}
	return takeoverLook
}

// disksBefore returns the disks of the machine for who is to find the same ones in memory; none,
// and a warning, where they cannot be read in time. What look is told is how long it may wait for a
// drive that is silent: the other disks are known nevertheless.
func disksBefore(
	ctx context.Context, limit time.Duration, look func(limit time.Duration) ([]*agentv1.BlockDevice, error),
) (disks []*agentv1.BlockDevice, warning string) {
	type list struct {
		disks []*agentv1.BlockDevice
		err   error
	}
	found := inTime(ctx, limit, new(atomic.Bool), func() *list {
		disks, err := look(limit * 3 / 4)
		return &list{disks, err}
	})
	if found == nil {
		found = &list{err: fmt.Errorf("the disks could not be read within %s", limit)}
	}
	if found.err != nil {
		return nil, fmt.Sprintf("%v; an install in memory cannot tell whether one is missing", found.err)
	}
	for _, disk := range found.disks {
		disk.Health = nil
	}
	return found.disks, ""
}

// inTime returns what look finds. It returns nothing when that takes longer than the limit, when
// ctx ends, when look panics, and while an earlier look has not ended: the install in memory looks
// again, so nothing here may keep the jump from taking place.
func inTime[T any](ctx context.Context, limit time.Duration, busy *atomic.Bool, look func() T) (none T) {
	if !busy.CompareAndSwap(false, true) {
		return none
	}
	found := make(chan T, 1)
	go func() {
		var seen T
		_ = install.Survive(func() error { seen = look(); return nil })
		busy.Store(false)
		found <- seen
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case seen := <-found:
		return seen
	case <-timer.C:
	case <-ctx.Done():
	}
	return none
}
