package lifecycle

import (
	"fmt"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// step says in words what a rung does.
func (c judgement) step(rung fleet.Rung) string {
	switch rung {
	case fleet.RungReboot:
		return fmt.Sprintf("%s reboots it", c.r.Provider)
	case fleet.RungPowerCycle:
		return fmt.Sprintf("%s switches it off and on", c.r.Provider)
	case fleet.RungReinstall:
		return fmt.Sprintf("%s reinstalls its own operating system, which destroys the disk", c.r.Provider)
	case fleet.RungAgentStart, fleet.RungQuarantine:
	}
	return "it is quarantined for a person to look at"
}

// StepsTaken says in words how often which steps of the ladder were taken, the quarantine aside; ""
// when none was. Those of a fleet.Repair are tried ones: the provider may have refused them.
func StepsTaken(steps map[fleet.Rung]int) string {
	var words []string
	for _, s := range []struct {
		rung      fleet.Rung
		one, many string
	}{
		{fleet.RungAgentStart, "1 agent start", "agent starts"},
		{fleet.RungReboot, "1 reboot", "reboots"},
		{fleet.RungPowerCycle, "1 power cycle", "power cycles"},
		{fleet.RungReinstall, "1 reinstall", "reinstalls"},
	} {
		switch n := steps[s.rung]; n {
		case 0:
		case 1:
			words = append(words, s.one)
		default:
			words = append(words, fmt.Sprintf("%d %s", n, s.many))
		}
	}
	return strings.Join(words, ", ")
}
