package provisioner_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// TestAMachineOfAnotherProviderIsNoUnknownOne: two providers are one project. What one of them made
// is a discrepancy of the other that names the machine, and cannot be adopted.
func TestAMachineOfAnotherProviderIsNoUnknownOne(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// before brings about what the provider "old" knows of the device, and returns its machine.
		before func(b *bench) fleet.MachineID
		kind   fleet.DiscrepancyKind
		how    string
	}{
		"by its ID": {func(b *bench) fleet.MachineID {
			b.passes(2)
			return b.view().Machines[0].ID
		}, fleet.DiscrepancyDuplicateMachine, ") is machine "},
		"by the token of an open intent": {func(b *bench) fleet.MachineID {
			b.fake.Hook = once(shepherdtest.Sent, 1, func(fleet.CapacityID) error { return errReplyLost })
			b.pass()
			b.fake.Hook = nil
			return b.view().Intents[0].Machine
		}, fleet.DiscrepancyDuplicateMachine, ") carries the token of machine "},
		"the other provider lost it": {func(b *bench) fleet.MachineID {
			b.passes(2)
			m := b.view().Machines[0]
			task := b.claim()
			if err := task.Work.Note(b.t.Context(), bmdb.SetProvided(m.ID, m.ProviderID, provider.Gone(m.Provided))); err != nil {
				b.t.Fatal(err)
			}
			return m.ID
		}, fleet.DiscrepancyUnknownMachine, "the BMDB does not know it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				machine := test.before(b)
				device := b.fake.Devices()[0]
				if err := b.db.RegisterProvider(t.Context(), "renamed", b.fake.Kind(), 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(b.config.SettlingTime)
				b.manage(2, provisioner.Source{Name: "renamed", Provider: b.fake, Config: b.config})
				_, found := b.machinesOf("renamed")
				if len(found) != 1 || found[0].Kind != test.kind || !strings.Contains(found[0].Evidence, test.how) {
					t.Fatalf("discrepancies %+v", found)
				}
				err := b.db.RequestAdoption(t.Context(), "ada", "renamed", device.ID, false, "it is needed")
				if (err == nil) != (test.kind == fleet.DiscrepancyUnknownMachine) {
					t.Errorf("the adoption: %v", err)
				}
				if test.kind != fleet.DiscrepancyDuplicateMachine {
					return
				}
				if d := found[0]; !strings.Contains(d.Evidence, string(machine)+" of provider "+string(source)) || !strings.Contains(d.Remedy, "old name") {
					t.Errorf("%+v", d)
				}
			})
		})
	}
}

// TestAnAdoptionThatWasAskedForEnds where the machine turns out to be one of another provider.
func TestAnAdoptionThatWasAskedForEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = once(shepherdtest.Sent, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		b.fake.Hook = nil
		device := b.fake.Devices()[0]
		if err := b.db.RegisterProvider(t.Context(), "renamed", b.fake.Kind(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(b.config.SettlingTime)
		tokens := device.Tokens
		b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Tokens = nil; return true })
		renamed := provisioner.Source{Name: "renamed", Provider: b.fake, Config: b.config}
		b.manage(1, renamed)
		if err := b.db.RequestAdoption(t.Context(), "ada", "renamed", device.ID, false, "it is needed"); err != nil {
			t.Fatal(err)
		}
		b.fake.Change(device.ID, func(e *provider.Entry) bool { e.Tokens = tokens; return true })
		b.manage(2, renamed)
		if machines, found := b.machinesOf("renamed"); machines != "" || len(found) != 1 || found[0].Kind != fleet.DiscrepancyDuplicateMachine {
			t.Errorf("machines %q, discrepancies %+v", machines, found)
		}
		if v, err := b.db.ViewProvider(t.Context(), "renamed"); err != nil || len(v.Adoptions) != 0 {
			t.Errorf("adoptions %v, %v", v.Adoptions, err)
		}
	})
}

// TestAFailedMachineOfAnotherProvider is said to be that, and nobody is told to delete it. One that
// the other provider does not have any more is no machine of this database.
func TestAFailedMachineOfAnotherProvider(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hook func(b *bench)
		lost bool
		says string
	}{
		"by its ID": {says: ") is machine "},
		"by the token of an open intent": {
			hook: func(b *bench) {
				b.fake.Hook = once(shepherdtest.Sent, 1, func(fleet.CapacityID) error { return errReplyLost })
			},
			says: ") carries the token of machine ",
		},
		"the other provider lost it": {lost: true, says: "is no machine of this database: delete it at the provider"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 1)
				if test.hook != nil {
					test.hook(b)
				}
				b.pass()
				b.fake.Hook = nil
				if test.lost {
					m := b.view().Machines[0]
					if err := b.claim().Work.Note(t.Context(), bmdb.SetProvided(m.ID, m.ProviderID, provider.Gone(m.Provided))); err != nil {
						t.Fatal(err)
					}
				}
				b.fake.Change(b.fake.Devices()[0].ID, func(e *provider.Entry) bool { e.Status = fleet.ProviderStatusFailed; return true })
				if err := b.db.RegisterProvider(t.Context(), "renamed", b.fake.Kind(), 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(b.config.SettlingTime)
				b.manage(2, provisioner.Source{Name: "renamed", Provider: b.fake, Config: b.config})
				if _, found := b.machinesOf("renamed"); len(found) != 0 {
					t.Errorf("discrepancies %+v", found)
				}
				rows, err := b.db.Providers(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range rows {
					left := row.Unusable()
					if row.Name != "renamed" {
						continue
					}
					if len(left) != 1 || !strings.Contains(left[0], test.says) || strings.Contains(left[0], "delete it") != test.lost {
						t.Errorf("left alone: %q, want %q", left, test.says)
					}
				}
			})
		})
	}
}
