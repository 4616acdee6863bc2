package verb_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/verb"
)

// TestVerbs: each verb says what it does, and when it is possible; what is no verb is possible
// nowhere.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for _, v := range append(fleet.Verbs(), "dance") {
		m, x := verb.Of(v), judging(v)
		if m.Does == nil || m.Possible == nil || m.Does(x) == "" != (v == "dance") {
			t.Errorf("%s is not in the table of verbs, or not as a whole", v)
		}
	}
	planned, err := verb.Judge(judging("dance"))
	if fleet.KindOf(err) != fleet.KindInvalid || planned.Refused != `no verb is named "dance"` || planned.Does != "" || planned.Destroys != "" {
		t.Errorf("%+v, %v", planned, err)
	}
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	at := at(60)
	for want, q := range map[string]verb.Request{
		"":                                         {Verb: fleet.VerbQuarantine, Reason: strings.Repeat("x", 500)},
		"no verb is named":                         {Verb: "dance", Reason: "r"},
		"the reason is missing":                    {Verb: fleet.VerbQuarantine},
		"the reason has 501 bytes: at most 500":    {Verb: fleet.VerbQuarantine, Reason: strings.Repeat("x", 501)},
		"belongs to a reinstall":                   {Verb: fleet.VerbReinstall, Reason: "r"},
		"to a reinstall, and to nothing else":      {Verb: fleet.VerbQuarantine, Reason: "r", Install: &fleet.InstallRequest{}},
		"only a maintenance has an end":            {Verb: fleet.VerbQuarantine, Reason: "r", Until: &at},
		"the reason is missing: history and every": {Verb: "dance"},
	} {
		if err := q.Validate(); err == nil != (want == "") || err != nil && (fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", q, err, want)
		}
	}
}

const (
	lost      = "the machine is not ours any more, and what is on it is lost"
	undefined = "what the disk holds is undefined"
	starts    = "; the start of an agent is under way: it normally ends if no agent has been run on the machine yet; " +
		"else, by kexec, what runs on the machine ends, and it is restarted into the installed system"
	goesOn = ", but attempt 1 of install generation 1, which was handed out to its agent, goes on, and restarts the machine when it is done; " +
		"`ironherd machine install m-1 --cancel --reason WHY` ends it"
	begunOff  = ", unless metal carries out what it may have been asked for already"
	untilOn   = "until `ironherd machine power on m-1 --reason WHY`"
	untilEnds = "nothing touches its host until `ironherd machine maintenance end m-1 --reason WHY`"
	endsFirst = "; `ironherd machine maintenance end m-1 --reason WHY` ends that first"
	withdrawn = "; `ironherd machine withdraw m-1 --reason WHY` calls that off"
)

// judged is what Judge says of a case.
type judged struct {
	name                    string
	x                       verb.Case
	does, destroys, refused string
}

