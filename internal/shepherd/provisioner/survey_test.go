package provisioner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const settling = 15 * time.Minute

// machine is a machine of the BMDB, created an hour ago on capacity c-<id>.
func machine(id string, status fleet.ProviderStatus) bmdb.ProviderMachine {
	return bmdb.ProviderMachine{
		ID: fleet.MachineID("m-" + id), ProviderID: fleet.ProviderID("d-" + id), CreatedAt: now.Add(-time.Hour),
		Provided: &fleet.Provided{CreatedAt: now.Add(-time.Hour), Status: status, Capacity: fleet.CapacityID("c-" + id)},
	}
}

func device(id string, tokens ...fleet.Token) provider.Entry {
	return provider.Entry{
		Availability: fleet.AvailabilityKnownUsed, ID: fleet.ProviderID("d-" + id), Capacity: fleet.CapacityID("c-" + id),
		Status: fleet.ProviderStatusActive, Tokens: tokens, CreatedAt: now.Add(-time.Hour),
	}
}

func free(id string) provider.Entry {
	return provider.Entry{Availability: fleet.AvailabilityKnownUnused, Capacity: fleet.CapacityID("c-" + id)}
}

func host(id string) provider.Entry {
	return provider.Entry{
		Availability: fleet.AvailabilityPossiblyUsed, ID: fleet.ProviderID("d-" + id), Capacity: fleet.CapacityID("d-" + id),
		Status: fleet.ProviderStatusActive,
	}
}

func intent(id string, calls, rejected int) fleet.Intent {
	return fleet.Intent{
		Machine: fleet.MachineID("m-" + id), Capacity: fleet.CapacityID("c-" + id), Token: fleet.Token("t-" + id), Calls: calls, Rejected: rejected,
	}
}

func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

// describe renders a survey as the words that the table uses.
func describe(s survey) string {
	var words []string
	add := func(word string, ids ...string) {
		for _, id := range ids {
			words = append(words, word+":"+id)
		}
	}
	for _, c := range s.free {
		add("free", string(c))
	}
	for _, x := range s.found {
		add("found", string(x.machine)+"="+string(x.entry.ID))
	}
	for _, x := range s.retry {
		add("retry", string(x.Machine))
	}
	for _, x := range s.futile {
		add("futile", string(x.intent.Machine))
	}
	for _, x := range s.contested {
		add("contested", string(x.intent.Machine))
	}
	for _, x := range s.adopt {
		add("adopt", string(x.machine)+"="+string(x.entry.ID))
	}
	for _, x := range s.failedCapacity {
		add("failed", string(x))
	}
	for _, x := range s.unknown {
		add("unknown", string(x.ID))
		if m, was := s.forgotten[x.ID]; was {
			add("forgotten", string(m))
		}
	}
	for _, x := range s.duplicate {
		add("duplicate", string(x.entry.ID))
	}
	for _, x := range s.failed {
		add("left", string(x.ID))
	}
	for _, x := range s.missing {
		add("missing", string(x.ID))
	}
	for _, x := range s.gone {
		add("gone", string(x.ID))
	}
	for _, x := range s.back {
		add("back", string(x.ID))
	}
	if s.penalized > 0 {
		add("penalized", fmt.Sprint(s.penalized))
	}
	if len(s.unusable) > 0 {
		add("unusable", fmt.Sprint(len(s.unusable)))
	}
	return strings.Join(words, " ")
}

