package fleetapi_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// levered gives the provider every lever.
func (o *fixture) levered() {
	o.t.Helper()
	o.must(o.db.SetLevers(o.t.Context(), providerName, []fleet.Lever{fleet.LeverReboot, fleet.LeverPower, fleet.LeverReinstall, fleet.LeverRelease}))
}

func (o *fixture) record(id fleet.MachineID) fleet.Record {
	o.t.Helper()
	r, err := o.db.Machine(o.t.Context(), id)
	o.must(err)
	return r
}

// explained returns what explain says of host-0.
func (o *fixture) explained() *fleetv1.ExplainMachineResponse {
	o.t.Helper()
	a, err := o.client(token.Viewer).ExplainMachine(o.t.Context(), &fleetv1.ExplainMachineRequest{Machine: "host-0"})
	o.must(err)
	return a
}

// gone makes the provider say that it does not have the machine.
func (o *fixture) status(id fleet.MachineID, status fleet.ProviderStatus) {
	o.t.Helper()
	w := o.claim(fleet.ProcessUpdate)[0]
	o.must(w.Finish(o.t.Context(), bmdb.SetProvided(id, "", fleet.Provided{Status: status, Hostname: "host-0", Detail: "it " + string(status)})))
}

// TestEveryVerb has each verb carried out on one machine, at once where it destroys nothing, and
// asks what explain and the facts say of it then.
func TestEveryVerb(t *testing.T) {
	t.Parallel()
	for verb, test := range map[fleet.Verb]struct {
		prepare func(o *fixture, id fleet.MachineID)
		needs   bool // to be looked at first
		fresh   bool // no agent was started on it
		done    func(r fleet.Record) bool
		fact    string
		who     string
		command string
	}{
		fleet.VerbReboot:     {done: operating(fleet.OperationReboot), fact: "operation", who: "ironherd"},
		fleet.VerbPowerOn:    {done: operating(fleet.OperationPowerOn), fact: "operation", who: "ironherd"},
		fleet.VerbPowerOff:   {done: operating(fleet.OperationPowerOff), fact: "operation", who: "ironherd", needs: true},
		fleet.VerbPowerCycle: {done: operating(fleet.OperationPowerCycle), fact: "operation", who: "ironherd"},
		fleet.VerbRelease:    {done: operating(fleet.OperationRelease), fact: "operation", who: "ironherd", needs: true},
		fleet.VerbReplace:    {done: operating(fleet.OperationReplace), fact: "operation", who: "ironherd", needs: true},
		fleet.VerbWithdraw: {
			prepare: func(o *fixture, id fleet.MachineID) {
				_, err := bmdbtest.Operate(o.t.Context(), o.db, "token operator", id, fleet.OperationReboot, "b")
				o.must(err)
			},
			done: func(r fleet.Record) bool { return r.OperationReport != nil && !r.OperationReport.OK }, fact: "operation report", who: "nobody",
		},
		fleet.VerbReinstall: {needs: true, done: func(r fleet.Record) bool { return r.InstallRequest != nil }, fact: "install request", who: "ironherd"},
		fleet.VerbCancelInstall: {
			prepare: func(o *fixture, id fleet.MachineID) {
				_, err := o.db.RequestInstall(o.t.Context(), "a", id, fleet.InstallRequest{Image: fleet.Image{URL: "http://h/i"}}, false)
				o.must(err)
			},
			done: func(r fleet.Record) bool { return r.InstallCancel != nil && r.InstallCancel.Generation == 1 }, fact: "install called off", who: "nobody",
		},
		fleet.VerbQuarantine: {
			done: func(r fleet.Record) bool { return r.Quarantine != nil }, fact: "quarantine", who: "operator", command: "ironherd machine unquarantine ",
		},
		fleet.VerbUnquarantine: {
			prepare: func(o *fixture, id fleet.MachineID) { o.must(bmdbtest.Quarantine(o.t.Context(), o.db, "a", id, "b")) },
			done:    func(r fleet.Record) bool { return r.Quarantine == nil }, who: "nobody",
		},
		fleet.VerbBeginMaintenance: {
			done: func(r fleet.Record) bool { return r.Maintenance != nil && !r.Maintenance.Over }, fact: "maintenance", who: "operator",
			command: "ironherd machine maintenance end ",
		},
		fleet.VerbEndMaintenance: {
			prepare: func(o *fixture, id fleet.MachineID) {
				o.must(bmdbtest.BeginMaintenance(o.t.Context(), o.db, "a", id, nil, "b"))
			},
			done: func(r fleet.Record) bool { return r.Maintenance != nil && r.Maintenance.Over }, fact: "maintenance", who: "nobody",
		},
		fleet.VerbMarkInstalled: {
			fresh: true,
			done:  func(r fleet.Record) bool { return r.Installed != nil && r.Installed.Attempt == 0 }, fact: "marked installed", who: "nobody",
		},
		fleet.VerbForget: {prepare: func(o *fixture, id fleet.MachineID) { o.status(id, fleet.ProviderStatusGone) }},
	} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			o := newFixture(t)
			o.levered()
			id := o.machines(1)[0]
			if !test.fresh {
				o.takeover(o.claim(fleet.ProcessAgentStart)[0])
			}
			if test.prepare != nil {
				test.prepare(o, id)
			}
			client := o.client(token.Operator)
			request := &fleetv1.CreatePlanRequest{Verb: string(verb), Machines: []string{"host-0"}, Reason: "because", ConfirmHarmless: true}
			if verb == fleet.VerbReinstall {
				request.Install = wanted("")
			}
			a, err := client.CreatePlan(t.Context(), request)
			o.must(err)
			plan := a.GetPlan()
			if plan.GetNeedsConfirmation() != test.needs || (plan.GetConfirmedAt() != nil) == test.needs || plan.GetActor() != "token operator" {
				t.Fatalf("plan %v", plan)
			}
			if test.needs {
				if test.done(o.record(id)) {
					t.Fatal("done before anybody said yes")
				}
				shown, err := o.client(token.Viewer).GetPlan(t.Context(), &fleetv1.GetPlanRequest{Id: plan.GetId()})
				o.must(err)
				if shown.GetPlan().GetMachines()[0].GetDestroys() == "" && verb != fleet.VerbPowerOff {
					t.Errorf("it does not say what it destroys: %v", shown)
				}
				b, err := client.ConfirmPlan(t.Context(), &fleetv1.ConfirmPlanRequest{Id: plan.GetId()})
				o.must(err)
				plan = b.GetPlan()
			}
			if m := plan.GetMachines()[0]; m.GetOutcome() != "done" || m.GetDetail() == "" || m.GetDoes() == "" || m.GetName() != "host-0" {
				t.Errorf("outcome %v", m)
			}
			if verb == fleet.VerbForget {
				if _, err := o.db.Machine(t.Context(), id); fleet.KindOf(err) != fleet.KindNotFound {
					t.Errorf("it is still there: %v", err)
				}
				_, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: "host-0"})
				if code(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "`ironherd machine history "+string(id)+"` tells what became of it") {
					t.Errorf("shown: %v", err)
				}
				return
			}
			if !test.done(o.record(id)) {
				t.Errorf("the record is %+v", o.record(id))
			}
			shown, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: "host-0"})
			o.must(err)
			if test.fact != "" && !hasFact(shown, test.fact) {
				t.Errorf("no fact %q in %v", test.fact, shown.GetFacts())
			}
			next := o.explained().GetNext()
			if next.GetWho() != test.who || !strings.HasPrefix(next.GetCommand(), test.command) || (test.command == "") != (next.GetCommand() == "") {
				t.Errorf("next is %v", next)
			}
		})
	}
}

