package provisioner_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestChunksAndTheMaximum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 30)
		b.config.ChunkSize, b.config.MaxMachines = 8, 20
		b.restart()
		for i, want := range []int{8, 16, 20, 20} {
			b.pass()
			if got := len(b.fake.Devices()); got != want {
				t.Fatalf("after pass %d: %d devices, want %d (%s)", i+1, got, want, b.result())
			}
		}
		b.agree(20)
		if !strings.Contains(b.result(), "max_machines") {
			t.Errorf("the last pass says %q", b.result())
		}
		for i, device := range b.fake.Devices() {
			if want := fleet.CapacityID("capacity-0" + string(rune('0'+i/10)) + string(rune('0'+i%10))); device.Capacity != want {
				t.Errorf("device %d is on %s, want %s", i, device.Capacity, want)
			}
		}
		b.config.MaxMachines = 5 // never shrinks the fleet
		b.restart()
		b.pass()
		b.agree(20)
	})
}

// TestCreationRate is I10: the rate holds in every window, also when the process dies again and
// again in the middle of a chunk.
func TestCreationRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 20)
		rate := fleet.Rate{Every: 30 * time.Second, Burst: 2}
		b.config.CreateRate = rate
		b.restart()
		for len(b.fake.Devices()) < 12 {
			task := b.claim()
			ctx, kill := context.WithCancel(t.Context())
			b.fake.Hook = killedAt(shepherdtest.Created, 2, kill)
			stop := b.keep()
			task.Act(ctx)
			stop()
			kill()
			b.restart()
		}
		b.keepsRate(rate)
	})
}

// keepsRate fails the test unless the creations kept the rate in every window.
func (b *bench) keepsRate(rate fleet.Rate) { b.t.Helper(); b.keepsRateBut(rate, 0) }

// keepsRateBut is keepsRate where each creation may be early by so much.
func (b *bench) keepsRateBut(rate fleet.Rate, early time.Duration) {
	b.t.Helper()
	creates := b.fake.Creates()
	for i := range creates {
		for j := i; j < len(creates); j++ {
			if allowed := rate.Burst + int((creates[j].Sub(creates[i])+early)/rate.Every); j-i+1 > allowed {
				b.t.Fatalf("%d creations in %s", j-i+1, creates[j].Sub(creates[i]))
			}
		}
	}
}

// TestCreationRateIsTheProviders: processes that make passes by turns keep it together, however
// long each has been there.
func TestCreationRateIsTheProviders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 30)
		rate := fleet.Rate{Every: 10 * time.Minute, Burst: 5}
		b.config.CreateRate, b.config.ChunkSize = rate, 5
		b.restart()
		first := b.holder
		b.restart()
		second := b.holder
		alive, end := context.WithCancel(t.Context())
		defer end()
		for _, h := range []*shepherd.Holder{first, second} {
			go func() {
				for b.db.Clock().Sleep(alive, time.Second) {
					_ = h.Extend(alive)
				}
			}()
		}
		time.Sleep(time.Hour) // both have had time to fill their bucket
		for i := range 6 {
			b.holder = []*shepherd.Holder{first, second}[i%2]
			b.pass()
		}
		if len(b.fake.Devices()) != 30 {
			t.Errorf("%d devices: %s", len(b.fake.Devices()), b.result())
		}
		b.keepsRate(rate)
	})
}

func TestThePlanSaysWhoseTurnItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		var planned []time.Time
		b.fake.Hook = once(shepherdtest.Creating, 1, func(fleet.CapacityID) error {
			for _, intent := range b.view().Intents {
				planned = append(planned, intent.PlannedAt)
			}
			return nil
		})
		b.pass()
		creates := b.fake.Creates()
		if len(planned) != 4 || len(creates) != 4 {
			t.Fatalf("planned %d, created %d", len(planned), len(creates))
		}
		for i := range planned {
			if off := creates[i].Sub(planned[i]).Abs(); off > 100*time.Millisecond {
				t.Errorf("creation %d came %s off its plan", i, off)
			}
		}
	})
}

