package rehearsal

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// insist has a person do what follows an event: after a while, and each minute until it is done. A
// reason why it is refused is told once.
func (w *world) insist(e Event, d *device, after time.Duration, try func() (done bool, err error)) {
	told := ""
	var again func()
	again = func() {
		done, err := try()
		w.trace("what follows %s: %s", e.What, errorKind(err))
		if err != nil && err.Error() != told {
			told = err.Error()
			w.refused(tellings[e.What].asked, d, err)
		}
		if !done {
			w.after(time.Minute, again)
		}
	}
	w.after(after, again)
}

// byHand changes a device without our doing, and has a person tell us later.
func (w *world) byHand(e Event, d *device) {
	h, s := d.host, d.source
	if d.status != fleet.ProviderStatusActive {
		return
	}
	switch e.What {
	case HostKeyChanges:
		h.strike(AgentDies)
		h.keys++
		w.insist(e, d, e.For, func() (bool, error) { return w.acceptKey(d) })
	case Vanishes:
		machine := w.machineOf(d)
		s.remove(d)
		if machine == "" {
			return
		}
		w.insist(e, d, e.For, func() (bool, error) {
			err := w.act(machine, fleet.VerbForget, nil)
			return err == nil || fleet.KindOf(err) == fleet.KindNotFound, err
		})
	}
}

// acceptKey accepts the key that a host has shown. It is done when that key is known, or the host
// is gone.
func (w *world) acceptKey(d *device) (done bool, err error) {
	machine := w.machineOf(d)
	if d.gone || machine == "" {
		return d.gone, nil
	}
	keys, err := w.db.HostKeys(w.ctx, machine)
	if err != nil {
		return fleet.KindOf(err) == fleet.KindNotFound, err
	}
	key := d.host.key()
	if len(keys.Known) == 0 || slices.Contains(keys.Known, key.Key) {
		return true, nil
	}
	if keys.Refused != key.Key {
		return false, nil // it was not asked for its key yet
	}
	err = w.db.AcceptHostKey(w.ctx, person, machine, key.Key, key.Fingerprint, reason)
	return err == nil, err
}

// foreign makes a device that nobody of us has asked for, where there is none, and has it adopted
// later.
func (w *world) foreign(e Event) {
	s := w.providers[0].base()
	capacity := s.capacity[e.Target%len(s.capacity)]
	if s.on(capacity) != nil {
		return
	}
	d := s.land(capacity, "", "")
	d.status = fleet.ProviderStatusActive
	d.host.boot(0)
	w.insist(e, d, e.For, func() (bool, error) {
		if d.gone || w.machineOf(d) != "" {
			return true, nil
		}
		return false, w.db.RequestAdoption(w.ctx, person, s.name, d.id, false, reason)
	})
}

// pauseProviders pauses every provider for a while.
func (w *world) pauseProviders(lasts time.Duration) {
	for _, p := range w.providers {
		s := p.base()
		if err := w.db.PauseProvider(w.ctx, person, s.name, reason); err != nil {
			w.trace("%s is not paused: %s", s.name, errorKind(err))
			w.note("%s of %s comes to nothing: %s", tellings[AskPause].asked, s.name, w.anonymous(err.Error()))
			continue
		}
		paused := w.now
		s.paused = paused
		w.after(lasts, func() {
			if s.paused.Equal(paused) { // the newest pause counts
				s.paused = time.Time{}
				err := w.db.ResumeProvider(w.ctx, person, s.name, reason)
				w.trace("%s is resumed: %s", s.name, errorKind(err))
				if err != nil {
					w.note("%s is not resumed: %s", s.name, w.anonymous(err.Error()))
				}
			}
		})
	}
}
