package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// confirmTimeout is how long the control plane may take to carry out a plan.
const confirmTimeout = 110 * time.Second

// verb is a command that asks for something to be done to machines. It makes a plan. The plan is
// confirmed at once with --yes, and where it is about one machine and destroys nothing.
type verb struct {
	use, short, long, example string
	verb                      fleet.Verb
	// waits: --wait waits until there is evidence of the effect.
	waits bool
}

// verbFlags are the flags that all of these commands have in common.
type verbFlags struct {
	selector
	reason    string
	yes, wait bool
	timeout   *time.Duration
	output    *format
}

// whichMachines is how machines are named on the command lines of verbs.
const whichMachines = "[MACHINE...]"

// yesUsage describes --yes.
const yesUsage = "do not show a plan first: do it"

// planHelp ends the help of the verbs.
const planHelp = `

What destroys or interrupts something, calls off an operation that another person has asked for (a quarantine does so at once), switches on what
another person has switched off, or is about several machines, is first shown as a plan, and nothing is done: confirm it within ten minutes with
ironherd plan confirm, or give --yes to have it made and confirmed in one. Machines that have changed meanwhile are skipped.

Where a selector fits more than the 1,000 machines that one plan can have, --yes makes and confirms plan after plan, and prints each. Without it
the plan is for the first 1,000: --after then selects those behind its last machine.`

// verbCommand returns the command of a verb. more adds to the request what only this verb has; it
// may be nil.
func (a *app) verbCommand(v verb, more func(request *fleetv1.CreatePlanRequest) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: v.use + " " + whichMachines, Short: v.short, Long: v.long + planHelp, Example: v.example,
		ValidArgsFunction: a.completeMachines,
	}
	f := a.verbFlags(cmd, v.waits)
	if v.waits {
		cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until it is done, or has failed")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := f.request(v.verb, args)
		if err != nil {
			return err
		}
		if more != nil {
			if err := more(request); err != nil {
				return err
			}
		}
		return a.carryOut(cmd, request, f)
	}
	return cmd
}

// verbFlags adds the flags of a verb to its command, which may have a flag to wait.
func (a *app) verbFlags(cmd *cobra.Command, waits bool) *verbFlags {
	f := &verbFlags{}
	flags := cmd.Flags()
	flags.StringVar(&f.reason, "reason", "", reasonUsage)
	a.selectorFlags(cmd, &f.selector, "instead of naming machines: those")
	flags.BoolVar(&f.yes, "yes", false, yesUsage)
	timeout, usage := confirmTimeout, timeoutUsage
	if waits {
		timeout, usage = 0, timeoutUsage+" (default: 110s without --wait, no limit with it)"
	}
	f.timeout, f.output = timeoutFlag(cmd, timeout, usage), outputFlag(cmd)
	return f
}

// request checks the flags and makes the request.
func (f *verbFlags) request(v fleet.Verb, machines []string) (*fleetv1.CreatePlanRequest, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	switch {
	case len(machines) == 0 && !f.narrows():
		return nil, fleet.Errorf(fleet.KindInvalid, "name machines, or select them with --provider, --state, --location and --label")
	case len(machines) > 0 && f.selects():
		return nil, fleet.Errorf(fleet.KindInvalid,
			"machines and a selector contradict each other: name machines, or select them with --provider, --state, --location, --label, --limit and --after")
	}
	if err := checkReason(f.reason); err != nil {
		return nil, err
	}
	return &fleetv1.CreatePlanRequest{
		Verb: string(v), Machines: machines, Provider: f.provider, States: f.states, Locations: f.locations, Labels: f.labels, After: f.after,
		Reason: f.reason, Confirm: f.yes, ConfirmHarmless: true,
	}, nil
}

const reasonUsage = "why, for history and everybody who asks (required)"

func checkReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fleet.Errorf(fleet.KindInvalid, "--reason must say why: history and everybody who asks are told")
	}
	return nil
}

// withReason completes a command that does one thing for a reason. It prints what was asked for, or
// the sentence that says what was done.
func (a *app) withReason(cmd *cobra.Command, usage string, do func(ctx context.Context, client fleetClient, args []string, reason string) (request proto.Message, done string, err error)) *cobra.Command {
	reason := cmd.Flags().String("reason", "", usage)
	timeout, output := timeoutFlag(cmd, defaultTimeout, timeoutUsage), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(*reason); err != nil {
			return err
		}
		return a.ask(cmd, *timeout, func(ctx context.Context, client fleetClient) error {
			request, done, err := do(ctx, client, args, *reason)
			if err != nil {
				return err
			}
			return a.say(*output, request, "%s", done)
		})
	}
	return cmd
}

