package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
	"github.com/ironherd/ironherd/internal/sim/fault"
	"github.com/ironherd/ironherd/internal/sim/hardware"
	"github.com/ironherd/ironherd/internal/sim/journal"
)

// providerConfig returns the configuration of this world's provider.
func (w *World) providerConfig(state map[string][]byte) equinixapi.Config {
	d := w.cfg.Durations
	return equinixapi.Config{
		Seed: w.self.Seed, World: w.self.ID, Token: w.self.Token, Reservations: w.self.Machines, OnDemand: w.self.OnDemand, Plans: plans(),
		Slot: w.slot, Hardware: w, State: state, Logger: w.cfg.Logger,
		Durations: equinixapi.Durations{
			Queued: w.cfg.span(d.Queued), Provisioning: w.cfg.span(d.Provisioning), PowerOff: w.cfg.span(d.PowerOff),
			PowerOn: w.cfg.span(d.PowerOn), Reboot: w.cfg.span(d.Reboot), Deprovisioning: w.cfg.span(d.Deprovisioning),
		},
		Commit: func(changes ...equinixapi.Change) error {
			batch := make([]journal.Change, len(changes))
			for i, c := range changes {
				batch[i] = journal.Change{Key: "api/" + c.Key, Value: c.Value}
			}
			return w.journal.Append(batch...)
		},
		Disturb:          w.disturb,
		LoseReply:        w.happens(fault.LostReply),
		FailProvisioning: w.happens(fault.ProvisionFail),
		FailReinstall:    w.happens(fault.ReinstallFail),
		Shuffle:          w.happens(fault.ListOrder),
		Forbid:           w.happens(fault.GoneIs403),
		NameLate:         w.happens(fault.ReservationNamesLate),
		Stale:            w.lasts(fault.StaleGet),
		Early:            w.lasts(fault.ListEarly),
		Steal:            w.lasts(fault.CapacityStolen),
		Vanish:           w.lasts(fault.DeviceVanishes),
	}
}

// happens returns what asks for a fault.
func (w *World) happens(kind fault.Kind) func() bool {
	return func() bool {
		_, ok := w.faults.Fire(kind)
		return ok
	}
}

// lasts returns what asks for a fault, and says how long it lasts; 0: it does not happen.
func (w *World) lasts(kind fault.Kind) func() time.Duration {
	return func() time.Duration {
		shot, _ := w.faults.Fire(kind)
		return shot.Duration
	}
}

// disturb decides which faults happen to an API request. At most one of the faults that replace the
// answer happens.
func (w *World) disturb() equinixapi.Disturbance {
	var d equinixapi.Disturbance
	if shot, ok := w.faults.Fire(fault.Slow); ok {
		d.Delay = shot.Duration
	}
	if w.revoked(time.Now()) {
		d.Status = http.StatusUnauthorized
		return d
	}
	for _, f := range []struct {
		kind fault.Kind
		do   func(fault.Shot)
	}{
		{fault.LostRequest, func(fault.Shot) { d.Cut = true }},
		{fault.Throttled, func(s fault.Shot) { d.Status, d.RetryAfter = 429, s.Duration }},
		{fault.ThrottledBare, func(fault.Shot) { d.Status = 429 }},
		{fault.Internal, func(fault.Shot) { d.Status = 500 }},
		{fault.BadGateway, func(fault.Shot) { d.Status = 502 }},
	} {
		if shot, ok := w.faults.Fire(f.kind); ok {
			f.do(shot)
			break
		}
	}
	return d
}

// revoked says whether the token does not count for the moment, and decides whether that begins.
func (w *World) revoked(at time.Time) bool {
	if at.UnixNano() < w.revokedUntil.Load() {
		return true
	}
	shot, ok := w.faults.Fire(fault.TokenRevoked)
	if ok {
		w.revokedUntil.Store(at.Add(shot.Duration).UnixNano())
	}
	return ok
}

// slot describes the hardware in a slot to the provider.
func (w *World) slot(slot int) equinixapi.Slot {
	if s, ok := w.slots.Load(slot); ok {
		return s.(equinixapi.Slot)
	}
	m := hardware.New(w.self.Seed, slot)
	metros := equinixapi.Metros()
	s := equinixapi.Slot{
		Plan: m.Model.Plan, Metro: metros[int(m.UUID[0])%len(metros)], PublicV4: publicAddress(w.self.Network, slot), PrivateV4: privateAddress(slot),
		PublicV6: publicAddress6(slot), MACs: [2]string{m.NICs[0].MAC, m.NICs[1].MAC},
	}
	w.slots.Store(slot, s)
	return s
}

