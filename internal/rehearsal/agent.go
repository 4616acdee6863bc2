package rehearsal

import (
	"fmt"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// agent is what a takeover leaves on a host.
type agent struct {
	host     *host
	identity bmdb.AgentIdentity
	since    time.Time
	ended    bool
	// superseded: a later takeover is in charge of the host, and this one goes on talking.
	superseded bool
	hardware   bool
	// last is the newest attempt that it was handed; install is the one under way.
	last    attempt
	install *install
	// report is what is not acknowledged yet.
	report *fleet.InstallReport
	next   *event
	// heard is when a control plane last acknowledged it.
	heard time.Time
}

// disk is the only one that a host has.
const disk = "/dev/sda"

// again is how soon an agent tries again that was not heard.
const again = 10 * time.Second

func newAgent(h *host, machine fleet.MachineID, generation fleet.TakeoverGeneration, key []byte) *agent {
	a := &agent{
		host: h, since: h.world.now, identity: bmdb.AgentIdentity{Machine: machine, TakeoverGeneration: generation, PublicKey: key},
	}
	a.next = h.world.after(h.world.between("first heartbeat", time.Second, again), a.beat)
	return a
}

// end is the end of its process.
func (a *agent) end() {
	a.ended = true
	a.host.world.cancel(a.next)
	if a.install != nil {
		a.host.world.cancel(a.install.done)
		a.install = nil
	}
}

// supersede ends it when a later takeover takes its place, unless it is one that lies.
func (a *agent) supersede() {
	if a.install != nil {
		a.host.world.cancel(a.install.done)
		a.install = nil
	}
	if e, on := a.host.world.fault(AgentLies); on && a.host.device.index() == e.Target {
		a.superseded = true
		return
	}
	a.end()
}

// beat is one heartbeat.
func (a *agent) beat() {
	w := a.host.world
	if a.ended || !a.host.reachable() {
		return
	}
	if a.superseded && !w.on(AgentLies) {
		a.end()
		return
	}
	interval := w.setup.Policy.HeartbeatInterval
	l := a.host.listening()
	if l == nil {
		a.next = w.after(again, a.beat)
		return
	}
	err := l.heartbeat(a)
	if err != nil {
		w.trace("%s: heartbeat: %s", a.host.device.capacity, fleet.KindOf(err))
		interval = again
	}
	if a.ended { // it has rebooted the machine
		return
	}
	a.next = w.after(w.between("heartbeat", interval*9/10, interval), a.beat)
}

// install is an install under way.
type install struct {
	agent  *agent
	id     attempt
	secret []byte
	// probed: the control plane asks whether the system is up, and nobody tells it.
	probed bool
	// foreign: the disk holds what the machine came with, and the request does not allow that to be
	// erased.
	foreign bool
	// limit: the writing takes longer than this, and the agent ends it then; zero: it does not.
	limit time.Duration
	done  *event
}

// start begins an install that was handed out.
func (a *agent) start(order *bmdb.InstallOrder) {
	w, h := a.host.world, a.host
	in := &install{
		agent: a, id: attempt{order.Request.Generation, order.Attempt}, secret: order.Secret, probed: order.Request.SeenUp.By != fleet.SeenByUnit,
		foreign: h.system == attempt{} && !order.Request.RootDisk.Erase,
	}
	w.watch.installs(h, a, in.id)
	w.trace("%s: install %d/%d begins", h.device.capacity, in.id.generation, in.id.number)
	a.last, a.install = in.id, in
	takes := time.Second
	if !in.foreign {
		takes = w.between("install", 90*time.Second, 6*time.Minute)
	}
	if takes > order.Timeout {
		takes, in.limit = order.Timeout, order.Timeout
	}
	in.done = w.after(takes, in.end)
}

// refusal is the report of an agent that leaves alone what the disk holds.
const refusal = disk + " holds a partition table, and the request does not allow that to be erased (--erase, or root_disk: {erase: true}); nothing was written"

// end is the end of the writing.
func (in *install) end() {
	a := in.agent
	h, w := a.host, a.host.world
	a.install = nil
	if a.ended || !h.reachable() {
		return
	}
	report := fleet.InstallReport{Generation: in.id.generation, Attempt: in.id.number, OK: true, Disk: disk, Duration: time.Minute, Bytes: 1 << 30}
	fault := ""
	switch {
	case in.foreign:
		fault, w.refusedAt = refusal, h.device.source.name
	case in.limit > 0:
		fault = fmt.Sprintf("the install did not end within %s", in.limit)
	case w.hits(InstallFails, "install"):
		fault = "the image server closed the connection"
	}
	if fault != "" {
		report.OK, report.Error, report.Disk, report.Bytes, report.NeedsErase = false, fault, "", 0, in.foreign
		h.sick = true
	} else {
		h.system, h.written, h.pending, h.unit[in.id] = in.id, h.boots, in, !in.probed
	}
	a.report = &report
	w.cancel(a.next)
	a.next = w.after(0, a.beat)
}

// up is what the installed system says when it has booted, until it is heard.
func (in *install) up() {
	h, w := in.agent.host, in.agent.host.world
	if h.pending != in || !h.reachable() || h.booted != in.id {
		return
	}
	if l := h.listening(); l != nil {
		next, err := l.controller.db.RecordInstalled(w.ctx, in.agent.identity.Machine, in.id.generation, in.id.number, in.secret, h.bootID(),
			h.key().Key)
		w.trace("%s: install %d/%d is up: %s", h.device.capacity, in.id.generation, in.id.number, errorKind(err))
		if err == nil && in.probed {
			h.pending = nil // its word shows that the disk was written, and a probe the rest
			return
		}
		if err == nil {
			h.pending, h.recovering = nil, time.Time{} // it was heard
			w.watch.installed(h, in)
			if next > 0 {
				boots := h.boots
				h.calling = in
				w.after(next, func() { in.call(boots) })
			}
			return
		}
	}
	w.after(again, in.up)
}

// call is the unit of a watched system, which calls again and again until the host boots anew.
func (in *install) call(boots int) {
	h, w := in.agent.host, in.agent.host.world
	if h.calling != in || h.booted != in.id || h.boots != boots {
		return
	}
	next := again
	if l := h.listening(); l != nil && h.reachable() {
		interval, err := l.controller.db.RecordInstalled(w.ctx, in.agent.identity.Machine, in.id.generation, in.id.number, in.secret, h.bootID())
		if err == nil && interval == 0 {
			return
		}
		if err == nil {
			next = interval
		}
		w.trace("%s: install %d/%d calls: %s", h.device.capacity, in.id.generation, in.id.number, errorKind(err))
	}
	w.after(next, func() { in.call(boots) })
}

// listener is the agent API of one controller.
type listener struct {
	controller *controller
	// spoken is what this process knows of each agent, heard who is to be written with the next flush.
	spoken map[fleet.MachineID]spoken
	heard  []*agent
}

type spoken struct {
	generation fleet.TakeoverGeneration
	boot       string
	at         time.Time
}

func newListener(c *controller) *listener {
	l := &listener{controller: c, spoken: make(map[fleet.MachineID]spoken)}
	c.every(c.world.flushEvery(), l.flush)
	return l
}

// flushEvery is how often listeners write what they have heard.
func (w *world) flushEvery() time.Duration {
	return min(w.setup.Policy.HeartbeatInterval/2, time.Minute)
}

// listening returns a listener that the host reaches; nil when there is none. One that is cut off
// looks like one that is broken, so that recovery may give it up.
func (h *host) listening() *listener {
	w := h.world
	switch {
	case w.on(AgentsCutOff):
		h.sick = true
		return nil
	case w.on(ListenerDown):
		return nil
	}
	var up []*listener
	for _, c := range w.controllers {
		if !c.dead && c.pausedFor() <= 0 {
			up = append(up, c.listener)
		}
	}
	if len(up) == 0 {
		return nil
	}
	return up[w.random("listener").IntN(len(up))]
}

// flush writes repeated heartbeats, and that the listener is alive.
func (l *listener) flush() {
	w := l.controller.world
	if w.on(ListenerDown) {
		return
	}
	db := l.controller.db
	if err := db.ListenerAlive(w.ctx, w.flushEvery(), w.setup.Policy.HeartbeatInterval); err != nil {
		return
	}
	heard := l.heard
	seen := make([]bmdb.Seen, len(heard))
	for i, a := range heard {
		seen[i] = bmdb.Seen{Machine: a.identity.Machine, TakeoverGeneration: a.identity.TakeoverGeneration}
	}
	if len(seen) == 0 || db.FlushSeen(w.ctx, seen) != nil {
		return // they are written with the next one
	}
	for _, a := range heard {
		a.wasHeard(w.now)
	}
	l.heard = nil
}

// wasHeard notes that it is durable that the agent spoke. If it was started since recovery took a
// step, the step has helped, whatever becomes of the agent.
func (a *agent) wasHeard(now time.Time) {
	a.heard = now
	if !a.since.Before(a.host.recovering) {
		a.host.recovering = time.Time{}
	}
}

// heartbeat serves one heartbeat of an agent. What it returns nil for is durable.
func (l *listener) heartbeat(a *agent) error {
	c, w, id := l.controller, l.controller.world, a.identity
	c.step()
	if c.dead {
		return errDead
	}
	boot := a.host.bootID()
	if e, on := w.fault(AgentLies); on && a.host.device.index() == e.Target && w.chance("old boot", 30) {
		boot = fmt.Sprintf("boot-%s-0", a.host.device.id)
	}
	was := l.spoken[id.Machine]
	if was.generation == id.TakeoverGeneration && was.boot == boot && w.now.Sub(was.at) <= 2*w.setup.Policy.HeartbeatInterval {
		l.heard = append(l.heard, a)
	} else {
		if err := c.db.RecordSpoken(w.ctx, id, boot); err != nil {
			return err
		}
		w.watch.spoke(a)
		a.wasHeard(w.now)
	}
	l.spoken[id.Machine] = spoken{id.TakeoverGeneration, boot, w.now}
	if !a.hardware {
		if err := c.db.RecordHardware(w.ctx, id, []byte("hardware of "+a.host.device.capacity), nil); err != nil {
			return err
		}
		a.hardware = true
	}
	return l.installs(a)
}

// installs serves the part of a heartbeat that is about installs.
func (l *listener) installs(a *agent) error {
	c, w, id, h := l.controller, l.controller.world, a.identity, a.host
	if e, on := w.fault(AgentLies); on && h.device.index() == e.Target && w.chance("lie", 40) {
		// A report of an attempt that nobody handed out, or of one before the newest.
		lie := fleet.InstallReport{Generation: a.last.generation, Attempt: a.last.number + 1 - w.random("which lie").IntN(3), OK: true, Disk: disk}
		if lie.Attempt != a.last.number && lie.Attempt > 0 {
			err := c.db.RecordInstallReport(w.ctx, id, lie)
			w.watch.lied(h, id.Machine, lie, err)
		}
	}
	if a.report != nil {
		report := *a.report
		if err := c.db.RecordInstallReport(w.ctx, id, report); err != nil {
			return err
		}
		w.watch.reported(h, id.Machine, report)
		a.report = nil
		if report.OK {
			h.restart("installed")
			return nil
		}
	}
	if a.install != nil {
		return l.cancelled(a)
	}
	if !w.wanted[id.Machine] {
		return nil
	}
	order, err := c.db.HandOutInstall(w.ctx, id, a.last.generation, a.last.number)
	if err != nil {
		return err
	}
	if order == nil {
		return nil
	}
	w.watch.handedOut(h, attempt{order.Request.Generation, order.Attempt})
	if w.hits(LostReplies, "install order") {
		return errNoAnswer // it is never started
	}
	a.start(order)
	return nil
}

// cancelled ends an install that was called off.
func (l *listener) cancelled(a *agent) error {
	w := l.controller.world
	if !w.mayBeOff[a.identity.Machine] {
		return nil
	}
	id := a.install.id
	off, err := l.controller.db.InstallUnwanted(w.ctx, a.identity.Machine, id.generation)
	if err != nil || !off {
		return err
	}
	w.cancel(a.install.done)
	a.install = nil
	a.report = &fleet.InstallReport{Generation: id.generation, Attempt: id.number, Error: "called off"}
	return nil
}
