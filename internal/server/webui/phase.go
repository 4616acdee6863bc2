package webui

import (
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// phaseSample is of how many of the newest machines the control plane computes phases.
const phaseSample = 10_000

// phaseBar is one phase with its percentiles in hundredths of the bar's width. All phases have one
// scale, so that it can be seen which of them takes the time.
type phaseBar struct {
	phase         *fleetv1.PhaseDuration
	p50, p95, p99 float64
}

func phaseBars(phases []*fleetv1.PhaseDuration) []phaseBar {
	var longest time.Duration
	for _, p := range phases {
		longest = max(longest, p.GetP99().AsDuration())
	}
	scale := func(d time.Duration) float64 {
		if longest <= 0 || d <= 0 {
			return 0
		}
		return 100 * min(1, float64(d)/float64(longest))
	}
	all := make([]phaseBar, 0, len(phases))
	for _, p := range phases {
		if p.GetCount() == 0 {
			continue
		}
		all = append(all, phaseBar{
			phase: p, p50: scale(p.GetP50().AsDuration()), p95: scale(p.GetP95().AsDuration()), p99: scale(p.GetP99().AsDuration()),
		})
	}
	return all
}
