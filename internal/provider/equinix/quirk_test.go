package equinix

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/providertest"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// quirky runs a test of a provider in front of a simulated API that takes its time, and is as
// unfriendly as change makes it. No socket keeps fake time from passing.
func quirky(t *testing.T, change func(*equinixapi.Config), test func(t *testing.T, s *simulated)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := simulate(t, func(c *equinixapi.Config) {
			c.Durations = equinixapi.Durations{
				Queued: equinixapi.Span{Min: 10 * time.Second}, Provisioning: equinixapi.Span{Min: 3 * time.Minute},
				PowerOff: equinixapi.Span{Min: 40 * time.Second}, PowerOn: equinixapi.Span{Min: 11 * time.Second},
				Reboot: equinixapi.Span{Min: 30 * time.Second}, Deprovisioning: equinixapi.Span{Min: 10 * time.Minute},
			}
			change(c)
		})
		s.provide("http://api.localhost", provider.Options{HTTP: direct{s.api}, Logger: slog.New(slog.DiscardHandler)})
		test(t, s)
	})
}

func always() bool { return true }

// active creates a machine, and waits until it is active.
func (s *simulated) active(capacity fleet.CapacityID) (fleet.ProviderID, fleet.Token) {
	s.t.Helper()
	request := provider.CreateRequest{Capacity: capacity, Token: fleet.NewToken(), Machine: fleet.NewMachineID()}
	made, err := s.provider.Create(s.t.Context(), request)
	if err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(4 * time.Minute)
	s.is(made.ID, fleet.ProviderStatusActive)
	return made.ID, request.Token
}

func (s *simulated) is(id fleet.ProviderID, want fleet.ProviderStatus) {
	s.t.Helper()
	synctest.Wait()
	if entry, err := s.provider.Get(s.t.Context(), id); err != nil || entry.Status != want {
		s.t.Errorf("the machine is %s (%s), %v, want %s", entry.Status, entry.Detail, err, want)
	}
}

func (s *simulated) kind(what string, err error, want fleet.Kind) {
	s.t.Helper()
	if err == nil || fleet.KindOf(err) != want {
		s.t.Errorf("%s: %v (%s), want %s", what, err, fleet.KindOf(err), want)
	}
}

func (s *simulated) started(id fleet.ProviderID, want int) {
	s.t.Helper()
	synctest.Wait()
	_ = s.hardware.see(string(id), func(now *providertest.Seen) {
		if now.Starts != want || !now.On {
			s.t.Errorf("the machine is %+v, and should be on, after %d starts", *now, want)
		}
	})
}

func (s *simulated) levers() map[string]func(context.Context, fleet.ProviderID) error {
	return map[string]func(context.Context, fleet.ProviderID) error{
		"reboot": s.provider.Reboot, "power on": s.provider.PowerOn, "power off": s.provider.PowerOff,
		"power cycle": s.provider.PowerCycle, "reinstall": s.provider.Reinstall,
	}
}

// TestWhatIsGoneIsForbidden: whatever a device is asked for that is gone, the answer is that the
// provider does not have it, and its release has succeeded.
func TestWhatIsGoneIsForbidden(t *testing.T) {
	t.Parallel()
	quirky(t, func(c *equinixapi.Config) { c.Forbid = always }, func(t *testing.T, s *simulated) {
		t.Helper()
		capacity := s.reservations()
		gone, token := s.active(capacity[0])
		stays, _ := s.active(capacity[1])
		s.remove(gone)
		_, err := s.provider.Get(t.Context(), gone)
		s.kind("get", err, fleet.KindNotFound)
		for name, pull := range s.levers() {
			time.Sleep(projectListAge)
			s.kind(name, pull(t.Context(), gone), fleet.KindNotFound)
		}
		_, err = s.provider.FindByToken(t.Context(), capacity[0], token)
		s.kind("find by its token", err, fleet.KindNotFound)
		time.Sleep(projectListAge)
		if err := s.provider.Release(t.Context(), gone); err != nil {
			t.Errorf("release: %v", err)
		}
		s.is(stays, fleet.ProviderStatusActive)
		time.Sleep(10 * time.Minute)
		s.active(capacity[0])
	})
}

// TestGoneDuringAPowerCycle: a device that is deleted while it is being turned off is gone.
func TestGoneDuringAPowerCycle(t *testing.T) {
	t.Parallel()
	for name, forbid := range map[string]func() bool{"404": nil, "403": always} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quirky(t, func(c *equinixapi.Config) { c.Forbid = forbid }, func(t *testing.T, s *simulated) {
				t.Helper()
				id, _ := s.active(s.reservations()[0])
				time.AfterFunc(20*time.Second, func() { s.remove(id) })
				s.kind("power cycle", s.provider.PowerCycle(t.Context(), id), fleet.KindNotFound)
			})
		})
	}
}