// plans describes the models as the provider sells them.
func plans() []equinixapi.Plan {
	var list []equinixapi.Plan
	for _, m := range hardware.Models() {
		p := equinixapi.Plan{
			Slug: m.Plan, CPUs: m.Sockets, CPU: m.DescriptionOfCPU, MemoryGB: m.DIMMs * m.DIMM.SizeMiB / 1024, NICs: 2,
			NIC: fmt.Sprintf("%dGbps", m.NIC.SpeedMbps/1000), UEFI: m.EFI,
		}
		for _, d := range m.Disks {
			drive := equinixapi.Drive{Count: 1, Size: size(d.Size), Type: driveType(d)}
			if last := len(p.Drives) - 1; last >= 0 && p.Drives[last].Size == drive.Size && p.Drives[last].Type == drive.Type {
				p.Drives[last].Count++
				continue
			}
			p.Drives = append(p.Drives, drive)
		}
		list = append(list, p)
	}
	// No machine is one of these: a catalogue has more than a customer has.
	return append(list, equinixapi.Plan{
		Slug: "s3.xlarge.x86", CPUs: 2, CPU: "Intel Xeon 4214", MemoryGB: 192, NICs: 2, NIC: "10Gbps", ReservedOnly: true,
		Drives: []equinixapi.Drive{{Count: 2, Size: "960GB", Type: "SSD"}, {Count: 12, Size: "8TB", Type: "HDD"}},
	})
}

func size(bytes int64) string {
	if bytes >= 1e12 {
		return strings.Replace(fmt.Sprintf("%.1fTB", float64(bytes)/1e12), ".0TB", "TB", 1)
	}
	return fmt.Sprintf("%dGB", bytes/1e9)
}

func driveType(d hardware.DiskModel) string {
	switch {
	case d.NVMe:
		return "NVME"
	case d.Rotational:
		return "HDD"
	}
	return "SSD"
}

// errNoMachine says that a device has no machine.
var errNoMachine = errors.New("the device has no machine")

func (w *World) host(device string) (*host, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.hosts[device]; h != nil {
		return h, nil
	}
	return nil, errNoMachine
}

// Deploy gives a device its machine. It is part of equinixapi.Hardware, as the following are, and
// not for other callers.
func (w *World) Deploy(ctx context.Context, d equinixapi.Deployment, notBefore time.Time) error {
	h, err := w.host(d.Device)
	if err != nil {
		h = &host{world: w}
	}
	if h.snapshot().Generation == d.Generation { // before a kill, or while the world was not running
		return h.waitUp(ctx)
	}
	if err := w.clearSlot(ctx, d); err != nil {
		return err
	}
	if err := h.off(ctx); err != nil {
		return err
	}
	if err := h.install(ctx, d); err != nil {
		return err
	}
	if err := h.boot(bootDeploy, notBefore); err != nil {
		return err
	}
	w.mu.Lock()
	w.hosts[d.Device] = h
	w.mu.Unlock()
	return h.waitUp(ctx)
}

// clearSlot removes the machine of a deleted device that still is in the slot.
func (w *World) clearSlot(ctx context.Context, d equinixapi.Deployment) error {
	w.mu.Lock()
	hosts := maps.Clone(w.hosts)
	w.mu.Unlock()
	for device, h := range hosts {
		if device == d.Device || h.snapshot().Slot != d.Slot {
			continue
		}
		if err := w.Remove(ctx, device); err != nil {
			return err
		}
	}
	return nil
}

// Reset restarts a machine.
func (w *World) Reset(device string, rescue bool) error {
	h, err := w.host(device)
	if err != nil {
		return err
	}
	if rescue {
		return h.boot(bootRescue, time.Time{})
	}
	return h.boot(bootReset, time.Time{})
}

// PowerOff turns a machine off.
func (w *World) PowerOff(ctx context.Context, device string) error {
	h, err := w.host(device)
	if err != nil {
		return err
	}
	return h.off(ctx)
}

// PowerOn turns a machine on.
func (w *World) PowerOn(_ context.Context, device string) error {
	h, err := w.host(device)
	if err != nil {
		return err
	}
	return h.boot(bootPowerOn, time.Time{})
}

// Remove removes a machine and everything on it.
func (w *World) Remove(ctx context.Context, device string) error {
	h, err := w.host(device)
	if errors.Is(err, errNoMachine) {
		return nil
	}
	if err := h.off(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	if w.hosts[device] != h { // another call has removed it
		w.mu.Unlock()
		return nil
	}
	next := w.past
	next.add(h.snapshot())
	text, err := json.Marshal(next)
	if err == nil {
		err = w.journal.Append(journal.Change{Key: "host/" + device}, journal.Change{Key: "past", Value: text})
	}
	if err == nil {
		delete(w.hosts, device)
		w.past = next
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return h.removeFiles()
}