// TestAPauseStopsThePassUnderWay is rule 8: after a person was told that the provider is paused, no
// call that could create a machine is begun. What was begun before is not lost, and the pass after
// the pause goes on where this one stopped.
func TestAPauseStopsThePassUnderWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		point shepherdtest.Point
		n     int
		// latency of a call; where it is long, several creations are on their way at once.
		latency time.Duration
		// devices that there are after the pass, and intents that are open.
		devices, intents int
	}{
		"before it has opened intents":    {shepherdtest.Listing, 1, 0, 0, 0},
		"before a creation":               {shepherdtest.Creating, 3, 0, 2, 6},
		"while a creation is on its way":  {shepherdtest.Sending, 3, 0, 3, 5},
		"while several are on their way":  {shepherdtest.Created, 1, 2500 * time.Millisecond, 3, 5},
		"after the last one has answered": {shepherdtest.Created, 8, 0, 8, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 8)
				b.config.CreateParallelism = 4
				b.restart()
				b.fake.Latency = c.latency
				b.fake.Hook = once(c.point, c.n, func(fleet.CapacityID) error {
					return b.db.PauseProvider(t.Context(), "ada", source, "the bill")
				})
				outcome := b.pass()
				if _, done := outcome.(shepherd.Finish); !done {
					t.Errorf("the pass ended as %s", text(outcome))
				}
				view := b.view()
				if len(b.fake.Devices()) != c.devices || len(view.Machines) != c.devices || len(view.Intents) != c.intents {
					t.Errorf("%d devices, %d machines and %d intents, want %d, %d and %d", len(b.fake.Devices()), len(view.Machines),
						len(view.Intents), c.devices, c.devices, c.intents)
				}
				for _, intent := range view.Intents {
					if intent.Calls > 0 {
						t.Errorf("a call was recorded for %s", intent.Machine)
					}
				}
				if told := strings.Contains(b.result(), "the provider was paused meanwhile"); told != (c.devices < 8) {
					t.Errorf("the pass says %q", b.result())
				}
				if err := b.db.ResumeProvider(t.Context(), "ada", source, "paid"); err != nil {
					t.Fatal(err)
				}
				b.passes(2)
				b.agree(8)
			})
		})
	}
}

// TestRejections: a definite failure of a piece of capacity closes its intent, puts a penalty on it
// and does not end the chunk; one that is not about the capacity leaves the intent open.
func TestRejections(t *testing.T) {
	t.Parallel()
	for kind, blamed := range map[fleet.Kind]bool{
		fleet.KindRaceLost: true, fleet.KindNoCapacity: true, fleet.KindConflict: true, fleet.KindInvalid: true,
		fleet.KindForbidden: false,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 3)
				b.fake.Hook = func(point shepherdtest.Point, capacity fleet.CapacityID) error {
					if point == shepherdtest.Refusing && capacity == "capacity-001" {
						return fleet.Errorf(kind, "not this one")
					}
					return nil
				}
				b.pass()
				view := b.view()
				if len(b.fake.Devices()) != 2 {
					t.Fatalf("%d devices: %s", len(b.fake.Devices()), b.result())
				}
				penalty, resting := view.Penalties["capacity-001"]
				if resting != blamed || blamed && !strings.Contains(penalty.Cause, "not this one") || (len(view.Intents) == 0) != blamed {
					t.Errorf("penalty %+v, intents %+v", penalty, view.Intents)
				}
				b.fake.Hook = nil
				b.pass()
				if got := len(b.fake.Devices()); (got == 2) != blamed {
					t.Errorf("the next pass: %d devices: %s", got, b.result())
				}
				time.Sleep(b.config.Penalty)
				b.restart() // the session has ended meanwhile
				b.pass()
				b.agree(3)
			})
		})
	}
}

