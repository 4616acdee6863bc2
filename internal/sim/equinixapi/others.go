package equinixapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// asked returns what a fault says, which may not be configured.
func asked(fault func() time.Duration) time.Duration {
	if fault == nil {
		return 0
	}
	return fault()
}

// happens asks for a fault, which may not be configured.
func happens(fault func() bool) bool { return fault != nil && fault() }

// ofDevice answers 403 for a device that is gone, where that fault happens.
func (a *API) ofDevice(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.RLock()
		gone := a.gone[r.PathValue("id")] != nil
		a.mu.RUnlock()
		if gone && happens(a.cfg.Forbid) {
			writeErrors(w, http.StatusForbidden, forbidden)
			return
		}
		next(w, r)
	}
}

// asOf returns the device as it was at an earlier instant, as far as that is remembered; false when
// there was none.
func (d *device) asOf(at time.Time) (*device, bool) {
	if d.Created.After(at) {
		return nil, false
	}
	if d.before != nil && d.Updated.After(at) {
		return d.before, true
	}
	return d, true
}

// maybeSteal lets somebody else have the reservation of a request first. It does nothing when the
// reservation is not to be had.
func (a *API) maybeSteal(project string, q *createRequest) {
	if q.HardwareReservationID == "" || q.HardwareReservationID == nextAvailable {
		return
	}
	keeps := asked(a.cfg.Steal)
	if keeps == 0 {
		return
	}
	thief := &createRequest{
		Hostname: "somebody-else", OperatingSystem: q.OperatingSystem, HardwareReservationID: q.HardwareReservationID,
		Tags: names{"somebody-else"}, NoSSHKeys: true, stolenFor: keeps,
	}
	if _, err := a.create(project, []*createRequest{thief}, nil); err != nil {
		a.cfg.Logger.Debug("nobody took the reservation", slog.String("reservation", q.HardwareReservationID), slog.Any("err", err))
	}
}

// vanishAfter says how long after its provisioning a new device will be gone; 0: it stays.
func (d *device) vanishAfter(stays time.Duration) {
	if stays > 0 {
		at := d.To.Add(stays)
		d.Vanishes = &at
	}
}

// vanishLater removes a device when its time has come, as if somebody had deleted it. Before Start
// it does nothing, because Start calls it, too. The caller holds the lock.
func (a *API) vanishLater(d *device) {
	if d.Vanishes == nil || a.spawn == nil {
		return
	}
	a.spawn(func(ctx context.Context) {
		if until(ctx, *d.Vanishes) {
			a.vanish(d.ID)
		}
	})
}

func (a *API) vanish(id string) {
	err := a.locked(func() error {
		if d := a.devices[id]; d != nil {
			return a.forget([]*device{d})
		}
		return nil
	})
	if err != nil {
		a.cfg.Logger.Error("device stays as it is", slog.String("device", id), slog.Any("err", err))
	}
}