// end is what --for or --until means; its fields are nil when the command has neither.
type end struct {
	until *timestamppb.Timestamp
	// lasts, with --for, takes the place of until: the clock of this host may be off. A control plane
	// that is too old to know it goes by until.
	lasts *durationpb.Duration
}

// endOf checks --for and --until.
func endOf(cmd *cobra.Command, lasts time.Duration, at string) (end, error) {
	withFor, withUntil := cmd.Flags().Changed("for"), cmd.Flags().Changed("until")
	switch {
	case withFor && withUntil:
		return end{}, fleet.Errorf(fleet.KindInvalid, "--for and --until contradict each other: give one of them")
	case withFor && lasts <= 0:
		return end{}, fleet.Errorf(fleet.KindInvalid, "--for must be positive, not %s", lasts)
	case withFor:
		return end{timestamppb.New(time.Now().Add(lasts)), durationpb.New(lasts)}, nil
	case !withUntil:
		return end{}, nil
	}
	instant, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return end{}, fleet.Errorf(fleet.KindInvalid, "--until must be an instant such as 2026-11-22T18:00:00Z, not %q", at)
	}
	return end{until: timestamppb.New(instant)}, nil
}

// carryOut makes the plan, shows it or what became of it, and waits where that was asked for.
func (a *app) carryOut(cmd *cobra.Command, request *fleetv1.CreatePlanRequest, f *verbFlags) error {
	limit := *f.timeout
	if limit == 0 && !f.wait {
		limit = confirmTimeout
	}
	yes := request.GetConfirm()
	if f.narrows() {
		whole, _ := bounds(cmd, limit) // nobody knows how many plans there will be
		return a.ask(cmd, whole, func(ctx context.Context, client fleetClient) error {
			o := &following{app: a, client: client, request: request, f: f, yes: yes, each: f.answerWithin(), all: &fleetv1.Plan{}}
			return o.run(ctx)
		})
	}
	return a.ask(cmd, limit, func(ctx context.Context, client fleetClient) error {
		return a.carryOutOne(ctx, client, request, f, yes)
	})
}

// carryOutOne is carryOut for machines that are named, which are in one plan.
func (a *app) carryOutOne(ctx context.Context, client fleetClient, request *fleetv1.CreatePlanRequest, f *verbFlags, yes bool) error {
	bounded, cancel := withTimeout(ctx, f.answerWithin())
	defer cancel()
	plan, err := a.makePlan(bounded, client, request, yes)
	if err != nil {
		return err
	}
	if err := a.print(*f.output, plan, func(w *screen) { a.showPlan(w, plan) }); err != nil {
		return err
	}
	if plan.GetConfirmedAt() == nil {
		a.sayHowToConfirm(plan, f.wait)
		return nil
	}
	return a.afterPlan(ctx, client, plan, f.wait)
}

// answerWithin is how long the control plane may take for one plan, or for one install to be asked
// for. With --wait, the command as a whole has no limit unless it is given one.
func (f *verbFlags) answerWithin() time.Duration { return cmp.Or(*f.timeout, confirmTimeout) }

// makePlan makes the plan, and has it carried out with yes, or where it destroys nothing. Where
// that fails, it returns the plan, too. A plan without an ID can be asked for: see allow_refused.
func (a *app) makePlan(ctx context.Context, client fleetClient, request *fleetv1.CreatePlanRequest, yes bool) (*fleetv1.Plan, error) {
	// Made and confirmed one after the other: whoever misses the reply to the second knows the plan.
	// One that goes on behind another, or that is for labels, is looked at before it is confirmed: see
	// below.
	atOnce := !yes && request.GetAfter() == "" && len(request.GetLabels()) == 0
	request.Confirm, request.ConfirmHarmless = false, atOnce
	response, err := client.CreatePlan(ctx, request)
	selects := request.GetProvider() != "" || len(request.GetStates())+len(request.GetLocations()) > 0
	switch {
	case err != nil && len(request.GetLabels()) > 0 && !selects && kindOf(err) == fleet.KindInvalid:
		return nil, fleet.Errorf(fleet.KindInvalid, "%s (a control plane that is too old to know --label says so)", message(err))
	case err != nil:
		return nil, err
	}
	a.noteCaveat(response.GetCaveat())
	plan := response.GetPlan()
	if after := request.GetAfter(); after != "" && len(plan.GetMachines()) > 0 && plan.GetMachines()[0].GetMachineId() <= after {
		return nil, fleet.Errorf(fleet.KindUnknown, "the control plane is too old to know --after, and this plan is not carried out: upgrade it, or name machines")
	}
	if !slices.Equal(request.GetLabels(), response.GetLabels()) {
		return nil, fleet.Errorf(fleet.KindUnknown, "the control plane is too old to know --label, and this plan is not carried out: upgrade it, or name machines")
	}
	if plan.GetId() == "" || atOnce || !yes && plan.GetNeedsConfirmation() {
		return plan, nil
	}
	confirmed, err := client.ConfirmPlan(ctx, &fleetv1.ConfirmPlanRequest{Id: plan.GetId()})
	if err != nil {
		a.note("It may have begun: %s goes on with it, and repeats nothing.", a.confirm(plan))
		return plan, err
	}
	return confirmed.GetPlan(), nil
}