func TestDiscrepanciesStopCreationAndClear(t *testing.T) {
	t.Parallel()
	causes := map[fleet.DiscrepancyKind]func(b *bench) (undo func()){
		fleet.DiscrepancyUnknownMachine: func(b *bench) func() {
			other, err := b.fake.Land("capacity-005")
			if err != nil {
				b.t.Fatal(err)
			}
			return func() { b.fake.Change(other.ID, func(*provider.Entry) bool { return false }) }
		},
		fleet.DiscrepancyMissingMachine: func(b *bench) func() {
			lost := b.fake.Devices()[0]
			b.fake.Change(lost.ID, func(*provider.Entry) bool { return false })
			return func() { b.fake.Change(lost.ID, func(e *provider.Entry) bool { *e = lost; return true }) }
		},
		fleet.DiscrepancyDuplicateMachine: func(b *bench) func() {
			twin, err := b.fake.Land("capacity-005", b.fake.Devices()[0].Tokens...)
			if err != nil {
				b.t.Fatal(err)
			}
			return func() { b.fake.Change(twin.ID, func(*provider.Entry) bool { return false }) }
		},
		fleet.DiscrepancyListLoss: func(b *bench) func() {
			b.fake.Hide = func(e provider.Entry) bool { return e.Availability == fleet.AvailabilityKnownUsed }
			return func() { b.fake.Hide = nil }
		},
	}
	for _, kind := range fleet.DiscrepancyKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			disagree := causes[kind]
			if disagree == nil {
				t.Fatal("the test has no cause for a discrepancy of this kind")
			}
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 6)
				b.config.MaxMachines = 4
				b.restart()
				b.pass()
				b.agree(4)
				time.Sleep(b.config.SettlingTime)
				undo := disagree(b)
				b.config.MaxMachines = 0
				b.restart()
				devices := len(b.fake.Devices())
				time.Sleep(b.config.SettlingTime)
				b.restart() // the first session ended in its sleep
				b.passes(2)
				found := b.view().Discrepancies
				if len(found) != 1 || found[0].Kind != kind || found[0].Evidence == "" || found[0].Remedy != kind.Remedy(source, found[0].ProviderID) {
					t.Fatalf("discrepancies %+v", found)
				}
				if got := len(b.fake.Devices()); got != devices || len(b.view().Machines) != 4 {
					t.Errorf("%d devices and %d machines: %s", got, len(b.view().Machines), b.result())
				}
				since := found[0].Since
				b.pass()
				if again := b.view().Discrepancies; len(again) != 1 || !again[0].Since.Equal(since) {
					t.Errorf("later: %+v, first %s", again, since)
				}
				undo()
				b.passes(2)
				b.agree(6)
			})
		})
	}
}

// TestALaggingListIsNoDiscrepancy: a missing machine that is there when asked for by its ID.
func TestALaggingListIsNoDiscrepancy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 6)
		b.config.MaxMachines = 5
		b.restart()
		b.pass()
		time.Sleep(b.config.SettlingTime)
		hidden := b.fake.Devices()[0].ID
		b.fake.Hide = func(e provider.Entry) bool { return e.ID == hidden }
		asked := 0
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Asking {
				asked++
			}
			return nil
		}
		b.config.MaxMachines = 6
		b.restart()
		b.pass()
		if asked != 1 || b.kinds() != "" {
			t.Errorf("asked %d times, discrepancies %q", asked, b.kinds())
		}
		b.fake.Hook = func(point shepherdtest.Point, _ fleet.CapacityID) error {
			if point == shepherdtest.Asking {
				return fleet.Errorf(fleet.KindUnknown, "a strange answer")
			}
			return nil
		}
		b.pass() // unknown never turns into gone
		if b.kinds() != "" {
			t.Errorf("discrepancies %q", b.kinds())
		}
		b.agree(6)
	})
}

