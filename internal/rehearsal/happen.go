package rehearsal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// happen begins a fault, or asks for something in a person's name.
func (w *world) happen(e Event) {
	w.trace("event: %s", e)
	w.tell(e.told())
	switch e.What {
	case Crash, Pause:
		w.disturb(e)
	case HostHangs, HostDies, DiskLost, AgentDies:
		if d := w.target(e); d != nil {
			d.host.strike(e.What)
		}
	case PowerLost:
		w.powerLoss(e, func(*device) bool { return w.chance("power", e.Share) })
	case RackLost:
		w.powerLoss(e, func(d *device) bool { return d.rack() == e.Target%racks })
	case AskInstall, AskReinstall, AskCancel, AskReboot, AskPowerCycle, AskPowerOff, AskPowerOn, AskRelease, AskReplace, AskQuarantine,
		AskUnquarant, AskMaintain, AskMaintained, AskWithdraw:
		if d := w.target(e); d != nil {
			w.ask(e, d)
		}
	case HostKeyChanges, Vanishes:
		if d := w.target(e); d != nil {
			w.byHand(e, d)
		}
	case Foreign:
		w.foreign(e)
	case AskPause:
		w.pauseProviders(e.For)
	case TenthFails:
		w.tenthFails()
	case AskDeploy:
		what := AskInstall
		if w.plan.Lead { // they may be installed already
			what = AskReinstall
		}
		for _, p := range w.providers {
			for _, d := range slices.Clone(p.base().devices) {
				if w.plan.Lead && w.machineOf(d) == "" { // a host of a list that was not taken in
					continue
				}
				if w.chance("deploy", e.Share) {
					w.ask(Event{What: what}, d)
				}
			}
		}
	default:
		w.last(e)
	}
}

// last lets a fault last for its time.
func (w *world) last(e Event) {
	if e.What == StaleList {
		for _, p := range w.providers {
			p.base().stale = p.base().entries()
		}
	}
	w.active = append(w.active, e)
	w.after(e.For, func() {
		i := slices.Index(w.active, e)
		if i < 0 {
			return
		}
		w.active = slices.Delete(slices.Clone(w.active), i, i+1)
		w.tell(tellings[e.What].ends)
		if e.What == StaleList {
			for _, p := range w.providers {
				p.base().stale = nil
			}
		}
	})
}

// disturb lets a controller crash or pause, now or at a step.
func (w *world) disturb(e Event) {
	c := w.controllers[e.Target%len(w.controllers)]
	if c.dead {
		return
	}
	s := &stop{steps: e.Step, lasts: e.For, in: e.In}
	switch {
	case e.What == Crash && e.Step == 0:
		c.kill(e.For)
	case e.What == Crash:
		c.crash = s
	case e.Step == 0:
		c.suspend(e.For)
	default:
		c.pause = s
	}
}

// target is the device that an event is about; nil: there is none yet.
func (w *world) target(e Event) *device {
	s := w.providers[0].base()
	return s.on(s.capacity[e.Target%len(s.capacity)])
}

// strike breaks a host.
func (h *host) strike(what What) {
	if h.device.status == fleet.ProviderStatusCreating {
		return // it is not ours to lose yet
	}
	h.sick = true
	switch what {
	case HostHangs:
		h.hangs = true
	case HostDies:
		h.dead = true
		h.halt()
	case DiskLost:
		h.diskLost = true
		h.halt()
	case AgentDies:
		if h.agent != nil {
			h.agent.end()
			h.agent = nil
		}
	}
}

// powerLoss takes the power from some machines for a while.
func (w *world) powerLoss(e Event, hit func(*device) bool) {
	w.after(e.For, func() { w.tell(tellings[e.What].ends) })
	total, parts := 0, make([]string, 0, len(w.providers))
	for _, p := range w.providers {
		n := 0
		for _, d := range slices.Clone(p.base().devices) {
			h := d.host
			if !hit(d) {
				continue
			}
			if !w.plan.Lead || w.machineOf(d) != "" { // else it is a host of a list that was not taken in
				n++
			}
			h.sick, h.powered = true, false
			h.halt()
			w.after(e.For, func() {
				h.powered = true
				h.boots++
				h.boot(w.between("power is back", time.Minute, 3*time.Minute))
			})
		}
		total += n
		parts = append(parts, fmt.Sprintf("%d of %s", n, p.base().name))
	}
	switch {
	case !w.plan.Lead:
	case total == 0:
		w.watch.failed = fleet.Errorf(fleet.KindInvalid, "no machine is in that location: this scenario needs two machines of a provider at least")
	default:
		w.note("without power: %s", strings.Join(parts, ", "))
	}
}