// sayHowToConfirm ends a command that only made a plan.
func (a *app) sayHowToConfirm(plan *fleetv1.Plan, wait bool) {
	more := ""
	if wait {
		more = " --wait"
	}
	a.note("Nothing has been done. To have it done, until %s: %s%s", instant(plan.GetExpiresAt()), a.confirm(plan), more)
}

// afterPlan waits for the effect of a plan that was carried out, if wait is set, and returns an
// error when not all of it was done.
func (a *app) afterPlan(ctx context.Context, client fleetClient, plan *fleetv1.Plan, wait bool) error {
	var done []*fleetv1.PlannedMachine
	for _, m := range plan.GetMachines() {
		if m.GetOutcome() == "done" {
			done = append(done, m)
		}
	}
	missed := a.outcomeError(plan, len(done))
	if !wait || len(done) == 0 {
		return missed
	}
	verb := fleet.Verb(plan.GetVerb())
	operation, operates := verb.Operation()
	var pending []*awaited
	for _, m := range done {
		// Where a plan is confirmed once more, a machine that is gone by then comes without a number.
		// What was done at once is not awaited.
		switch {
		case verb == fleet.VerbReinstall || m.GetInstallGeneration() > 0:
			pending = append(pending, a.comesUp(ctx, m.GetMachineId(), m.GetName(), m.GetInstallGeneration(), len(done) == 1))
		case operates || m.GetOperation() > 0:
			pending = append(pending, a.operated(ctx, m, operation))
		}
	}
	return afterWaiting(ctx, missed, a.await(ctx, client, pending, len(done)))
}

// outcomeError is the failure of a plan of which only so much was done. What became of each machine
// has been printed.
func (a *app) outcomeError(plan *fleetv1.Plan, done int) error {
	switch {
	case done == len(plan.GetMachines()):
		return nil
	case done > 0:
		return partly{errSilent}
	case len(plan.GetMachines()) == 1:
		m := plan.GetMachines()[0]
		return fleet.Errorf(fleet.KindConflict, "nothing was done to %s: %s", m.GetName(), a.asked(m.GetDetail()))
	}
	return allFailed{fleet.Errorf(fleet.KindConflict, "nothing was done to any of the machines")}
}

// operated awaits the end of the operation.
func (a *app) operated(ctx context.Context, m *fleetv1.PlannedMachine, operation fleet.Operation) *awaited {
	look := func(response *fleetv1.GetMachineResponse) (now string, done bool, err error) {
		o := response.GetOperation()
		switch {
		case o.GetNumber() > m.GetOperation():
			return "", false, fleet.Errorf(fleet.KindConflict, "%s of %s was asked for by %s since: `%s` says what became of operation %d",
				o.GetOperation(), m.GetName(), o.GetActor(), a.command("machine history "+m.GetMachineId()), m.GetOperation())
		case o.GetEndedAt() != nil && o.GetOk():
			return fmt.Sprintf("%s is done: %s", o.GetOperation(), a.asked(o.GetDetail())), true, nil
		case o.GetEndedAt() != nil:
			return "", false, fleet.Errorf(fleet.KindConflict, "%s of %s failed: %s", o.GetOperation(), m.GetName(), a.asked(o.GetDetail()))
		case o.GetAcceptedAt() != nil:
			return o.GetOperation() + " is accepted; waiting for its effect", false, nil
		case o.GetAttempts() > 0:
			return o.GetOperation() + " is attempted", false, nil
		}
		return o.GetOperation() + " is asked for", false, nil
	}
	ended := func(last string, err error) error {
		switch {
		case kindOf(err) != fleet.KindNotFound:
			return a.operationGoesOn(ctx, m, last, err)
		case !operation.GivesBack():
			return fleet.Errorf(fleet.KindNotFound, "%s is not here any more, and whether its %s was done is not known", m.GetName(), operation)
		}
		a.note("%s: it is not here any more", m.GetName())
		return nil
	}
	return &awaited{id: m.GetMachineId(), name: m.GetName(), look: look, ended: ended}
}

