package verb_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// needsConfirmation reports whether a plan of one machine does.
func needsConfirmation(x verb.Case) bool {
	planned, _ := verb.Judge(x)
	return verb.NeedConfirmation(x.Verb, []verb.Planned{planned})
}

// TestInUse: what runs on the machine is told, and is part of what a plan was made for.
func TestInUse(t *testing.T) {
	t.Parallel()
	for want, steps := range map[string][]step{
		"":                                     {wanted(1)},
		"installing (generation 1, attempt 1)": {handedOut},
		"booting what was installed (generation 1)":      {written},
		"installed (generation 1)":                       {up},
		"marked as installed":                            {marked},
		"reinstalled at its provider, for somebody else": {up, erased},
	} {
		if planned, _ := verb.Judge(judging(fleet.VerbQuarantine, steps...)); planned.InUse != want {
			t.Errorf("in use: %q, want %q", planned.InUse, want)
		}
	}
}

// TestDiffers: each thing that a plan was made for makes it untrue when it changes.
func TestDiffers(t *testing.T) {
	t.Parallel()
	held := func(x *verb.Case) {
		failed("")(x)
		x.Record.InstallReport.HeldGeneration = 7
	}
	for _, c := range []struct {
		name   string
		before []step
		now    []step
		want   string
	}{
		{"nothing", nil, nil, ""},
		{"the state", nil, []step{in(fleet.StateSilent)}, "it was available when the plan was made, and is silent now"},
		{"a system comes up", nil, []step{marked}, "it was not in use when the plan was made, and is marked as installed now"},
		{"a system goes", []step{marked}, nil, "it was marked as installed when the plan was made, and is not in use now"},
		{"an install", nil, []step{wanted(2)}, "install generation 2 was asked for since the plan was made"},
		{"a disk", []step{failed("")}, []step{held}, "a disk was found to hold install generation 7 since the plan was made"},
		{"an operation", nil, []step{asked(fleet.OperationReboot)}, "operation 1 was asked for since the plan was made"},
		{"its end", []step{asked(fleet.OperationReboot)}, []step{asked(fleet.OperationReboot), ended}, "operation 1 has ended since the plan was made"},
		{
			"a quarantine", nil, []step{quarantined("ada", "r")}, "a quarantine, a maintenance or an install was begun or called off since the plan was made",
		},
		{"a maintenance", nil, []step{maintained(0)}, "a quarantine, a maintenance or an install was begun or called off since the plan was made"},
		{
			"a cancel", []step{wanted(1)}, []step{wanted(1), func(x *verb.Case) {
				x.Record.InstallCancel = &fleet.InstallCancel{Generation: 1, At: at(9), Actor: "ada"}
			}}, "a quarantine, a maintenance or an install was begun or called off since the plan was made",
		},
	} {
		was, _ := verb.Judge(judging(fleet.VerbReboot, c.before...))
		now, _ := verb.Judge(judging(fleet.VerbReboot, c.now...))
		if got := was.Differs(now); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestNeedConfirmation(t *testing.T) {
	t.Parallel()
	reboot := asked(fleet.OperationReboot)
	for _, c := range []struct {
		name string
		x    verb.Case
		want bool
	}{
		{"a reboot of an idle machine", judging(fleet.VerbReboot), false},
		{"of one that is in use", judging(fleet.VerbReboot, up), true},
		{"of one that is refused", judging(fleet.VerbReboot, up, levers()), false},
		{"a power-off", judging(fleet.VerbPowerOff), true},
		{"in the place of another's operation", judging(fleet.VerbPowerOn, reboot), true},
		{"in the place of one's own", judging(fleet.VerbPowerOn, reboot, by("ada", "r")), false},
		{"in the place of the policy's", judging(fleet.VerbPowerOn, reboot, byPolicy), false},
		{"what is asked for already", judging(fleet.VerbReboot, reboot), false},
		{"the withdrawal of another's", judging(fleet.VerbWithdraw, reboot), true},
		{"the withdrawal of one's own", judging(fleet.VerbWithdraw, reboot, by("ada", "r")), false},
		{"a quarantine, which calls off another's", judging(fleet.VerbQuarantine, reboot), false},
		{"a quarantine while an install runs", judging(fleet.VerbQuarantine, handedOut), false},
		{"a maintenance while an install runs", judging(fleet.VerbBeginMaintenance, handedOut), true},
		{"a maintenance", judging(fleet.VerbBeginMaintenance), false},
		{"the cancel of one install, which is what was asked for", judging(fleet.VerbCancelInstall, handedOut), false},
	} {
		if got := needsConfirmation(c.x); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	harmless, lost, refused := verb.Planned{}, verb.Planned{Destroys: "something"}, verb.Planned{Refused: "it is not there"}
	for _, c := range []struct {
		v        fleet.Verb
		machines []verb.Planned
		want     bool
	}{
		{fleet.VerbReboot, []verb.Planned{harmless, harmless}, true},
		{fleet.VerbReboot, []verb.Planned{harmless, refused}, false},
		{fleet.VerbReboot, []verb.Planned{harmless, refused, harmless}, true},
		{fleet.VerbReboot, []verb.Planned{refused, lost}, true},
		{fleet.VerbCancelInstall, []verb.Planned{lost}, false},
		{fleet.VerbCancelInstall, []verb.Planned{lost, refused}, true},
	} {
		if got := verb.NeedConfirmation(c.v, c.machines); got != c.want {
			t.Errorf("%s of %+v: %t, want %t", c.v, c.machines, got, c.want)
		}
	}
}

// TestWhatAnotherHasSwitchedOff: only a confirmed plan of another person switches it on (rule 8).
func TestWhatAnotherHasSwitchedOff(t *testing.T) {
	t.Parallel()
	for actor, needs := range map[string]bool{"bob": true, "ada": false} {
		x := judging(fleet.VerbPowerOn, asked(fleet.OperationPowerOff), accepted, ended, by(actor, "r"))
		planned, err := verb.Judge(x)
		if got := needsConfirmation(x); got != needs || planned.Does != "metal switches it on, which was switched off by ada: new firmware" || err != nil {
			t.Errorf("by %s: needs a confirmation: %t, want %t; %+v, %v", actor, got, needs, planned, err)
		}
	}
}

// TestWhatMayStillCome: a maintenance and a quarantine tell what may be done to the host yet, and
// that a power cycle by recovery may leave the machine off (rule 8). Neither waits for a
// confirmation: begun at once, they keep further steps away.
func TestWhatMayStillCome(t *testing.T) {
	t.Parallel()
	const off = ", but the power-cycle by recovery may still come; metal may have switched it off already: then it stays off "
	restarted := func(x *verb.Case) { x.Record.AgentSeen.LastAt, x.Record.AgentSeen.BootID = at(30), "boot-2" }
	for name, c := range map[string]struct {
		steps                   []step
		quarantine, maintenance string
	}{
		"nothing":                        {nil, "", ""},
		"a reboot":                       {[]step{repairing(fleet.RungReboot)}, ", but the reboot by recovery may still come", ", but the reboot by recovery may still come"},
		"a reboot that has come":         {[]step{repairing(fleet.RungReboot), restarted}, "", ""},
		"a power cycle":                  {[]step{repairing(fleet.RungPowerCycle)}, off + untilOn, off + "while the maintenance lasts"},
		"a power cycle, in a quarantine": {[]step{repairing(fleet.RungPowerCycle), quarantined("bob", "why not")}, off + untilOn, off + "while the maintenance lasts"},
		"a power cycle that has come":    {[]step{repairing(fleet.RungPowerCycle), restarted}, "", ""},
	} {
		for v, told := range map[fleet.Verb]string{fleet.VerbQuarantine: c.quarantine, fleet.VerbBeginMaintenance: c.maintenance} {
			x := judging(v, c.steps...)
			planned, err := verb.Judge(x)
			if err != nil || strings.Contains(planned.Does, ", but ") != (told != "") || !strings.HasSuffix(planned.Does, told) || needsConfirmation(x) {
				t.Errorf("%s, %s: %+v, %v, want %q", name, v, planned, err, told)
			}
		}
	}
}

// TestPlanned: what a plan was made for is in it.
func TestPlanned(t *testing.T) {
	t.Parallel()
	got, err := verb.Judge(judging(fleet.VerbReboot, up, wanted(3), asked(fleet.OperationPowerOff), ended, quarantined("ada", "r"), maintained(0), over))
	want := verb.Planned{
		Machine: "m-1", Name: "web-1", Provider: "metal", State: fleet.StateAvailable, Does: "metal reboots it", InUse: "installed (generation 1)",
		Destroys: "the system that runs is interrupted", Requested: 3, Operation: 1, Marked: 2 * at(10).UnixMicro(),
	}
	if got != want || err != nil {
		t.Errorf("got %+v, %v, want\n%+v", got, err, want)
	}
	if got, _ := verb.Judge(judging(fleet.VerbQuarantine, notCreated(0))); got.Name != "m-1" {
		t.Errorf("a machine without a host name is called %q", got.Name)
	}
}
