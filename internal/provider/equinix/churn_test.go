package equinix

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// churning is a project in which a device goes, and another comes, after every so many pages.
func churning(seed uint64, every int) *shifting {
	random := rand.New(rand.NewPCG(seed, 0))
	s := newShifting(55)
	pages := 0
	s.change = func(s *shifting) {
		switch pages++; {
		case pages%every != 0:
		case pages/every%2 == 0:
			i := random.IntN(len(s.ids))
			s.ids = slices.Delete(s.ids, i, i+1)
		default:
			id := deviceNumber(1000 + pages + random.IntN(8000))
			if i, there := slices.BinarySearch(s.ids, id); !there {
				s.ids = slices.Insert(s.ids, i, id)
			}
		}
	}
	return s
}

// TestAListIsReadWhileDevicesComeAndGo: it has every device that was there throughout, once. What
// has gone meanwhile may be there once more.
func TestAListIsReadWhileDevicesComeAndGo(t *testing.T) {
	t.Parallel()
	for _, every := range []int{1, 2, 3} {
		for seed := range uint64(40) {
			s := churning(seed, every)
			old := slices.Clone(s.ids)
			entries, lacks, err := s.machines(t)
			lacks = slices.DeleteFunc(lacks, func(id string) bool { return !slices.Contains(old, id) })
			if err != nil || len(lacks) > 0 {
				t.Errorf("a change in %d pages, seed %d: %d devices, it lacks %v, %v", every, seed, len(entries), lacks, err)
			}
			for i := 1; i < len(entries); i++ {
				if entries[i].ID == entries[i-1].ID {
					t.Errorf("a change in %d pages, seed %d: %s is listed twice", every, seed, entries[i].ID)
				}
			}
		}
	}
}

// TestWhatMustBeWholeStaysStrict: where an absence is evidence by itself, no union will do.
func TestWhatMustBeWholeStaysStrict(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(listDevices, answer{do: churning(0, 1).answer})
	if has := p.projectHas(t.Context()); has != nil {
		t.Errorf("the project has %d devices", len(has))
	}
	if _, err := p.FindByToken(t.Context(), reservation1, fleet.NewToken()); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

// TestAListThatLacksRowsWithoutAChange is not believed, nor is one with a row that has no ID.
func TestAListThatLacksRowsWithoutAChange(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][]answer{
		"rows are lacking": {rows("devices", 1, 1, 2, deviceJSON(nil))},
		"one has no ID": {
			rows("devices", 1, 2, 3, deviceJSON(map[string]any{"id": ""}), deviceJSON(nil)), rows("devices", 2, 2, 4), rows("devices", 1, 2, 3, deviceJSON(nil)),
			rows("devices", 1, 2, 2), rows("devices", 2, 2, 4), rows("devices", 1, 2, 3), rows("devices", 2, 2, 4), rows("devices", 1, 2, 3),
		},
	} {
		p, api := newScripted(t)
		api.on(listDevices, answers...)
		if entries, err := p.ListMachines(t.Context()); fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("%s: %d devices, %v (%s)", name, len(entries), err, fleet.KindOf(err))
		}
	}
}
