package verb

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Request is what somebody asks to be done to machines.
type Request struct {
	Verb   fleet.Verb
	Actor  string
	Reason string
	// Until is when a maintenance ends by itself; nil: by a person's word.
	Until *time.Time
	// Install is what a reinstall installs; nil with any other verb.
	Install *fleet.InstallRequest
}

// Validate fails with KindInvalid where the request makes no sense, whatever machine it is about.
func (q Request) Validate() error {
	switch {
	case q.Reason == "":
		return fleet.Errorf(fleet.KindInvalid, "the reason is missing: history and everybody who asks are to be told why")
	case len(q.Reason) > fleet.MaxReason:
		return fleet.Errorf(fleet.KindInvalid, "the reason has %d bytes: at most %d are possible", len(q.Reason), fleet.MaxReason)
	case (q.Install != nil) != (q.Verb == fleet.VerbReinstall):
		return fleet.Errorf(fleet.KindInvalid, "what is to be installed belongs to a reinstall, and to nothing else")
	case q.Until != nil && q.Verb != fleet.VerbBeginMaintenance:
		return fleet.Errorf(fleet.KindInvalid, "only a maintenance has an end")
	}
	_, err := fleet.ParseVerb(string(q.Verb))
	return err
}

// Case is a request about one machine, as that is at an instant.
type Case struct {
	Request
	Record fleet.Record
	// State is what lifecycle says of the record in the environment.
	State fleet.State
	Env   fleet.Environment
	Now   time.Time
	// Service is needed where the verb has a Doer, and to forget the machine.
	Service Service
}

// Service is who serves the provider of a machine.
type Service struct {
	// Unserved are the roles that somebody has, but nobody for that provider.
	Unserved []fleet.Role
	// Abandoned: it is certain that no control plane serves it any more.
	Abandoned bool
	// MayServe is why that is not certain, where nobody serves it who would give the machine back; nil
	// where Abandoned, where somebody does, and where nobody has looked.
	MayServe error
}

// Meaning is what a verb does to one machine.
type Meaning struct {
	// Doer is the role whose loop does the rest; "" where nothing is left to do.
	Doer fleet.Role
	// Possible says why it cannot be done; nil: it can.
	Possible func(x Case) error
	// Does says what happens to the machine, and what it takes the place of.
	Does func(x Case) string
	// Destroys says what is lost by it; "" where nothing is. It is nil where nothing ever is.
	Destroys func(x Case) string
}

