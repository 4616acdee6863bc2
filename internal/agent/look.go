package agent

import (
	"context"
	"sync/atomic"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/agent/inventory"
)

// lookLimit is how long a jump for an install waits for what the disks hold.
const lookLimit = time.Minute

// refusal returns the report of an install that a disk of this machine forbids; nil: none is known
// to. The install in memory would refuse for the same reason, but the system that runs would have
// ended for nothing.
func (j *job) refusal(ctx context.Context, options install.Options) *agentv1.InstallReport {
	return inTime(ctx, options.Busy, func() *agentv1.InstallReport {
		disks, err := inventory.Disks(options.Root)
		if err != nil {
			return nil
		}
		options.Disks = disks
		return install.Held(j.request, options)
	})
}

// inTime returns what look finds. It returns nil when that takes longer than lookLimit, when ctx
// ends, when look panics, and while an earlier look has not ended: the install in memory looks
// again, so nothing here may keep the jump from taking place.
func inTime(ctx context.Context, busy *atomic.Bool, look func() *agentv1.InstallReport) *agentv1.InstallReport {
	if !busy.CompareAndSwap(false, true) {
		return nil
	}
	found := make(chan *agentv1.InstallReport, 1)
	go func() {
		var report *agentv1.InstallReport
		_ = install.Survive(func() error { report = look(); return nil })
		busy.Store(false)
		found <- report
	}()
	timer := time.NewTimer(lookLimit)
	defer timer.Stop()
	select {
	case report := <-found:
		return report
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}
