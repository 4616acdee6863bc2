package lifecycle_test

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

func TestMayStillCome(t *testing.T) {
	t.Parallel()
	one := func(rung fleet.Rung) map[fleet.Rung]int { return map[fleet.Rung]int{rung: 1} }
	rebooted := with(known, repair(24, fleet.RungReboot, one(fleet.RungReboot)))
	reinstalled := with(known, repair(24, fleet.RungReinstall, one(fleet.RungReinstall)))
	afterRefusal := with(known, repair(25, fleet.RungAgentStart, map[fleet.Rung]int{fleet.RungReboot: 1, fleet.RungAgentStart: 1}), turnedDown,
		func(r *fleet.Record) { r.AgentStarted.BootID = "boot-2" })
	calledOff := func(o fleet.Operation) []step {
		return with(known, wantOperation(23, 1, o), operating(24, 1, 0, 0), operated(25, 1, false))
	}
	before := func(o fleet.Operation) []step {
		return with(known, operating(24, 1, 0, 0), wantOperation(25, 2, o))
	}
	stepTime := environment().Policy.RecoveryStepTimeout.Minutes()
	limit := environment().Policy.OperationTimeout.Minutes()
	for name, c := range map[string]struct {
		steps []step
		now   float64
		want  string
	}{
		"nothing was asked for":                {known, 26, ""},
		"a reboot":                             {rebooted, 26, "the reboot by recovery"},
		"a reboot, and then a quarantine":      {with(rebooted, func(r *fleet.Record) { r.Quarantine = &fleet.Quarantine{At: at(25)} }), 26, "the reboot by recovery"},
		"a reboot that has come":               {with(rebooted, started(25, 2), func(r *fleet.Record) { r.AgentStarted.BootID = "boot-2" }), 26, ""},
		"a reboot whose time is over":          {rebooted, 24 + stepTime, ""},
		"a reinstall":                          {reinstalled, 26, "the reinstall by recovery"},
		"a reinstall that the provider is at":  {with(reinstalled, provided(25, fleet.ProviderStatusCreating)), 1000, "the reinstall by recovery"},
		"a reboot that was refused":            {with(rebooted, turnedDown), 26, ""},
		"an agent that was started after that": {afterRefusal, 26, ""},
		"an agent that was started":            {with(known, repair(24, fleet.RungAgentStart, one(fleet.RungAgentStart))), 26, ""},
		"a reboot that was called off":         {calledOff(fleet.OperationReboot), 26, "the reboot that ada asked for"},
		"a release that was called off":        {calledOff(fleet.OperationRelease), 26, "the release that ada asked for"},
		"called off, and its time is over":     {calledOff(fleet.OperationRelease), 24 + limit, ""},
		"called off before it was begun":       {with(known, wantOperation(23, 1, fleet.OperationReboot), operated(25, 1, false)), 26, ""},
		"another is asked for then":            {before(fleet.OperationPowerOff), 26, "what was asked for before the power-off"},
		"and withdrawn before it is begun":     {with(before(fleet.OperationReboot), operated(25, 2, false)), 26, "what was asked for before the reboot"},
		"and begun":                            {with(before(fleet.OperationReboot), operating(25, 2, 0, 0)), 26, ""},
		"and the machine restarts":             {with(before(fleet.OperationReboot), started(25, 2), func(r *fleet.Record) { r.AgentStarted.BootID = "boot-2" }), 26, ""},
		"and the time of the first is over":    {before(fleet.OperationReboot), 24 + limit, ""},
		"and the first had ended well":         {with(known, operating(24, 1, 0, 0), operated(24.5, 1, true), wantOperation(25, 2, fleet.OperationPowerOff)), 26, ""},
		"and the first had been accepted":      {with(before(fleet.OperationReboot), operating(24, 1, 24, 0)), 26, ""},
		"done":                                 {with(known, wantOperation(23, 1, fleet.OperationPowerOn), operating(24, 1, 0, 0), operated(25, 1, true)), 26, ""},
		"called off, and the machine restarts": {with(calledOff(fleet.OperationReboot), started(25, 2), func(r *fleet.Record) { r.AgentStarted.BootID = "boot-2" }), 26, ""},
	} {
		if got := lifecycle.MayStillCome(record(c.steps...), environment(), at(c.now)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