func check(t *testing.T, table []judged) {
	t.Helper()
	for _, c := range table {
		planned, err := verb.Judge(c.x)
		if planned.Does != c.does {
			t.Errorf("%s: does\n%q, want\n%q", c.name, planned.Does, c.does)
		}
		if planned.Destroys != c.destroys {
			t.Errorf("%s: destroys\n%q, want\n%q", c.name, planned.Destroys, c.destroys)
		}
		if planned.Refused != c.refused || err == nil != (c.refused == "") || err != nil && err.Error() != c.refused {
			t.Errorf("%s: refused\n%q, %v, want\n%q", c.name, planned.Refused, err, c.refused)
		}
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	const reboots, back = "metal reboots it", "it is given back to metal"
	reboot, cycle, off := asked(fleet.OperationReboot), asked(fleet.OperationPowerCycle), asked(fleet.OperationPowerOff)
	check(t, []judged{
		{"idle", judging(fleet.VerbReboot), reboots, "", ""},
		{"a system runs", judging(fleet.VerbReboot, up), reboots, "the system that runs is interrupted", ""},
		{"an install runs", judging(fleet.VerbPowerCycle, handedOut), "metal switches it off and on", "the install ends half-written", ""},
		{"off", judging(fleet.VerbPowerOff, up), "metal switches it off", "the system that runs is interrupted", ""},
		{"on", judging(fleet.VerbPowerOn, up), "metal switches it on", "", ""},
		{"no lever", judging(fleet.VerbReboot, levers(fleet.LeverPower)), reboots, "", "provider metal cannot reboot machines"},
		{"not created", judging(fleet.VerbReboot, notCreated(0)), reboots, "", "machine m-1 is not created yet"},
		{"asked already", judging(fleet.VerbReboot, reboot, maintained(0)), reboots, "", ""},
		{
			"in maintenance", judging(fleet.VerbReboot, maintained(0)), reboots, "",
			"machine web-1 is in maintenance by ada: end it first (`ironherd machine maintenance end m-1 --reason WHY`)",
		},
		{"its maintenance is over", judging(fleet.VerbReboot, maintained(0), over), reboots, "", ""},
		{
			"half cycled", judging(fleet.VerbReboot, cycle, begun), reboots + ", and the power-cycle that ada asked for is called off" + begunOff, "",
			"machine web-1 is being switched off and on, which restarts it, too" + withdrawn,
		},
		{"a cycle is accepted", judging(fleet.VerbReboot, cycle, accepted), reboots + ", and the power-cycle that ada asked for is called off" + begunOff, "", ""},
		{
			"switched off", judging(fleet.VerbReboot, off, accepted, ended), reboots, "",
			"machine web-1 was switched off by ada: new firmware: switch it on (`ironherd machine power on m-1 --reason WHY`)",
		},
		{"switched on", judging(fleet.VerbPowerOn, off, accepted, ended), "metal switches it on, which was switched off by ada: new firmware", "", ""},
		{
			"being given back", judging(fleet.VerbReboot, asked(fleet.OperationRelease)), reboots + ", and the release that ada asked for is called off", "",
			"machine web-1 is being given back (release, asked for by ada)" + withdrawn,
		},
		{
			"being given back, which is accepted", judging(fleet.VerbReboot, asked(fleet.OperationRelease), accepted),
			reboots + ", and the release that ada asked for is called off" + begunOff, "",
			"machine web-1 is being given back (release, asked for by ada)",
		},
		{
			"gone", judging(fleet.VerbRelease, provided(fleet.ProviderStatusGone)), back, lost,
			"machine web-1 is gone at metal: `ironherd machine forget m-1 --reason WHY` removes it here",
		},
		{
			"released", judging(fleet.VerbRelease, capacity),
			back + "; its capacity rack-7 is not used again until `ironherd provider retry metal --capacity ID --reason WHY`", lost, "",
		},
		{
			"replaced", judging(fleet.VerbReplace, capacity),
			back + "; another one may be created at once, on the same hardware, too (quarantine this one first if it is broken)", lost, "",
		},
		{
			"a host of a list", judging(fleet.VerbReplace, listed),
			back + "; the next pass may take the same host in again (quarantine the machine first if it is broken)", lost, "",
		},
		{
			"given up", judging(fleet.VerbReplace, capacity, quarantined("ada", "smoke")),
			back + "; its capacity sits out `provisioner.penalty`, and then may be used again", lost, "",
		},
		{
			"the policy replaces it", judging(fleet.VerbReplace, capacity, asked(fleet.OperationReplace), byPolicy),
			back + "; its capacity sits out `provisioner.penalty`, and then may be used again", lost, "",
		},
		{
			"nobody serves its provider", judging(fleet.VerbReboot, unserved(fleet.RoleInitializer, fleet.RoleOperations)),
			reboots + ", when a control plane that has the role operations serves metal", "", "",
		},
		{"somebody does", judging(fleet.VerbReboot, unserved(fleet.RoleInitializer)), reboots, "", ""},
		{"nothing to withdraw", judging(fleet.VerbWithdraw), "the operation that was asked for is called off", "", "no operation of machine web-1 is under way"},
		{"withdrawn", judging(fleet.VerbWithdraw, reboot), "the reboot that ada asked for is called off", "", ""},
		{"begun", judging(fleet.VerbWithdraw, reboot, begun), "the reboot that ada asked for is called off" + begunOff, "", ""},
		{
			"accepted", judging(fleet.VerbWithdraw, reboot, accepted), "the reboot that ada asked for is called off" + begunOff, "",
			"metal has accepted the reboot of machine web-1 already",
		},
		{
			"half cycled, and withdrawn", judging(fleet.VerbWithdraw, cycle, begun),
			"the power-cycle that ada asked for is called off; because metal may have switched it off already, it is switched on", "", "",
		},
	})
}

// TestAsking: who asks for what is under way gets its number, unless the policy alone wants it.
func TestAsking(t *testing.T) {
	t.Parallel()
	replace := asked(fleet.OperationReplace)
	for name, c := range map[string]struct {
		steps []step
		want  int64
	}{
		"nothing is asked for":     {nil, 0},
		"a person asked":           {[]step{replace}, 1},
		"it has ended":             {[]step{replace, ended}, 0},
		"another is under way":     {[]step{asked(fleet.OperationReboot)}, 0},
		"the policy asked":         {[]step{replace, byPolicy}, 0},
		"begun for the policy":     {[]step{replace, byPolicy, begun}, 0},
		"accepted from the policy": {[]step{replace, byPolicy, accepted}, 1},
	} {
		r := judging(fleet.VerbReplace, c.steps...).Record
		if got, err := verb.Askable(r, fleet.OperationReplace); got != c.want || err != nil {
			t.Errorf("%s: %d, %v, want %d", name, got, err, c.want)
		}
	}
}

func TestInstalls(t *testing.T) {
	t.Parallel()
	const off, kept, needsErase = "the install is called off", "an operating system runs there, and is left alone",
		", unless its disk holds what no install of Ironherd has put there: that needs --erase"
	installed := image.Label() + " is installed"
	check(t, []judged{
		{"reinstalled", judging(fleet.VerbReinstall, up), installed, "what is on the disk", ""},
		{
			"in quarantine", judging(fleet.VerbReinstall, in(fleet.StateQuarantined)), installed + " when its quarantine ends", "what is on the disk", "",
		},
		{
			"in maintenance", judging(fleet.VerbReinstall, in(fleet.StateMaintenance)), installed + " when its maintenance ends", "what is on the disk", "",
		},
		{"marked", judging(fleet.VerbReinstall, marked), "what runs on it ends, and " + installed + needsErase, "what is on the disk", ""},
		{"reinstalled elsewhere", judging(fleet.VerbReinstall, up, erased), "what runs on it ends, and " + installed + needsErase, "what is on the disk", ""},
		{"marked, and erased", judging(fleet.VerbReinstall, marked, erasing), installed, "what is on the disk", ""},
		{
			"gone", judging(fleet.VerbReinstall, listed, provided(fleet.ProviderStatusGone)), installed, "what is on the disk",
			"machine web-1 is gone at metal: put its host back on the list as dev-1, or see `ironherd discrepancy list`",
		},
		{"nothing to call off", judging(fleet.VerbCancelInstall), off, "", "no install of machine web-1 was asked for"},
		{"called off at once", judging(fleet.VerbCancelInstall, wanted(1)), off, "", ""},
		{"handed out", judging(fleet.VerbCancelInstall, handedOut), off, undefined + ", unless nothing was written yet", ""},
		{"nothing was written", judging(fleet.VerbCancelInstall, failed("")), off, "", ""},
		{"half-written", judging(fleet.VerbCancelInstall, failed("/dev/sda")), off, undefined, ""},
		{"given up", judging(fleet.VerbCancelInstall, failed(fleet.DiskUnknown)), off, undefined, ""},
		{"written", judging(fleet.VerbCancelInstall, written), off, "", "install generation 1 of machine web-1 is on its disk already"},
		{"came up", judging(fleet.VerbCancelInstall, up), off, "", "install generation 1 of machine web-1 has come up already"},
		{"an agent is started", judging(fleet.VerbCancelInstall, up, wanted(2), starting), off + starts, "", ""},
		{"marked as installed", judging(fleet.VerbMarkInstalled), kept, "", ""},
		{"asked for", judging(fleet.VerbMarkInstalled, handedOut), kept + "; install generation 1 counts as done", "", ""},
		{"not there", judging(fleet.VerbMarkInstalled, notCreated(0)), kept, "", "machine m-1 is not there yet: nothing runs on it"},
		{
			"installed", judging(fleet.VerbMarkInstalled, up), kept + "; install generation 1 counts as done", "",
			"machine web-1 is installed already (install generation 1)",
		},
		{"reinstalled by its provider", judging(fleet.VerbMarkInstalled, up, erased), kept + "; install generation 1 counts as done", "", ""},
		{
			"an agent speaks", judging(fleet.VerbMarkInstalled, speaking), kept, "",
			"the agent of machine web-1 speaks; if an operating system that is to be left alone runs there, end the agent on the host first",
		},
		{
			"gone, and marked", judging(fleet.VerbMarkInstalled, provided(fleet.ProviderStatusGone)), kept, "",
			"machine web-1 is gone at metal: `ironherd machine forget m-1 --reason WHY` removes it here",
		},
	})
	for told, steps := range map[string][]step{
		"": {up},
		" before anything was handed to an agent":                                                                         {wanted(1)},
		" before anything was handed to an agent" + starts:                                                                {up, wanted(2), starting},
		"; its agent is told with its next heartbeat, and says whether anything was written":                              {handedOut},
		"; its last attempt has failed, and nothing was written":                                                          {failed("")},
		"; its last attempt has failed, and " + undefined:                                                                 {failed("/dev/sda")},
		"; its last attempt was given up: an agent that is at it still is told with its next heartbeat, and " + undefined: {failed(fleet.DiskUnknown)},
	} {
		if got, _ := verb.Cancelled(judging(fleet.VerbCancelInstall, steps...).Record); got != told {
			t.Errorf("called off: %q, want %q", got, told)
		}
	}
}

// TestOnlyReinstall: who asks for an install where a system is, is told which, and what to ask for.
func TestOnlyReinstall(t *testing.T) {
	t.Parallel()
	const ask = " which a reinstall destroys: ask for one (`ironherd machine install m-1 --image IMAGE --reinstall"
	for want, steps := range map[string][]step{
		"machine web-1 has install generation 1 on its disk, which has not come up yet, and" + ask + " --reason WHY`)": {written},
		"machine web-1 runs an installed system (install generation 1)," + ask + " --reason WHY`)":                     {up},
		"machine web-1 runs an installed system (marked as installed)," + ask + " --erase --reason WHY`)":              {marked},
		"machine web-1 was reinstalled at its provider, for somebody else," + ask + " --erase --reason WHY`)":          {up, erased},
	} {
		if err := verb.OnlyReinstall(judging(fleet.VerbReinstall, steps...).Record); fleet.KindOf(err) != fleet.KindConflict || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWhatKeepsWorkAway(t *testing.T) {
	t.Parallel()
	const away = "all work is kept away from it"
	reboot, cycle := asked(fleet.OperationReboot), asked(fleet.OperationPowerCycle)
	hers := quarantined("ada", "hands in it")
	check(t, []judged{
		{"quarantined", judging(fleet.VerbQuarantine), away, "", ""},
		{"asked for", judging(fleet.VerbQuarantine, reboot), away + ", and the reboot that ada asked for is called off", "", ""},
		{"begun", judging(fleet.VerbQuarantine, reboot, begun), away + ", and the reboot that ada asked for is called off" + begunOff, "", ""},
		{
			"half cycled", judging(fleet.VerbQuarantine, cycle, begun),
			away + ", and the power-cycle that ada asked for is called off; metal may have switched it off already: then it stays off " + untilOn, "", "",
		},
		{
			"accepted", judging(fleet.VerbQuarantine, reboot, accepted), away + ", but the reboot that ada asked for, which metal has accepted, goes on", "", "",
		},
		{"installing", judging(fleet.VerbQuarantine, handedOut), away + goesOn, "", ""},
		{
			"hers", judging(fleet.VerbQuarantine, hers), away + "; it takes the place of the quarantine by ada: hands in it", "",
			"machine web-1 is in quarantine already by ada: hands in it; `ironherd machine unquarantine m-1 --reason WHY` ends that first",
		},
		{
			"one's own", judging(fleet.VerbQuarantine, hers, by("ada", "a new board")), away + "; it takes the place of the quarantine by ada: hands in it", "", "",
		},
		{"one's own again", judging(fleet.VerbQuarantine, hers, by("ada", "hands in it")), away, "", ""},
		{
			"recovery's", judging(fleet.VerbQuarantine, quarantined(string(fleet.ProcessRecovery), "no other step")),
			away + "; it takes the place of the quarantine by recovery: no other step", "", "",
		},
		{
			"not created", judging(fleet.VerbQuarantine, notCreated(0)), away, "",
			"machine m-1 is not created yet: `ironherd provider pause metal --reason WHY` keeps it from being created",
		},
		{
			"asked of its provider", judging(fleet.VerbQuarantine, notCreated(1)), away, "", "machine m-1 is not created yet: `ironherd provider pause metal " +
				"--reason WHY` keeps it from being created, unless metal creates it for the call that was made already",
		},
		{"not in quarantine", judging(fleet.VerbUnquarantine), "work comes back to it", "", "machine web-1 is not in quarantine"},
		{"its quarantine ends", judging(fleet.VerbUnquarantine, hers), "the quarantine by ada ends (hands in it), and work comes back to it", "", ""},
		{
			"the BMDB's ends", judging(fleet.VerbUnquarantine, quarantined(fleet.ActorBMDB, "r"), unserved(fleet.RoleInitializer)),
			"the quarantine by ironherd ends (r), and work comes back to it, when a control plane that has the role initializer serves metal", "", "",
		},
	})
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	const already = "machine web-1 is in maintenance already by ada"
	const replaces = "; it takes the place of the maintenance by ada: hands in it"
	untilOne := "nothing touches its host until " + fleet.Instant(at(60))
	check(t, []judged{
		{"begun", judging(fleet.VerbBeginMaintenance), untilEnds, "", ""},
		{"with an end", judging(fleet.VerbBeginMaintenance, until(60)), untilOne, "", ""},
		{
			"whose end is past", judging(fleet.VerbBeginMaintenance, until(30)), "nothing touches its host until " + fleet.Instant(at(30)), "",
			"the end of the maintenance, " + fleet.Instant(at(30)) + ", is past",
		},
		{"while an install runs", judging(fleet.VerbBeginMaintenance, handedOut), untilEnds + goesOn, "", ""},
		{
			"while an operation is under way", judging(fleet.VerbBeginMaintenance, asked(fleet.OperationReboot)), untilEnds, "",
			"reboot, asked for by ada, is under way on machine web-1: wait for its end" + withdrawn,
		},
		{
			"while an operation is accepted", judging(fleet.VerbBeginMaintenance, asked(fleet.OperationReboot), accepted),
			untilEnds + ", but the reboot that ada asked for, which metal has accepted, goes on", "",
			"reboot, asked for by ada, is under way on machine web-1: wait for its end",
		},
		{"another's", judging(fleet.VerbBeginMaintenance, maintained(0)), untilEnds + replaces, "", already + ": hands in it" + endsFirst},
		{
			"another's with an end", judging(fleet.VerbBeginMaintenance, maintained(40)), untilEnds + replaces, "",
			already + " until " + fleet.Instant(at(40)) + ": hands in it" + endsFirst,
		},
		{"another's whose time is over", judging(fleet.VerbBeginMaintenance, maintained(30)), untilEnds + replaces, "", ""},
		{"another's that has ended", judging(fleet.VerbBeginMaintenance, maintained(0), over), untilEnds, "", ""},
		{"one's own again", judging(fleet.VerbBeginMaintenance, maintained(0), by("ada", "hands in it")), untilEnds, "", ""},
		{
			"one's own, but shorter", judging(fleet.VerbBeginMaintenance, maintained(0), by("ada", "hands in it"), until(60)), untilOne, "",
			"machine web-1 is in maintenance for longer by ada: hands in it" + endsFirst,
		},
		{"one's own, and longer", judging(fleet.VerbBeginMaintenance, maintained(40), by("ada", "hands in it"), until(60)), untilOne, "", ""},
		{"none to end", judging(fleet.VerbEndMaintenance), "its host is looked after again", "", "machine web-1 is not in maintenance"},
		{
			"one that has ended", judging(fleet.VerbEndMaintenance, maintained(0), over), "its host is looked after again", "", "machine web-1 is not in maintenance",
		},
		{"ended", judging(fleet.VerbEndMaintenance, maintained(0)), "the maintenance by ada ends (hands in it), and its host is looked after again", "", ""},
	})
}

func TestForgetting(t *testing.T) {
	t.Parallel()
	const does = "what is known of it is removed here, but for its history"
	const may = "provider metal has not said that machine web-1 is gone"
	gone, release := provided(fleet.ProviderStatusGone), asked(fleet.OperationRelease)
	check(t, []judged{
		{"there", judging(fleet.VerbForget), does, "", may + ": `ironherd machine release m-1 --reason WHY` gives it back"},
		{"no lever", judging(fleet.VerbForget, levers()), does, "", may + ", and cannot be asked to take it back: remove it there"},
		{"released", judging(fleet.VerbForget, release), does, "", may + ": its release is under way"},
		{
			"not created", judging(fleet.VerbForget, notCreated(0)), does, "", "machine m-1 is not created yet, and provider metal may make it still: " +
				"it goes by itself when capacity rack-7 is refused for good or is not free any more",
		},
		{"gone", judging(fleet.VerbForget, gone, up), does, "", ""},
		{
			"gone while it was released", judging(fleet.VerbForget, gone, release, capacity),
			does + "; its capacity rack-7 is not used again until `ironherd provider retry metal --capacity ID --reason WHY`", "", "",
		},
		{
			"a host of a list", judging(fleet.VerbForget, gone, up, listed), does,
			"our hold on it: if a list has its host, under whatever id, the host is taken in anew, and what runs on it ends", "",
		},
		{"a host of a list that is idle", judging(fleet.VerbForget, gone, listed), does, "", ""},
		{"its provider may be served", judging(fleet.VerbForget, mayServe), does, "", "an older control plane does not say"},
		{"gone, and its provider may be served", judging(fleet.VerbForget, gone, mayServe), does, "", ""},
		{
			"nobody serves its provider", judging(fleet.VerbForget, abandoned), does, "our hold on it: no control plane serves metal, which may have it still; " +
				"it is not given back, and what runs on it goes on, unless another provider lists that host and takes it in anew", "",
		},
	})
}