// person asks for everything, and says that as the reason.
const person, reason = "operator", "rehearsed"

// ask asks for something in a person's name. A refusal is an answer, which the timeline tells.
func (w *world) ask(e Event, d *device) {
	machine, err := w.lookUp(d)
	if err != nil {
		w.refused(tellings[e.What].asked, d, err)
		return
	}
	request := *cmp.Or(w.setup.Providers[d.source.number].Provisioner.Install, w.setup.install(person))
	request.Actor = person
	switch e.What {
	case AskInstall:
		_, err = w.db.RequestInstall(w.ctx, person, machine, request, false)
		w.wanted[machine] = true
	case AskReinstall:
		_, err = w.db.RequestInstall(w.ctx, person, machine, request, true)
		w.wanted[machine] = true
	case AskCancel:
		err = w.act(machine, fleet.VerbCancelInstall, nil)
		w.mayBeOff[machine] = true
	case AskReboot:
		err = w.act(machine, fleet.VerbReboot, nil)
	case AskPowerCycle:
		err = w.act(machine, fleet.VerbPowerCycle, nil)
	case AskPowerOff:
		err = w.act(machine, fleet.VerbPowerOff, nil)
	case AskPowerOn:
		err = w.act(machine, fleet.VerbPowerOn, nil)
	case AskRelease:
		err = w.act(machine, fleet.VerbRelease, nil)
	case AskReplace:
		err = w.act(machine, fleet.VerbReplace, nil)
	case AskQuarantine:
		err = w.act(machine, fleet.VerbQuarantine, nil)
		d.host.sick = err == nil || d.host.sick
	case AskUnquarant:
		err = w.act(machine, fleet.VerbUnquarantine, nil)
	case AskMaintain:
		err = w.act(machine, fleet.VerbBeginMaintenance, new(w.now.Add(e.For)))
	case AskMaintained:
		err = w.act(machine, fleet.VerbEndMaintenance, nil)
	case AskWithdraw:
		err = w.act(machine, fleet.VerbWithdraw, nil)
	}
	w.trace("%s of %s: %s", e.What, w.name(string(machine)), errorKind(err))
	if err != nil {
		w.refused(tellings[e.What].asked, d, err)
	}
	if err == nil && e.What != AskMaintained { // which takes nothing from anybody
		w.watch.void(machine)
	}
	if err == nil && e.What != AskInstall && e.What != AskReinstall && e.What != AskMaintained && e.What != AskWithdraw {
		d.host.cut = time.Time{} // it takes the place of what a restart was asked for
	}
}

// act has a person do something to a machine.
func (w *world) act(machine fleet.MachineID, verb fleet.Verb, until *time.Time) error {
	p, err := w.db.CreatePlan(w.ctx, person, bmdb.PlanRequest{Verb: verb, Machines: []fleet.MachineID{machine}, Until: until, Reason: reason})
	if err != nil {
		return err
	}
	if p, err = w.db.ConfirmPlan(w.ctx, person, p.ID); err != nil {
		return err
	}
	if o := p.Outcomes[0]; o.Outcome != bmdb.OutcomeDone {
		return fleet.Errorf(fleet.KindConflict, "%s", o.Detail)
	}
	return nil
}

// refused notes that what a person asked for was refused, and why. It names no machine, so that
// those that are refused for the same reason are counted together.
func (w *world) refused(what string, d *device, err error) {
	id := cmp.Or(string(d.machine), d.hostname())
	names := strings.NewReplacer("machine "+d.hostname(), "the machine", "machine "+id, "the machine", d.hostname(), "NAME", id, "ID")
	w.note("%s comes to nothing: %s", what, w.anonymous(names.Replace(err.Error())))
}

// machineOf returns the machine that a device is; "" when nobody knows it yet.
func (w *world) machineOf(d *device) fleet.MachineID {
	machine, _ := w.lookUp(d)
	return machine
}

// lookUp is machineOf, and says why nobody knows it.
func (w *world) lookUp(d *device) (fleet.MachineID, error) {
	if d.machine != "" {
		return d.machine, nil
	}
	view, err := w.db.ViewProvider(w.ctx, d.source.name)
	if err != nil {
		return "", err
	}
	for _, m := range view.Machines {
		if m.ProviderID == d.id {
			d.machine = m.ID
		}
	}
	if d.machine == "" {
		return "", fleet.Errorf(fleet.KindNotFound, "no machine is known to be a device at %s", d.source.name)
	}
	return d.machine, nil
}
