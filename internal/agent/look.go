package agent

import (
	"context"
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

// refusal returns the report of an install that a disk of this machine forbids; nil: none is known
// to. The install in memory would refuse for the same reason, but the system that runs would have
// ended for nothing.
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

// disksBefore returns the disks of the machine for who is to find the same ones in memory; none
// where they cannot be read in time.
func disksBefore(ctx context.Context, root string, limit time.Duration) []*agentv1.BlockDevice {
	disks := inTime(ctx, limit, new(atomic.Bool), func() []*agentv1.BlockDevice {
		disks, err := inventory.Disks(root)
		if err != nil {
			return nil
		}
		return disks
	})
	for _, disk := range disks {
		disk.Health = nil
	}
	return disks
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