// TestAReservationNamesWhatIsGone: it is not free, and not occupied either, until it is free again.
func TestAReservationNamesWhatIsGone(t *testing.T) {
	t.Parallel()
	for name, forbid := range map[string]func() bool{"404": nil, "403": always} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			quirky(t, func(c *equinixapi.Config) {
				c.Forbid, c.NameLate, c.Early = forbid, always, func() time.Duration { return time.Minute }
			}, func(t *testing.T, s *simulated) {
				t.Helper()
				capacity := s.reservations()[0]
				id, token := s.active(capacity)
				if err := s.provider.Release(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				listed := func() (n int) {
					entries, err := s.provider.List(t.Context())
					if err != nil {
						t.Error(err)
					}
					for _, entry := range entries {
						if entry.Capacity == capacity {
							n++
						}
					}
					return n
				}
				request := provider.CreateRequest{Capacity: capacity, Token: fleet.NewToken(), Machine: fleet.NewMachineID(), BeforeCall: neverCalled(t)}
				for _, wait := range []time.Duration{8 * time.Minute, 90 * time.Second} {
					time.Sleep(wait)
					_, err := s.provider.Create(t.Context(), request)
					s.kind("create", err, fleet.KindConflict)
					if !provider.ConcernsCapacity(err) {
						t.Errorf("the reservation is not blamed: %v", err)
					}
					_, err = s.provider.FindByToken(t.Context(), capacity, token)
					s.kind("find by the token of what is gone", err, fleet.KindNotFound)
				}
				if listed() != 1 { // the list is early
					t.Error("the reservation is not listed as free")
				}
				time.Sleep(time.Minute)
				s.active(capacity)
				if listed() != 1 {
					t.Error("the new machine is not listed")
				}
			})
		})
	}
}

// TestAReinstallFails: the provider gives the machine up, and takes it back all the same.
func TestAReinstallFails(t *testing.T) {
	t.Parallel()
	quirky(t, func(c *equinixapi.Config) { c.FailReinstall = always }, func(t *testing.T, s *simulated) {
		t.Helper()
		id, _ := s.active(s.reservations()[0])
		for range 2 {
			if err := s.provider.Reinstall(t.Context(), id); err != nil {
				t.Errorf("reinstall: %v", err)
			}
		}
		s.is(id, fleet.ProviderStatusCreating)
		s.kind("release of what is being reinstalled", s.provider.Release(t.Context(), id), fleet.KindConflict)
		time.Sleep(4 * time.Minute)
		s.is(id, fleet.ProviderStatusFailed)
		for name, pull := range s.levers() {
			s.kind(name, pull(t.Context(), id), fleet.KindConflict)
		}
		if err := s.provider.Release(t.Context(), id); err != nil {
			t.Errorf("release: %v", err)
		}
		_, err := s.provider.Get(t.Context(), id)
		s.kind("get", err, fleet.KindNotFound)
	})
}

// TestPowerTakesTime: what is on its way already is not asked for twice, and is not over with the
// call.
func TestPowerTakesTime(t *testing.T) {
	t.Parallel()
	quirky(t, func(*equinixapi.Config) {}, func(t *testing.T, s *simulated) {
		t.Helper()
		id, _ := s.active(s.reservations()[0])
		if err := s.provider.Reboot(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.started(id, 1)
		time.Sleep(31 * time.Second)
		s.started(id, 2)
		if err := s.provider.PowerCycle(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.is(id, fleet.ProviderStatusPowering)
		if err := s.provider.PowerOn(t.Context(), id); err != nil {
			t.Errorf("on, while it is turned on: %v", err)
		}
		for _, name := range []string{"reboot", "power off", "power cycle", "reinstall"} {
			s.kind(name+", while it is turned on", s.levers()[name](t.Context(), id), fleet.KindConflict)
		}
		time.Sleep(12 * time.Second)
		s.is(id, fleet.ProviderStatusActive)
		s.started(id, 3)
		if err := s.provider.PowerOff(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.kind("on, while it is turned off", s.provider.PowerOn(t.Context(), id), fleet.KindConflict)
		if err := s.provider.PowerCycle(t.Context(), id); err != nil {
			t.Errorf("a cycle, while it is turned off: %v", err)
		}
		time.Sleep(12 * time.Second)
		s.started(id, 4)
	})
}