// operationGoesOn is waitEnded for an operation.
func (a *app) operationGoesOn(ctx context.Context, m *fleetv1.PlannedMachine, last string, err error) error {
	explain := a.command("machine explain " + m.GetMachineId())
	switch ctx.Err() {
	case context.Canceled:
		a.note("%s: it goes on; see `%s`", m.GetName(), explain)
		return err
	case context.DeadlineExceeded:
		return fleet.Errorf(fleet.KindTimeout, "%s was not done in time: %s. It goes on: see `%s`",
			m.GetName(), cmp.Or(last, "how far it is, is not known"), explain)
	}
	return fleet.Errorf(kindOf(err), "%s. It goes on: see `%s`", whileWaiting(err), explain)
}

// outagePatience is for how long a command that waits takes it that nothing is answered: longer
// than an upgrade keeps a control plane away.
const outagePatience = 10 * time.Minute

// unansweredTooLong reports whether a command that waits gives up, because nothing is answered.
func (a *app) unansweredTooLong() bool {
	return !a.unanswered.IsZero() && time.Since(a.unanswered) > outagePatience
}

// askAgain waits for the next turn of a command that waits, where a question was not answered and
// may be when it is asked again, as while the control plane is upgraded. It tells that once, and
// reports false when nothing was answered for too long, or err is another error or none.
func (a *app) askAgain(ctx context.Context, ticker *time.Ticker, err error) bool {
	if err == nil {
		a.unanswered = time.Time{}
		return false
	}
	switch kindOf(err) {
	case fleet.KindTemporary, fleet.KindTimeout, fleet.KindThrottled:
	default:
		a.unanswered = time.Time{}
		return false
	}
	switch {
	case ctx.Err() != nil:
		return false
	case a.unanswered.IsZero():
		a.note("What was asked for goes on, and so does waiting: %s", whileWaiting(err))
		a.unanswered = time.Now()
	case a.unansweredTooLong():
		return false
	}
	select {
	case <-ticker.C:
	case <-ctx.Done(): // the next question fails by that
	}
	return true
}

// whileWaiting is the message of a failure for those who wait: --timeout, which bounds the waiting,
// gives no question longer.
func whileWaiting(err error) string {
	if late, ok := errors.AsType[noAnswer](err); ok {
		return late.Error()
	}
	return message(err)
}

// showPlan shows a plan, or what became of it.
func (a *app) showPlan(w *screen, p *fleetv1.Plan) {
	carriedOut := false
	for _, m := range p.GetMachines() {
		carriedOut = carriedOut || m.GetOutcome() != ""
	}
	if carriedOut {
		rows := make([][]string, len(p.GetMachines()))
		for i, m := range p.GetMachines() {
			rows[i] = []string{m.GetName(), m.GetOutcome(), a.asked(m.GetDetail())}
		}
		w.table([]string{"MACHINE", "OUTCOME", "DETAIL"}, rows)
		return
	}
	w.line("Plan %s of %s: %s of %s, because: %s", p.GetId(), p.GetActor(), p.GetVerb(), plural(len(p.GetMachines()), "machine"), p.GetReason())
	if p.GetConfirmedAt() != nil {
		w.line("It was confirmed at %s.", instant(p.GetConfirmedAt()))
	}
	used := 0
	rows := make([][]string, len(p.GetMachines()))
	for i, m := range p.GetMachines() {
		does := m.GetDoes()
		if m.GetRefused() != "" {
			does = "nothing: " + m.GetRefused()
		}
		does = a.asked(does)
		if m.GetInUse() != "" {
			used++
		}
		rows[i] = []string{m.GetName(), m.GetState(), m.GetInUse(), does, m.GetDestroys()}
	}
	if used > 0 {
		w.line("%d of %s in use.", used, plural(len(rows), "machine"))
	}
	w.line("")
	w.table([]string{"MACHINE", "STATE", "IN USE", "WHAT HAPPENS", "WHAT IS LOST"}, rows)
}