func hasFact(a *fleetv1.GetMachineResponse, name string) bool {
	for _, f := range a.GetFacts() {
		if f.GetName() == name && (strings.Contains(f.GetDetail(), "because") || strings.Contains(f.GetDetail(), "host-0") || f.GetDetail() != "") {
			return true
		}
	}
	return false
}

func operating(o fleet.Operation) func(r fleet.Record) bool {
	return func(r fleet.Record) bool {
		return r.Operation != nil && r.Operation.Operation == o && r.Operation.Actor == "token operator" && r.Operation.Reason == "because"
	}
}

func TestBadPlans(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.levered()
	o.machines(2)
	_, err := o.db.StartSession(t.Context(), bmdb.SessionOptions{
		Component: fleet.RoleOperations.Component(), Lease: time.Hour, Providers: []fleet.ProviderName{"lab"},
	})
	o.must(err)
	client := o.client(token.Operator)
	ok := func() *fleetv1.CreatePlanRequest {
		return &fleetv1.CreatePlanRequest{Verb: "quarantine", Machines: []string{"host-0"}, Reason: "because"}
	}
	for name, test := range map[string]struct {
		spoil func(r *fleetv1.CreatePlanRequest)
		code  connect.Code
		told  string
	}{
		"verb":                {func(r *fleetv1.CreatePlanRequest) { r.Verb = "dance" }, connect.CodeInvalidArgument, `no verb is named "dance"`},
		"spaces for a reason": {func(r *fleetv1.CreatePlanRequest) { r.Reason = " \u00a0" }, connect.CodeInvalidArgument, "reason must be set"},
		"no reason":           {func(r *fleetv1.CreatePlanRequest) { r.Reason = "" }, connect.CodeInvalidArgument, "reason must be set"},
		"lines":               {func(r *fleetv1.CreatePlanRequest) { r.Reason = "a\nb" }, connect.CodeInvalidArgument, "one line"},
		"long":                {func(r *fleetv1.CreatePlanRequest) { r.Reason = strings.Repeat("x", 501) }, connect.CodeInvalidArgument, "501 bytes"},
		"nothing":             {func(r *fleetv1.CreatePlanRequest) { r.Machines = nil }, connect.CodeInvalidArgument, "name machines"},
		"both":                {func(r *fleetv1.CreatePlanRequest) { r.States = []string{"silent"} }, connect.CodeInvalidArgument, "contradict"},
		"state": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.States = nil, []string{"odd"} }, connect.CodeInvalidArgument, `no state is named "odd"`,
		},
		"none fits": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.States = nil, []string{"silent"} }, connect.CodeNotFound, "fits no machine",
		},
		"provider": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Provider = nil, "nowhere" }, connect.CodeNotFound, "use one of lab",
		},
		"unknown": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines = []string{"host-8", "host-0", "host-9"} }, connect.CodeNotFound, "host-8",
		},
		"many": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines = make([]string, 1001) }, connect.CodeInvalidArgument, "1001 machines are too many",
		},
		"until": {
			func(r *fleetv1.CreatePlanRequest) { r.Until = timestamppb.Now() }, connect.CodeInvalidArgument, "only a maintenance has an end",
		},
		"instant": {
			func(r *fleetv1.CreatePlanRequest) { r.Until = &timestamppb.Timestamp{Nanos: -1} }, connect.CodeInvalidArgument, "until is not an instant",
		},
		"past": {
			func(r *fleetv1.CreatePlanRequest) {
				r.Verb, r.Until, r.Confirm = "begin-maintenance", timestamppb.New(time.Unix(1, 0)), true
			}, connect.CodeInvalidArgument, "the end of the maintenance, 1970-01-01 00:00:01 UTC, is past",
		},
		"install":  {func(r *fleetv1.CreatePlanRequest) { r.Install = wanted("") }, connect.CodeInvalidArgument, "install belongs to"},
		"no image": {func(r *fleetv1.CreatePlanRequest) { r.Verb = "reinstall" }, connect.CodeInvalidArgument, "image.url"},
		"not in quarantine": {
			func(r *fleetv1.CreatePlanRequest) { r.Verb = "unquarantine" }, connect.CodeFailedPrecondition, "machine host-0 is not in quarantine",
		},
		"no such location": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Locations = nil, []string{"there"} }, connect.CodeNotFound, "the selector fits no machine",
		},
		"a location without a name": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Locations = nil, []string{"here", ""} }, connect.CodeInvalidArgument, "locations must be at most 100",
		},
		"names and a location": {
			func(r *fleetv1.CreatePlanRequest) { r.Locations = []string{"here"} }, connect.CodeInvalidArgument, "contradict each other",
		},
		"a label that is none": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Labels = nil, []string{"a b"} }, connect.CodeInvalidArgument, "a label has a name",
		},
		"names and a label": {func(r *fleetv1.CreatePlanRequest) { r.Labels = []string{"a"} }, connect.CodeInvalidArgument, "contradict each other"},
		"no such label":     {func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Labels = nil, []string{"a"} }, connect.CodeNotFound, "the selector fits no machine"},
		"names and after":   {func(r *fleetv1.CreatePlanRequest) { r.After = lastOfAll }, connect.CodeInvalidArgument, "contradict each other"},
		"after a name": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Provider, r.After = nil, "lab", "host-0" }, connect.CodeInvalidArgument, "after must be the ID",
		},
		"after the last": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Provider, r.After = nil, "lab", lastOfAll }, connect.CodeNotFound, "no machine behind ffffffff",
		},
		"names and a limit": {func(r *fleetv1.CreatePlanRequest) { r.Limit = 1 }, connect.CodeInvalidArgument, "contradict each other"},
		"a limit alone": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Limit = nil, 1 }, connect.CodeInvalidArgument, "or select them by provider, state, location and label",
		},
		"limit": {
			func(r *fleetv1.CreatePlanRequest) { r.Machines, r.Provider, r.Limit = nil, "lab", 1001 }, connect.CodeInvalidArgument, "limit must be from 1 to 1000",
		},
		"not gone": {func(r *fleetv1.CreatePlanRequest) { r.Verb = "forget" }, connect.CodeFailedPrecondition, "machine release"},
	} {
		request := ok()
		test.spoil(request)
		_, err := client.CreatePlan(t.Context(), request)
		if code(err) != test.code || !strings.Contains(message(err), test.told) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, id := range []string{"", "nothing", strings.Repeat("x", 1000)} {
		if _, err := client.ConfirmPlan(t.Context(), &fleetv1.ConfirmPlanRequest{Id: id}); code(err) != connect.CodeNotFound {
			t.Errorf("plan %.9q: %v", id, err)
		}
		if _, err := client.GetPlan(t.Context(), &fleetv1.GetPlanRequest{Id: id}); code(err) != connect.CodeNotFound {
			t.Errorf("plan %.9q: %v", id, err)
		}
	}
}