func TestSurvey(t *testing.T) {
	t.Parallel()
	active := fleet.ProviderStatusActive
	for name, test := range map[string]struct {
		entries  []provider.Entry
		machines []bmdb.ProviderMachine
		intents  []fleet.Intent
		closed   map[fleet.Token]bmdb.ClosedToken
		resting  []fleet.CapacityID
		want     string
	}{
		"nothing":                          {want: ""},
		"candidates in the order of IDs":   {entries: []provider.Entry{free("3"), free("1"), free("2")}, want: "free:c-1 free:c-2 free:c-3"},
		"a capacity listed twice":          {entries: []provider.Entry{free("1"), free("1")}, want: "free:c-1"},
		"a machine that both know":         {entries: []provider.Entry{device("1")}, machines: []bmdb.ProviderMachine{machine("1", active)}},
		"a host that the BMDB has is used": {entries: []provider.Entry{host("1"), host("2")}, machines: []bmdb.ProviderMachine{machine("1", active)}, want: "free:d-2"},
		"a host without an ID is unused, and no capacity": {
			entries: []provider.Entry{with(host("1"), func(e *provider.Entry) { e.ID, e.Capacity = "", "" })}, want: "unusable:1",
		},
		"an invalid entry is left alone": {
			entries: []provider.Entry{
				with(free("1"), func(e *provider.Entry) { e.Invalid = "bad" }), with(device("2"), func(e *provider.Entry) { e.Invalid = "bad" }),
			}, want: "unusable:2",
		},
		"an invalid entry is there all the same": {
			entries:  []provider.Entry{with(device("1"), func(e *provider.Entry) { e.Invalid = "bad" })},
			machines: []bmdb.ProviderMachine{machine("1", active)}, want: "unusable:1",
		},
		"penalty": {
			entries: []provider.Entry{free("1"), free("2")}, resting: []fleet.CapacityID{"c-1"}, want: "free:c-2 penalized:1",
		},
		"capacity of a machine that the list lags behind": {
			entries: []provider.Entry{free("1")},
			machines: []bmdb.ProviderMachine{
				with(machine("1", active), func(m *bmdb.ProviderMachine) { m.Provided.CreatedAt = now.Add(-time.Minute) }),
			},
		},
		"capacity that is listed as used and as free": {entries: []provider.Entry{free("1"), device("1")}, want: "unknown:d-1"},

		"an intent that was never called":                 {entries: []provider.Entry{free("1")}, intents: []fleet.Intent{intent("1", 0, 0)}, want: "retry:m-1"},
		"a reply was lost and nothing was made":           {entries: []provider.Entry{free("1")}, intents: []fleet.Intent{intent("1", 1, 0)}, want: "retry:m-1"},
		"a reply was lost and the machine is there":       {entries: []provider.Entry{device("1", "t-1")}, intents: []fleet.Intent{intent("1", 1, 0)}, want: "found:m-1=d-1"},
		"it is there, and the capacity still listed free": {entries: []provider.Entry{free("1"), device("1", "t-1")}, intents: []fleet.Intent{intent("1", 1, 0)}, want: "found:m-1=d-1"},
		"it is there twice": {
			entries: []provider.Entry{device("1", "t-1"), device("2", "t-1")}, intents: []fleet.Intent{intent("1", 2, 0)},
			want: "found:m-1=d-1 duplicate:d-2",
		},
		"it is there and failed": {
			entries: []provider.Entry{with(device("1", "t-1"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusFailed })},
			intents: []fleet.Intent{intent("1", 1, 0)}, want: "found:m-1=d-1",
		},
		"it is there and not understood": {
			entries: []provider.Entry{with(device("1", "t-1"), func(e *provider.Entry) { e.Invalid = "bad" })},
			intents: []fleet.Intent{intent("1", 1, 0)}, want: "contested:m-1 unusable:1",
		},
		"another owner, an answer is out":   {entries: []provider.Entry{device("1")}, intents: []fleet.Intent{intent("1", 1, 0)}, want: "contested:m-1"},
		"another owner, all rejected":       {entries: []provider.Entry{device("1")}, intents: []fleet.Intent{intent("1", 2, 2)}, want: "futile:m-1"},
		"another owner, never called":       {entries: []provider.Entry{device("1")}, intents: []fleet.Intent{intent("1", 0, 0)}, want: "futile:m-1"},
		"capacity away, an answer is out":   {intents: []fleet.Intent{intent("1", 2, 1)}, want: "contested:m-1"},
		"capacity away, never called":       {intents: []fleet.Intent{intent("1", 0, 0)}, want: "futile:m-1"},
		"capacity of an intent not legible": {entries: []provider.Entry{with(free("1"), func(e *provider.Entry) { e.Invalid = "bad" })}, intents: []fleet.Intent{intent("1", 0, 0)}, want: "unusable:1"},

		"a closed token surfaces": {entries: []provider.Entry{device("1", "t-9")}, closed: map[fleet.Token]bmdb.ClosedToken{"t-9": {Machine: "m-9"}}, want: "adopt:m-9=d-1"},
		"a closed token surfaces on its way out": {
			entries: []provider.Entry{with(device("1", "t-9"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusDeleting })},
			closed:  map[fleet.Token]bmdb.ClosedToken{"t-9": {Machine: "m-9"}},
		},
		"a closed token on two machines": {
			entries: []provider.Entry{device("1", "t-9"), device("2", "t-9")}, closed: map[fleet.Token]bmdb.ClosedToken{"t-9": {Machine: "m-9"}},
			want: "adopt:m-9=d-1 duplicate:d-2",
		},
		"a second machine with the token of one that is there": {
			entries: []provider.Entry{device("1", "t-1"), device("2", "t-1")}, machines: []bmdb.ProviderMachine{machine("1", active)},
			closed: map[fleet.Token]bmdb.ClosedToken{"t-1": {Machine: "m-1"}}, want: "duplicate:d-2",
		},

		"a closed token of a machine that was forgotten explains nothing": {
			entries: []provider.Entry{device("1", "t-9")}, closed: map[fleet.Token]bmdb.ClosedToken{"t-9": {Machine: "m-9", Forgotten: true}},
			want: "unknown:d-1 forgotten:m-9",
		},

		"a used machine that nobody knows": {entries: []provider.Entry{device("1")}, want: "unknown:d-1"},
		"it is young":                      {entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.CreatedAt = now.Add(-settling + time.Second) })}},
		"it is young, and carries a token that this database does not know": {
			entries: []provider.Entry{with(device("1", "t-9"), func(e *provider.Entry) { e.CreatedAt = now })}, want: "unknown:d-1",
		},
		"it is young, carries such a token, and failed": {
			entries: []provider.Entry{with(device("1", "t-9"), func(e *provider.Entry) { e.CreatedAt, e.Status = now, fleet.ProviderStatusFailed })},
		},
		"it is just old enough":             {entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.CreatedAt = now.Add(-settling) })}, want: "unknown:d-1"},
		"nobody knows its age":              {entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.CreatedAt = time.Time{} })}, want: "unknown:d-1"},
		"it claims to come from the future": {entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.CreatedAt = now.Add(time.Hour) })}, want: "unknown:d-1"},
		"it failed, and holds its capacity": {
			entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusFailed })}, want: "left:d-1",
		},
		"it failed a moment ago": {
			entries: []provider.Entry{with(device("1"), func(e *provider.Entry) { e.CreatedAt, e.Status = now, fleet.ProviderStatusFailed })},
		},
		"one that was given back failed, and holds its capacity": {
			entries: []provider.Entry{with(device("1", "t-9"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusFailed })},
			closed:  map[fleet.Token]bmdb.ClosedToken{"t-9": {Machine: "m-9", Released: true}}, want: "left:d-1",
		},

		"missing":                {machines: []bmdb.ProviderMachine{machine("1", active)}, want: "missing:m-1"},
		"missing and young":      {machines: []bmdb.ProviderMachine{with(machine("1", active), func(m *bmdb.ProviderMachine) { m.Provided.CreatedAt = now })}},
		"missing after failure":  {machines: []bmdb.ProviderMachine{machine("1", fleet.ProviderStatusFailed)}},
		"missing while deleting": {machines: []bmdb.ProviderMachine{machine("1", fleet.ProviderStatusDeleting)}},
		"missing while released": {machines: []bmdb.ProviderMachine{with(machine("1", active), func(m *bmdb.ProviderMachine) { m.Releasing = true })}},
		"gone while released": {machines: []bmdb.ProviderMachine{
			with(machine("1", fleet.ProviderStatusGone), func(m *bmdb.ProviderMachine) { m.Releasing = true }),
		}},
		"known to be gone": {machines: []bmdb.ProviderMachine{machine("1", fleet.ProviderStatusGone)}, want: "gone:m-1"},
		"gone and back": {
			entries: []provider.Entry{device("1")}, machines: []bmdb.ProviderMachine{machine("1", fleet.ProviderStatusGone)}, want: "back:m-1",
		},
		"its machine failed": {
			entries:  []provider.Entry{with(device("1"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusFailed })},
			machines: []bmdb.ProviderMachine{machine("1", active)}, want: "failed:c-1",
		},
		"its machine failed, the penalty runs": {
			entries:  []provider.Entry{with(device("1"), func(e *provider.Entry) { e.Status = fleet.ProviderStatusFailed })},
			machines: []bmdb.ProviderMachine{machine("1", active)}, resting: []fleet.CapacityID{"c-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			view := bmdb.ProviderView{Now: now, Machines: test.machines, Intents: test.intents}
			view.Penalties = make(map[fleet.CapacityID]bmdb.Penalty)
			for _, c := range test.resting {
				view.Penalties[c] = bmdb.Penalty{Until: now.Add(time.Minute)}
			}
			view.Penalties["c-over"] = bmdb.Penalty{Until: now}
			got, err := takeSurvey(test.entries, view, test.closed, settling)
			if err != nil {
				t.Fatal(err)
			}
			if describe(got) != test.want {
				t.Errorf("got  %q\nwant %q", describe(got), test.want)
			}
			// The order of a list says nothing, but for which of two equals comes first.
			slices.Reverse(test.entries)
			again, err := takeSurvey(test.entries, view, test.closed, settling)
			if err != nil || !strings.Contains(test.want, "duplicate") && describe(again) != test.want {
				t.Errorf("reversed: got  %q, %v\nwant %q", describe(again), err, test.want)
			}
		})
	}
}

func TestSurveyRefusesAnUnknownAvailability(t *testing.T) {
	t.Parallel()
	entries := []provider.Entry{free("1"), with(free("2"), func(e *provider.Entry) { e.Availability = "perhaps" })}
	_, err := takeSurvey(entries, bmdb.ProviderView{Now: now}, nil, settling)
	if fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "c-2") || !strings.Contains(err.Error(), "perhaps") {
		t.Errorf("got %v", err)
	}
}

func TestSuddenLoss(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		known, missing int
		want           bool
	}{{0, 0, false}, {2, 2, false}, {3, 3, true}, {4, 2, false}, {5, 3, true}, {100, 50, false}, {100, 51, true}} {
		if got := provider.SuddenLoss(test.known, test.missing); got != test.want {
			t.Errorf("%d of %d: got %t", test.missing, test.known, got)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	err := Config{MaxMachines: -1}.Validate()
	for _, key := range []string{"max_machines", "chunk_size", "create_rate", "create_parallelism", "penalty", "settling_time", "backoff.initial"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no fault names %s: %v", key, err)
		}
	}
}