var meanings = map[fleet.Verb]Meaning{
	fleet.VerbReboot:     operation(fleet.OperationReboot, "%s reboots it", nothing, interrupted),
	fleet.VerbPowerOn:    operation(fleet.OperationPowerOn, "%s switches it on", wasOff, nothing),
	fleet.VerbPowerOff:   operation(fleet.OperationPowerOff, "%s switches it off", nothing, interrupted),
	fleet.VerbPowerCycle: operation(fleet.OperationPowerCycle, "%s switches it off and on", nothing, interrupted),
	fleet.VerbRelease:    operation(fleet.OperationRelease, "it is given back to %s", afterRelease, lost),
	fleet.VerbReplace:    operation(fleet.OperationReplace, "it is given back to %s", afterReplacement, lost),
	fleet.VerbWithdraw: {
		Possible: func(x Case) error { return Withdrawable(x.Record) },
		Does: func(x Case) string {
			if open := x.Record.OpenOperation(); open != nil {
				return fmt.Sprintf("the %s that %s asked for is called off%s", open.Operation, open.Actor, afterCallOff(x.Record))
			}
			return "the operation that was asked for is called off"
		},
	},
	fleet.VerbReinstall: {
		Doer:     fleet.RoleInitializer, // it begins with an agent, here and below
		Possible: func(x Case) error { return Kept(x.Record) },
		Does: func(x Case) string {
			does := x.Install.Image.Label() + " is installed"
			if eraseToo(x.Record) != "" && !x.Install.RootDisk.Erase {
				does = "what runs on it ends, and " + does + ", unless its disk holds what no install of Ironherd has put there: that needs --erase"
			}
			return does + map[fleet.State]string{
				fleet.StateQuarantined: " when its quarantine ends", fleet.StateMaintenance: " when its maintenance ends",
			}[x.State]
		},
		Destroys: func(Case) string { return "what is on the disk" },
	},
	fleet.VerbCancelInstall: {
		Possible: func(x Case) error { return cancellable(x.Record) },
		Does:     func(x Case) string { return "the install is called off" + startGoesOn(x.Record) },
		Destroys: func(x Case) string {
			_, disk := Cancelled(x.Record)
			return disk
		},
	},
	fleet.VerbQuarantine: {
		Possible: func(x Case) error { return quarantinable(x.Record, x.Actor) },
		Does: func(x Case) string {
			does := "all work is kept away from it"
			if open := x.Record.OpenOperation(); open != nil && Withdrawable(x.Record) == nil {
				does += fmt.Sprintf(", and the %s that %s asked for is called off%s", open.Operation, open.Actor, mayStayOff(x.Record))
			}
			if q := x.Record.Quarantine; q != nil {
				return does + x.goesOn() + x.replaced("quarantine", q.Actor, q.Reason)
			}
			return does + x.goesOn()
		},
	},
	fleet.VerbUnquarantine: {
		Doer:     fleet.RoleInitializer,
		Possible: func(x Case) error { return quarantined(x.Record) },
		Does: func(x Case) string {
			if q := x.Record.Quarantine; q != nil {
				return fmt.Sprintf("the quarantine by %s ends (%s), and work comes back to it", fleet.ShownActor(q.Actor), q.Reason)
			}
			return "work comes back to it"
		},
	},
	fleet.VerbBeginMaintenance: {
		Possible: func(x Case) error { return cmp.Or(maintainable(x), CheckEnd("maintenance", x.Until, x.Now)) },
		Does: func(x Case) string {
			until := fmt.Sprintf("`ironherd machine maintenance end %s --reason WHY`", x.Record.ID)
			if x.Until != nil {
				until = fleet.Instant(*x.Until)
			}
			does := "nothing touches its host until " + until + x.goesOn()
			if m := x.Record.Maintenance; x.Record.InMaintenance() {
				return does + x.replaced("maintenance", m.Actor, m.Reason)
			}
			return does
		},
	},
	fleet.VerbEndMaintenance: {
		Doer:     fleet.RoleInitializer,
		Possible: func(x Case) error { return maintained(x.Record) },
		Does: func(x Case) string {
			if m := x.Record.Maintenance; x.Record.InMaintenance() {
				return fmt.Sprintf("the maintenance by %s ends (%s), and its host is looked after again", fleet.ShownActor(m.Actor), m.Reason)
			}
			return "its host is looked after again"
		},
	},
	fleet.VerbMarkInstalled: {
		Possible: func(x Case) error { return cmp.Or(Kept(x.Record), markable(x)) },
		Does: func(x Case) string {
			return "an operating system runs there, and is left alone" + AnswersRequest(x.Record)
		},
	},
	fleet.VerbForget: {
		Possible: func(x Case) error {
			_, refused := Forgettable(x.Record, x.Service)
			return refused
		},
		Does: func(x Case) string {
			does := "what is known of it is removed here, but for its history"
			if open := x.Record.OpenOperation(); open != nil && open.Operation == fleet.OperationRelease {
				does += afterRelease(x.Record)
			}
			return does
		},
		Destroys: func(x Case) string {
			if abandoned, _ := Forgettable(x.Record, x.Service); abandoned {
				return fmt.Sprintf("our hold on it: no control plane serves %s, which may have it still; it is not given back, and what runs on it "+
					"goes on, unless another provider lists that host and takes it in anew", x.Record.Provider)
			}
			if inUse(x.Record) != "" && lifecycle.Listed(x.Record) {
				return "our hold on it: if a list has its host, under whatever id, the host is taken in anew, and what runs on it ends"
			}
			return ""
		},
	},
}

// Of is what the verb does. One of a newer version, which may have made the plan, is possible
// nowhere.
func Of(v fleet.Verb) Meaning {
	if known, is := meanings[v]; is {
		return known
	}
	return Meaning{
		Possible: func(Case) error { return fleet.Errorf(fleet.KindInvalid, "no verb is named %q", v) },
		Does:     func(Case) string { return "" },
	}
}

// operation is a verb that the provider carries out, whose name does takes. After says more.
func operation(o fleet.Operation, does string, after, destroys func(r fleet.Record) string) Meaning {
	return Meaning{
		Doer: fleet.RoleOperations,
		Possible: func(x Case) error {
			_, err := Askable(x.Record, o)
			return err
		},
		Does: func(x Case) string {
			return fmt.Sprintf(does, x.Record.Provider) + after(x.Record) + CallsOff(fleet.Verb(o), x.Record)
		},
		Destroys: func(x Case) string { return destroys(x.Record) },
	}
}

// wasOff says of a machine that is switched on how it was switched off; "": it was not.
func wasOff(r fleet.Record) string {
	if off := lifecycle.SwitchedOff(r); off != "" {
		return ", which was " + off
	}
	return ""
}

// interrupted is what a restart destroys; "": nothing.
func interrupted(r fleet.Record) string {
	switch {
	case r.OpenInstallAttempt() != nil:
		return "the install ends half-written"
	case inUse(r) != "":
		return "the system that runs is interrupted"
	}
	return ""
}

func nothing(fleet.Record) string { return "" }

func lost(fleet.Record) string { return "the machine is not ours any more, and what is on it is lost" }

// replaced says what the verb takes the place of; "" where that was begun for the same reason.
func (x Case) replaced(what, actor, reason string) string {
	if reason == x.Reason {
		return ""
	}
	return fmt.Sprintf("; it takes the place of the %s by %s: %s", what, fleet.ShownActor(actor), reason)
}