// TestSecretsOfAReinstallStayHidden asks for what can be seen of a plan whose image has a presigned
// URL.
func TestSecretsOfAReinstallStayHidden(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	client := o.client(token.Operator)
	install := wanted("")
	install.Image.Url, install.FirstBootData = "https://images.example/a.zst?X-Amz-Signature=hidden", []byte("hidden")
	a, err := client.CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
		Verb: "reinstall", Machines: []string{"host-0"}, Reason: "because", Install: install, Confirm: true,
	})
	o.must(err)
	b, err := client.GetPlan(t.Context(), &fleetv1.GetPlanRequest{Id: a.GetPlan().GetId()})
	o.must(err)
	history, err := client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Machine: "host-0"})
	o.must(err)
	for _, shown := range []string{a.String(), b.String(), history.String()} {
		if strings.Contains(shown, "hidden") || !strings.Contains(shown, "https://images.example/a.zst?…") {
			t.Errorf("shown: %s", shown)
		}
	}
	if !strings.Contains(history.String(), "because (plan "+a.GetPlan().GetId()+")") {
		t.Errorf("the history does not say why: %s", history)
	}
	id, err := o.db.Resolve(t.Context(), "host-0")
	o.must(err)
	if r := o.record(id).InstallRequest; r.Image.URL != install.GetImage().GetUrl() || string(r.FirstBootData) != "hidden" {
		t.Errorf("what is installed is %+v", r)
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	client := o.client(token.Operator)
	hold := func() *fleetv1.RecoveryHold {
		a, err := client.GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
		o.must(err)
		return a.GetRecoveryHold()
	}
	if hold() != nil {
		t.Errorf("hold %v", hold())
	}
	if _, err := client.ResumeRecovery(t.Context(), &fleetv1.ResumeRecoveryRequest{}); code(err) != connect.CodeFailedPrecondition {
		t.Errorf("resumed what goes on: %v", err)
	}
	if _, err := client.PauseRecovery(t.Context(), &fleetv1.PauseRecoveryRequest{}); code(err) != connect.CodeInvalidArgument {
		t.Errorf("paused without a reason: %v", err)
	}
	past := &fleetv1.PauseRecoveryRequest{Reason: "r", Until: timestamppb.New(time.Unix(1, 0))}
	if _, err := client.PauseRecovery(t.Context(), past); code(err) != connect.CodeInvalidArgument {
		t.Errorf("paused until the past: %v", err)
	}
	_, err := client.PauseRecovery(t.Context(), &fleetv1.PauseRecoveryRequest{Reason: "the switch", Until: timestamppb.New(time.Now().Add(time.Hour))})
	o.must(err)
	if h := hold(); h.GetActor() != "token operator" || h.GetReason() != "the switch" || h.GetUntil() == nil {
		t.Errorf("hold %v", h)
	}
	_, err = client.ResumeRecovery(t.Context(), &fleetv1.ResumeRecoveryRequest{})
	o.must(err)
	if hold() != nil {
		t.Errorf("hold %v", hold())
	}

	lab := func() *fleetv1.Provider {
		a, err := client.ListProviders(t.Context(), &fleetv1.ListProvidersRequest{})
		o.must(err)
		return a.GetProviders()[0]
	}
	resume := &fleetv1.ResumeProviderRequest{Provider: "lab", Reason: "enough"}
	if _, err := client.ResumeProvider(t.Context(), resume); code(err) != connect.CodeFailedPrecondition {
		t.Errorf("resumed what is not paused: %v", err)
	}
	if _, err := client.PauseProvider(t.Context(), &fleetv1.PauseProviderRequest{Provider: "nowhere", Reason: "r"}); code(err) != connect.CodeNotFound {
		t.Errorf("paused what there is not: %v", err)
	}
	if _, err := client.PauseProvider(t.Context(), &fleetv1.PauseProviderRequest{Provider: "lab"}); code(err) != connect.CodeInvalidArgument {
		t.Errorf("paused without a reason: %v", err)
	}
	_, err = client.PauseProvider(t.Context(), &fleetv1.PauseProviderRequest{Provider: "lab", Reason: "a bill"})
	o.must(err)
	if p := lab(); p.GetPausedBy() != "token operator" || p.GetPausedWhy() != "a bill" || p.GetPausedAt() == nil {
		t.Errorf("provider %v", p)
	}
	summary, err := client.GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
	o.must(err)
	if p := summary.GetPausedProviders(); len(p) != 1 || p[0].GetProvider() != "lab" || p[0].GetActor() != "token operator" ||
		p[0].GetReason() != "a bill" || p[0].GetAt() == nil || len(summary.GetConcerns()) != 1 || !strings.Contains(summary.GetConcerns()[0].GetText(), "host c makes no sense") {
		t.Errorf("the summary says %v", summary)
	}
	_, err = client.ResumeProvider(t.Context(), resume)
	o.must(err)
	if p := lab(); p.GetPausedAt() != nil {
		t.Errorf("provider %v", p)
	}
	a, err := client.RetryProvider(t.Context(), &fleetv1.RetryProviderRequest{Provider: "lab"})
	if err != nil || a.GetPenalties() != 1 || a.GetKept() != 0 {
		t.Errorf("retried %v, %v", a, err)
	}
	for _, bad := range []string{"", "NO", "nowhere"} {
		if _, err := client.RetryProvider(t.Context(), &fleetv1.RetryProviderRequest{Provider: bad}); code(err) != connect.CodeInvalidArgument && code(err) != connect.CodeNotFound {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestAdopt: only what a discrepancy names.
func TestAdopt(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	w := o.claim(fleet.ProcessProvision)[0]
	o.must(w.Finish(t.Context(), bmdb.SetDiscrepancies([]bmdb.Discrepancy{{Kind: fleet.DiscrepancyUnknownMachine, ProviderID: "dev-9", Evidence: "e", Remedy: "r"}})))
	client := o.client(token.Operator)
	adopt := func(provider, id, reason string) error {
		_, err := client.AdoptMachine(t.Context(), &fleetv1.AdoptMachineRequest{Provider: provider, ProviderId: id, Reason: reason})
		return err
	}
	for id, want := range map[string]connect.Code{
		"dev-9": 0, "dev-8": connect.CodeNotFound, "": connect.CodeInvalidArgument, strings.Repeat("x", 301): connect.CodeInvalidArgument,
	} {
		for range 2 {
			if err := adopt("lab", id, "made by hand"); code(err) != want {
				t.Errorf("%.9q: %v", id, err)
			}
		}
	}
	a, err := client.AdoptMachine(t.Context(), &fleetv1.AdoptMachineRequest{Provider: "lab", ProviderId: "dev-9", Installed: true, Reason: "it is in use"})
	o.must(err)
	if !a.GetInstalled() {
		t.Error("the answer does not say that it is taken in as installed")
	}
	rows, err := o.db.ProviderHistory(t.Context(), "lab", 1, false)
	o.must(err)
	if rows[0].Event != fleet.EventAdoptionRequested || rows[0].Detail != "dev-9, as installed; it is in use" {
		t.Errorf("history: %+v", rows)
	}
	o.must(o.db.PauseProvider(t.Context(), "ada", "lab", "a bill"))
	a, err = client.AdoptMachine(t.Context(), &fleetv1.AdoptMachineRequest{Provider: "lab", ProviderId: "dev-9", Reason: "made by hand"})
	o.must(err)
	if p := a.GetPaused(); p.GetProvider() != "lab" || p.GetActor() != "ada" || p.GetReason() != "a bill" {
		t.Errorf("at a paused provider: %v", a)
	}
	if err := adopt("nowhere", "dev-9", "made by hand"); code(err) != connect.CodeNotFound {
		t.Errorf("nowhere: %v", err)
	}
	if err := adopt("lab", "dev-9", ""); code(err) != connect.CodeInvalidArgument {
		t.Errorf("without a reason: %v", err)
	}
}

// TestTroubleHasACommand: explain tells a person what to type in every state that only a person
// ends.
func TestTroubleHasACommand(t *testing.T) {
	t.Parallel()
	for status, command := range map[fleet.ProviderStatus]string{
		fleet.ProviderStatusFailed: "ironherd machine replace ",
		fleet.ProviderStatusGone:   "ironherd machine forget ",
	} {
		o := newFixture(t)
		o.levered()
		id := o.machines(1)[0]
		o.status(id, status)
		a := o.explained()
		if a.GetNext().GetWho() != "operator" || !strings.HasPrefix(a.GetNext().GetCommand(), command+string(id)) ||
			!strings.Contains(a.GetSummary(), "It is your turn: `"+command) {
			t.Errorf("%s: %v", status, a)
		}
	}
}

// TestAReinstallWaits: the plan says for what, where nothing touches the machine now.
func TestAReinstallWaits(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	does := func() string {
		a, err := o.client(token.Operator).CreatePlan(t.Context(), &fleetv1.CreatePlanRequest{
			Verb: "reinstall", Machines: []string{"host-0"}, Reason: "because", Install: wanted(""),
		})
		o.must(err)
		return a.GetPlan().GetMachines()[0].GetDoes()
	}
	if got := does(); !strings.HasSuffix(got, " is installed") {
		t.Errorf("%q", got)
	}
	o.must(bmdbtest.BeginMaintenance(t.Context(), o.db, "op", id, nil, "a fan"))
	if got := does(); !strings.HasSuffix(got, " is installed when its maintenance ends") {
		t.Errorf("%q", got)
	}
	o.must(bmdbtest.Quarantine(t.Context(), o.db, "op", id, "smells"))
	if got := does(); !strings.HasSuffix(got, " is installed when its quarantine ends") {
		t.Errorf("%q", got)
	}
}
