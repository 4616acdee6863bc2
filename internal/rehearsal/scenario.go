package rehearsal

import (
	"fmt"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Scenario is something that may happen to a fleet, to be rehearsed with its own configuration. It
// begins when all machines are there and well.
type Scenario struct {
	Name string
	// About says in one clause what happens.
	About  string
	length time.Duration
	events []Event
	// Harmless: nothing is wrong with any machine.
	Harmless bool
}

// Scenarios lists all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{"lose-rack", "one of three racks, or locations, is without power for half an hour", 40 * time.Minute, []Event{
			{What: RackLost, At: time.Minute, For: 30 * time.Minute, Target: 1},
		}, false},
		{"power-loss", "all machines are without power for 20 minutes", 30 * time.Minute, []Event{
			{What: PowerLost, At: time.Minute, For: 20 * time.Minute, Share: 100},
		}, false},
		{"deploy", "an operating system is asked for on every machine at once", 10 * time.Minute, []Event{
			{What: AskDeploy, At: time.Minute, Share: 100},
		}, false},
		{"agents-die", "the agents of a tenth of the machines die, and half of these machines hang", 10 * time.Minute, []Event{
			{What: TenthFails, At: time.Minute},
		}, false},
		{"provider-throttles", "a tenth of the machines fails while providers refuse four of five calls, for an hour", time.Hour + 2*time.Minute, []Event{
			{What: Throttled, At: time.Minute, For: time.Hour, Share: 80}, {What: TenthFails, At: 2 * time.Minute},
		}, false},
		{"provider-outage", "a tenth of the machines fails while providers do not answer, for an hour", time.Hour + 2*time.Minute, []Event{
			{What: ProviderOutage, At: time.Minute, For: time.Hour}, {What: TenthFails, At: 2 * time.Minute},
		}, false},
		{
			"controller-crash", "a control plane is killed in the middle of a deploy to every machine, and comes back after five minutes",
			15 * time.Minute,
			[]Event{
				{What: AskDeploy, At: time.Minute, Share: 100}, {What: Crash, At: 4 * time.Minute, For: 5 * time.Minute},
			},
			true,
		},
		{"listener-down", "every control plane knows that its agent API is down, for half an hour, and nothing else is wrong", 35 * time.Minute, []Event{
			{What: ListenerDown, At: time.Minute, For: 30 * time.Minute},
		}, true},
		{"agents-cut-off", "no agent reaches a control plane for half an hour, although the agent API of each is up", 35 * time.Minute, []Event{
			{What: AgentsCutOff, At: time.Minute, For: 30 * time.Minute},
		}, true},
		{"database-outage", "the database cannot be reached for ten minutes, during a deploy to every machine", 15 * time.Minute, []Event{
			{What: AskDeploy, At: time.Minute, Share: 100}, {What: DatabaseOutage, At: 4 * time.Minute, For: 10 * time.Minute},
		}, true},
	}
}

// FindScenario returns the scenario of that name. The error is of kind Invalid and lists the names.
func FindScenario(name string) (Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scenario{}, fleet.Errorf(fleet.KindInvalid, "no scenario is named %q: use one of %s", name, strings.Join(names, ", "))
}

// Plan makes the plan of a scenario that ends after so many hours at the latest. The error is of
// kind Invalid.
func (s Scenario) Plan(seed uint64, machines, controllers int, lasts time.Duration) (Plan, error) {
	if lasts < s.length {
		return Plan{}, fleet.Errorf(fleet.KindInvalid, "%s takes %s before anything can be well again: rehearse at least as long, not %s", s.Name, s.length, lasts)
	}
	p := Plan{
		Seed: seed, Machines: machines, Controllers: controllers, Length: s.length, Settle: lasts - s.length, Events: s.events, Lead: true,
	}
	return p, p.Validate()
}

// tenthFails lets the agents of a tenth of each provider's machines die, and of one at least. Every
// second of their hosts hangs, from the first on.
func (w *world) tenthFails() {
	for _, p := range w.providers {
		for i, d := range p.base().devices {
			switch i % 20 {
			case 0:
				d.host.strike(HostHangs)
			case 10:
				d.host.strike(AgentDies)
			}
		}
	}
}

// lead lets time pass until the fleet is there, and forgets what that took.
func (w *world) lead(options Options) error {
	const patience = 7 * 24 * time.Hour
	end := w.now.Add(patience)
	for {
		look := w.now.Add(lookEvery)
		for w.step(look) {
			w.wake()
			if w.ctx.Err() != nil {
				return w.ctx.Err()
			}
		}
		options.progress(false, w.elapsed())
		left, err := w.left()
		if err != nil {
			return err
		}
		if left == "" {
			break
		}
		if w.refusedAt != "" {
			return fleet.Errorf(fleet.KindInvalid, "with this configuration the fleet is never there: what provider %s installs is refused, because each "+
				"simulated machine has one disk, with the system that it came with: %s", w.refusedAt, refusal)
		}
		if w.now.After(end) {
			return fleet.Errorf(fleet.KindInvalid, "with this configuration the fleet is not there after %s: %s", patience, left)
		}
	}
	w.began, w.timeline, w.watch.restarts, w.watch.creates, w.watch.releases = w.now, nil, make(map[string]int), 0, 0
	for _, p := range w.providers {
		s := p.base()
		s.calls, s.peak, s.total = 0, 0, make(map[string]int)
	}
	for _, p := range w.setup.Providers {
		if most := p.Provisioner.MaxMachines; most > 0 && most < w.plan.Machines {
			w.note("max_machines lets %s have %d of the %d machines that there is room for", p.Name, most, w.plan.Machines)
		}
	}
	w.shown = ""
	w.noteStates()
	return nil
}

// noteStates notes how many machines are in which state, when that has changed.
func (w *world) noteStates() {
	var parts []string
	for _, state := range fleet.States() {
		if n := w.states[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if text := strings.Join(parts, ", "); text != w.shown {
		w.shown = text
		w.note("machines: %s", text)
	}
}
