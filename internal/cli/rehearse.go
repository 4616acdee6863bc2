package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider/builtin"
	"github.com/ironherd/ironherd/internal/rehearsal"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// rehearseFlags are the flags of the command.
type rehearseFlags struct {
	scenario              string
	seed                  uint64
	machines, controllers int
	hours                 float64
	output                *format
}

func (a *app) rehearseCommand() *cobra.Command {
	var f rehearseFlags
	cmd := &cobra.Command{
		Use:   "rehearse --scenario NAME",
		Short: "Show what this configuration would do when something happens, in a simulated world",
		Long: `Rehearse takes your own configuration and policy, and runs the real loops of the control plane, on a database of its own that is removed
afterwards, against simulated providers and machines, in virtual time. It prints what would happen: a timeline, what would be restarted,
reinstalled or given back, how long it would take until everything is well, which machines would wait for somebody, and how often providers
would be asked. It touches nothing that is real: no network, no provider, no database of yours. The same seed gives the same answer.

The scenario begins when the fleet is there and well. Each provider of the configuration is there under its name, with as much capacity
as --machines says; what it makes of that is limited by max_machines, as ever. Machines, providers and their delays are simulated: the
answer tells how your policy behaves, not how fast your hardware is. Each machine has one disk, with the system that it came with: an
install without root_disk.erase is refused. Images, and what else root_disk says, are not tried.

Rehearse ends with 0 when everything was well in the end, with 6 when not everything was, machines wait for somebody, installed machines
do not answer and nobody watches them, or the disk of a machine is lost in a scenario that harms no machine (listener-down, agents-cut-off,
controller-crash, database-outage), with 2 when the flags or the configuration are wrong, lose-rack hits no machine, or with this
configuration the fleet is not there and well within a week or its installs are refused, and with 1 when it failed.

Scenarios:
` + scenarioList(),
		Example: `  ironherd rehearse --config /etc/ironherd/ironherd.yaml --scenario lose-rack
  ironherd rehearse --scenario deploy --machines 200 --hours 6
  ironherd rehearse --scenario provider-throttles --seed 7 -o json`,
		Args: exactly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.untilHangup(cmd.Context(), func(ctx context.Context) error { return a.rehearse(ctx, f) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.scenario, "scenario", "", "what happens; the scenarios are listed above")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the world: the same seed gives the same delays, and the same answer")
	flags.IntVar(&f.machines, "machines", 40, "machines that each provider has room for")
	flags.IntVar(&f.controllers, "control-planes", 2, "control planes that run")
	flags.Float64Var(&f.hours, "hours", 6, "how long to wait until everything is well, in hours of virtual time")
	f.output = outputFlag(cmd)
	names := make([]string, 0, len(rehearsal.Scenarios()))
	for _, s := range rehearsal.Scenarios() {
		names = append(names, s.Name)
	}
	_ = cmd.RegisterFlagCompletionFunc("scenario", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func scenarioList() string {
	var b strings.Builder
	for _, s := range rehearsal.Scenarios() {
		fmt.Fprintf(&b, "  %-20s %s\n", s.Name, s.About)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// maxHours bounds a rehearsal.
const maxHours = 30 * 24

func (a *app) rehearse(ctx context.Context, f rehearseFlags) error {
	if f.scenario == "" {
		return fleet.Errorf(fleet.KindInvalid, "--scenario must name what is to happen; `ironherd rehearse --help` lists the scenarios")
	}
	scenario, err := rehearsal.FindScenario(f.scenario)
	if err != nil {
		return err
	}
	switch {
	case !(f.hours > 0 && f.hours <= maxHours):
		return fleet.Errorf(fleet.KindInvalid, "--hours must be above 0 and at most %d, not %g", maxHours, f.hours)
	case f.machines < 1 || f.machines > rehearsal.MaxMachines:
		return fleet.Errorf(fleet.KindInvalid, "--machines must be from 1 to %d, not %d", rehearsal.MaxMachines, f.machines)
	case f.controllers < 1 || f.controllers > rehearsal.MaxControllers:
		return fleet.Errorf(fleet.KindInvalid, "--control-planes must be from 1 to %d, not %d", rehearsal.MaxControllers, f.controllers)
	}
	loaded, err := a.loadConfig(nil)
	if err != nil {
		return err
	}
	setup, err := rehearsalSetup(loaded)
	if err != nil {
		return err
	}
	plan, err := scenario.Plan(f.seed, f.machines, f.controllers, time.Duration(f.hours*float64(time.Hour)))
	if err != nil {
		return err
	}
	a.note("rehearsing %s with %s: nothing real is touched", scenario.Name, a.configFile)
	if keys := notRehearsed(loaded); len(keys) > 0 {
		a.note("not rehearsed: %s", strings.Join(keys, ", "))
	}
	report, err := rehearsal.Run(ctx, plan, setup, rehearsal.Options{Progress: progressOf(time.Now, a.note)})
	if err != nil {
		return err
	}
	answer := newRehearsal(scenario, f, report)
	if err := a.print(*f.output, answer, func(w *screen) { rehearsalTable(w, answer) }); err != nil {
		return err
	}
	if len(report.Violations) > 0 {
		return fleet.Errorf(fleet.KindUnknown, "%s; report it, with the configuration and this command: %s", answer.Left, f.command(a.configFile))
	}
	if !answer.Well {
		return partly{fleet.Errorf(fleet.KindUnknown, "not everything was well in the end: %s", answer.Left)}
	}
	return nil
}

// progressOf tells every ten seconds how far a rehearsal is.
func progressOf(now func() time.Time, note func(string, ...any)) func(there bool, passed time.Duration) {
	told := now()
	return func(there bool, passed time.Duration) {
		switch {
		case now().Sub(told) < 10*time.Second:
			return
		case there:
			note("%s of the scenario are rehearsed", passed)
		default:
			note("%s are rehearsed, and the fleet is not there and well yet", passed)
		}
		told = now()
	}
}

// command is the command line that rehearses the same again.
func (f rehearseFlags) command(configFile string) string {
	return fmt.Sprintf("ironherd rehearse --config %s --scenario %s --seed %d --machines %d --control-planes %d --hours %g",
		configFile, f.scenario, f.seed, f.machines, f.controllers, f.hours)
}

// rehearsalSetup takes over what a configuration says to the loops.
func rehearsalSetup(c config.Config) (rehearsal.Setup, error) {
	if len(c.Providers) == 0 {
		return rehearsal.Setup{}, fleet.Errorf(fleet.KindInvalid, "the configuration names no provider: there is nothing to rehearse")
	}
	setup := rehearsal.Setup{
		Policy: c.Policy, SessionLease: c.Session.Lease, Initializer: c.Initializer, Recoverer: c.Recoverer, Operations: c.Operations,
		Prober: c.Prober, Janitor: c.Janitor, Image: rehearsal.Brisk().Image,
		Loops: rehearsal.Loops{
			Provisioner: c.Loops.Provisioner, Initializer: c.Loops.Initializer, Updater: c.Loops.Updater, Recoverer: c.Loops.Recoverer,
			Operations: c.Loops.Operations, Prober: c.Loops.Prober,
		},
	}
	// What only looks whether there is something to do may look less often: wake-ups tell.
	setup.Janitor.Interval = max(setup.Janitor.Interval, 20*time.Second)
	for _, l := range []*shepherd.Config{
		&setup.Loops.Provisioner, &setup.Loops.Initializer, &setup.Loops.Updater, &setup.Loops.Recoverer, &setup.Loops.Operations,
		&setup.Loops.Prober,
	} {
		l.Poll = max(l.Poll, 30*time.Second)
	}
	// Nobody calls it. One of this host would be refused, because simulated machines are elsewhere.
	setup.Initializer.Endpoint = "control-plane.example:443"
	for _, p := range c.Providers {
		kind, err := builtin.Find(p.Kind)
		if err != nil {
			return rehearsal.Setup{}, err
		}
		rehearsed := rehearsal.Provider{Name: fleet.ProviderName(p.Name), List: kind.IsList, Provisioner: p.Provisioner, Updater: p.Updater}
		if kind.Pace != nil {
			pace := kind.Pace(p.Sections)
			rehearsed.Limits, rehearsed.PageSize, rehearsed.Account = pace.Limits, pace.PageSize, pace.Account
		}
		if p.Install != nil {
			rehearsed.Provisioner.Install, err = p.Install.Request(fleet.ConfigurationOf(fleet.ProviderName(p.Name)), c.Catalogue())
			if err != nil {
				return rehearsal.Setup{}, fmt.Errorf("provider %s: install: %w", p.Name, err)
			}
		}
		setup.Providers = append(setup.Providers, rehearsed)
	}
	return setup, nil
}

// rehearsed is the answer of the command.
type rehearsed struct {
	Scenario      string            `yaml:"scenario"`
	About         string            `yaml:"about"`
	Seed          uint64            `yaml:"seed"`
	ControlPlanes int               `yaml:"controlPlanes"`
	Timeline      []rehearsedMoment `yaml:"timeline"`
	Restarts      []rehearsedCount  `yaml:"restarts"`
	Created       int               `yaml:"created"`
	Released      int               `yaml:"released"`
	Well          bool              `yaml:"well"`
	SettledAfter  string            `yaml:"settledAfter"`
	Left          string            `yaml:"left"`
	Machines      []rehearsedCount  `yaml:"machines"`
	Providers     []rehearsedCalls  `yaml:"providers"`
	Digest        string            `yaml:"digest"`
}

type rehearsedMoment struct {
	At    string `yaml:"at"`
	What  string `yaml:"what"`
	Times int    `yaml:"times"`
}

type rehearsedCount struct {
	Name  string `yaml:"name"`
	Count int    `yaml:"count"`
}

type rehearsedCalls struct {
	Provider      string           `yaml:"provider"`
	Calls         []rehearsedCount `yaml:"calls"`
	PeakPerSecond int              `yaml:"peakPerSecond"`
}

func newRehearsal(s rehearsal.Scenario, f rehearseFlags, r rehearsal.Report) rehearsed {
	answer := rehearsed{
		Scenario: s.Name, About: s.About, Seed: f.seed, ControlPlanes: f.controllers, Created: r.Created,
		Released: r.Released, Left: r.Left, Digest: r.Digest, Restarts: counts(r.Restarts),
	}
	if len(r.Violations) > 0 { // it ended there
		answer.Left = brokenPromise(r.Violations[0])
	} else if r.Settled > 0 {
		answer.SettledAfter = r.Settled.Round(time.Second).String()
		answer.Left = troubled(r)
		if s.Harmless {
			answer.Left = strings.Join(slices.DeleteFunc([]string{destroyed(r), answer.Left}, func(part string) bool { return part == "" }), "; ")
		}
	}
	answer.Well = answer.Left == ""
	for _, m := range r.Timeline {
		answer.Timeline = append(answer.Timeline, rehearsedMoment{At: m.At.Round(time.Second).String(), What: m.What, Times: m.Times})
	}
	for _, state := range fleet.States() {
		if n := r.States[state]; n > 0 {
			answer.Machines = append(answer.Machines, rehearsedCount{string(state), n})
		}
	}
	for _, c := range r.Calls {
		answer.Providers = append(answer.Providers, rehearsedCalls{string(c.Provider), counts(c.Total), c.Peak})
	}
	return answer
}

func brokenPromise(v rehearsal.Violation) string {
	return fmt.Sprintf("the control plane broke a promise of its own: %s", v)
}

// destroyed says of a scenario that harms no machine how many have lost their disk all the same; ""
// when none has.
func destroyed(r rehearsal.Report) string {
	if r.Restarts["reinstall"]+r.Released == 0 {
		return ""
	}
	return fmt.Sprintf("what was on disks is lost although nothing was wrong with the machines: reinstalls %d, machines given back %d",
		r.Restarts["reinstall"], r.Released)
}

// troubled says which machines somebody has to see to, found or not; "" when there are none.
func troubled(r rehearsal.Report) string {
	var list []rehearsedCount
	total := 0
	for _, state := range fleet.States() {
		if n := r.States[state]; n > 0 && state.Trouble() {
			list = append(list, rehearsedCount{string(state), n})
			total += n
		}
	}
	var parts []string
	switch total {
	case 0:
	case 1:
		parts = append(parts, "1 machine waits for somebody: "+inWords(list, ""))
	default:
		parts = append(parts, fmt.Sprintf("%d machines wait for somebody: %s", total, inWords(list, "")))
	}
	switch n := r.Unwatched; n {
	case 0:
	case 1:
		parts = append(parts, "1 installed machine does not answer, and nobody finds that without install.watch")
	default:
		parts = append(parts, fmt.Sprintf("%d installed machines do not answer, and nobody finds that without install.watch", n))
	}
	return strings.Join(parts, "; ")
}

func counts(of map[string]int) (list []rehearsedCount) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, rehearsedCount{name, of[name]})
	}
	return list
}

func rehearsalTable(w *screen, r rehearsed) {
	w.line("%s: %s", r.Scenario, r.About)
	w.line("")
	for _, m := range r.Timeline {
		times := ""
		if m.Times > 1 {
			times = fmt.Sprintf(" (%d times)", m.Times)
		}
		w.line("%10s  %s%s", m.At, m.What, times)
	}
	w.line("")
	switch {
	case r.Well:
		w.line("Everything was well after %s.", r.SettledAfter)
	case r.SettledAfter != "":
		w.line("Nothing goes on by itself after %s, and %s.", r.SettledAfter, r.Left)
	default:
		w.line("Not everything was well in the end: %s", r.Left)
	}
	w.line("Machines: %s", inWords(r.Machines, "none"))
	restarts := slices.Clone(r.Restarts)
	for i := range restarts {
		switch restarts[i].Name {
		case "installed": // the agent restarts a machine into what it has installed
			restarts[i].Name = "after an install"
		case "reinstall":
			restarts[i].Name = "reinstall (the disk is lost)"
		}
	}
	w.line("Restarts: %s", inWords(restarts, "none"))
	if r.Released > 0 {
		w.line("Given back: %d", r.Released)
	}
	for _, p := range r.Providers {
		w.line("Calls of %s: %s; at most %d in one second", p.Provider, inWords(p.Calls, "none"), p.PeakPerSecond)
	}
}

func inWords(list []rehearsedCount, none string) string {
	if len(list) == 0 {
		return none
	}
	parts := make([]string, len(list))
	for i, c := range list {
		parts[i] = fmt.Sprintf("%d %s", c.Count, c.Name)
	}
	return strings.Join(parts, ", ")
}