// TestOneListFailingCancelsTheOther, and the pass fails with the cause.
func TestAFailingListFailsThePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.fake.Hook = once(shepherdtest.Listing, 1, func(fleet.CapacityID) error {
			return &fleet.Error{Kind: fleet.KindThrottled, Message: "too often", RetryAfter: 5 * time.Minute}
		})
		start := time.Now()
		outcome, ok := b.pass().(shepherd.Fail)
		if !ok || !strings.Contains(outcome.Err.Error(), "too often") || !strings.Contains(b.result(), "too often") {
			t.Errorf("outcome %s, result %q", text(outcome), b.result())
		}
		if len(b.fake.Devices()) != 0 {
			t.Errorf("%d devices", len(b.fake.Devices()))
		}
		b.pass()
		if waited := time.Since(start); waited < 5*time.Minute {
			t.Errorf("asked again after %s", waited)
		}
		b.agree(2)
	})
}

// TestDefaultInstall: machines that are created here get the provider's default install.
func TestDefaultInstall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		image := fleet.Image{URL: "http://images.example/os.zst", Digest: "sha256:" + strings.Repeat("ab", 32), Compression: fleet.CompressionZstd}
		config := b.config
		config.Install = &fleet.InstallRequest{Actor: "config", Image: image}
		handler, err := provisioner.New(b.db, []provisioner.Source{{Name: source, Provider: b.fake, Config: config}}, provisioner.Options{})
		if err != nil {
			t.Fatal(err)
		}
		loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if b.holder, err = loop.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.pass()
		record, err := b.db.Machine(t.Context(), b.view().Machines[0].ID)
		if err != nil || record.InstallRequest == nil || record.InstallRequest.Generation != 1 || record.InstallRequest.Image != image {
			t.Errorf("got %+v, %v", record.InstallRequest, err)
		}
	})
}

// TestAnInstallThatIsConfiguredAnew counts for what is asked for already, but not made yet.
func TestAnInstallThatIsConfiguredAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, install := range map[string]*fleet.InstallRequest{
			"another image": {Actor: fleet.ConfigurationOf(source), Image: fleet.Image{URL: "http://images.example/right.zst", Digest: "sha256:" + strings.Repeat("cd", 32)}},
			"none":          nil,
		} {
			b := newBench(t, 1)
			b.config.Install = &fleet.InstallRequest{
				Actor: fleet.ConfigurationOf(source), Image: fleet.Image{URL: "http://images.example/wrong.zst", Digest: "sha256:" + strings.Repeat("ab", 32)},
				RootDisk: fleet.DiskSelector{Erase: true},
			}
			b.restart()
			b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
				if at != shepherdtest.Creating {
					return nil
				}
				return provider.OfCapacity(fleet.Errorf(fleet.KindTemporary, "the site does not answer"))
			}
			b.pass()
			if open := b.view().Intents; len(open) != 1 {
				t.Fatalf("%s: intents %+v", name, open)
			}
			b.fake.Hook, b.config.Install = nil, install
			b.restart()
			b.passes(2)
			record, err := b.db.Machine(t.Context(), b.view().Machines[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := record.InstallRequest; (got == nil) != (install == nil) || got != nil && (got.Image != install.Image || got.RootDisk.Erase) {
				t.Errorf("%s: got %+v", name, got)
			}
		}
	})
}

// TestRun lets the real loop create a fleet.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 30)
		if err := b.holder.Close(t.Context(), "not needed"); err != nil {
			t.Fatal(err)
		}
		handler, err := provisioner.New(b.db, []provisioner.Source{{Name: source, Provider: b.fake, Config: b.config}}, provisioner.Options{HostKey: hostKeyOf})
		if err != nil {
			t.Fatal(err)
		}
		loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.fake.Latency = 2 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx) }()
		time.Sleep(3 * time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		b.agree(30)
		if sessions, err := b.db.Sessions(t.Context(), false); err != nil || len(sessions) != 0 {
			t.Errorf("sessions %+v, %v", sessions, err)
		}
	})
}
