package fleetapi_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

func TestListMachinesPageByPage(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(5)
	for protocol, option := range map[string]connect.ClientOption{
		"connect": connect.WithProtoJSON(), "grpc-web": connect.WithGRPCWeb(), "get": connect.WithHTTPGet(),
	} {
		client := o.client(token.Viewer, option)
		var got []fleet.MachineID
		request := &fleetv1.ListMachinesRequest{PageSize: 2}
		for pages := 1; ; pages++ {
			a, err := client.ListMachines(t.Context(), request)
			o.must(err)
			for _, m := range a.GetMachines() {
				got = append(got, fleet.MachineID(m.GetId()))
			}
			if request.PageToken = a.GetNextPageToken(); request.GetPageToken() == "" {
				if pages != 3 {
					t.Errorf("%s: %d pages", protocol, pages)
				}
				break
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: got %v, want %v", protocol, got, ids)
		}
	}
	m, err := o.client(token.Viewer).ListMachines(t.Context(), &fleetv1.ListMachinesRequest{States: []string{"provided"}, Provider: "lab"})
	o.must(err)
	if len(m.GetMachines()) != 5 || m.GetNextPageToken() != "" {
		t.Fatalf("by state: %v", m)
	}
	first := m.GetMachines()[0]
	if first.GetHostname() != "host-0" || first.GetAddress() != "192.0.2.7" || first.GetProviderId() != "id-host-0" || first.GetStateSince() == nil {
		t.Errorf("row: %v", first)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(3)
	o.claim(fleet.ProcessAgentStart)
	o.must(o.session.Extend(t.Context())) // which says how much it holds
	a, err := o.client(token.Viewer).GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
	o.must(err)
	if a.GetMachines() != 3 || len(a.GetStates()) != len(fleet.States()) || len(a.GetPhases()) != 0 {
		t.Errorf("got %v", a)
	}
	for _, p := range a.GetProcesses() {
		if p.GetProcess() == "agent-start" && p.GetRunning() != 3 {
			t.Errorf("got %v", p)
		}
	}
	a, err = o.client(token.Viewer).GetSummary(t.Context(), &fleetv1.GetSummaryRequest{Phases: true})
	o.must(err)
	if len(a.GetPhases()) == 0 || a.GetPhases()[0].GetPhase() != "provision" || a.GetPhases()[0].GetCount() != 3 {
		t.Errorf("phases: %v", a.GetPhases())
	}
}

func TestMachineAndItsNames(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	o.takeover(o.claim(fleet.ProcessAgentStart)[0])
	o.progress = &agentv1.InstallProgress{BytesDone: 3}
	for _, ref := range []string{string(id), string(id)[:13], "host-0", "lab/id-host-0"} {
		a, err := o.client(token.Viewer).GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: ref})
		o.must(err)
		m := a.GetMachine()
		if m.GetId() != string(id) || m.GetState() != "available" || m.GetStateSince() == nil || m.GetAgentVersion() != "v1" || m.GetLastSeenAt() == nil ||
			a.GetHardware().GetSystem().GetVendor() != "ACME" || a.GetInstallProgress().GetBytesDone() != 3 || len(a.GetDecisions()) != len(fleet.Processes()) {
			t.Errorf("%s: %v", ref, a)
		}
		var names []string
		for _, f := range a.GetFacts() {
			names = append(names, f.GetName())
		}
		if got := strings.Join(names, " "); got != "provided agent started agent spoke agent seen hardware report" {
			t.Errorf("facts: %s", got)
		}
	}
}

// TestNoProgressOfAnInstallThatHasEnded: the agent may have told its end to another control plane,
// which this one does not hear from it.
func TestNoProgressOfAnInstallThatHasEnded(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	agent := o.takeover(o.claim(fleet.ProcessAgentStart)[0])
	install := func(generation int64) *bmdb.InstallOrder {
		t.Helper()
		_, err := o.db.RequestInstall(t.Context(), "test", id, fleet.InstallRequest{Image: fleet.Image{URL: "http://x/", Digest: "d"}}, generation > 1)
		o.must(err)
		o.progress = &agentv1.InstallProgress{InstallGeneration: generation, Attempt: 1, BytesDone: 3}
		if generation > 1 {
			return nil // it wants an agent first
		}
		order, err := o.db.HandOutInstall(t.Context(), agent, 0, 0)
		o.must(err)
		return order
	}
	told := func(when string, want bool) {
		t.Helper()
		a, err := o.client(token.Viewer).GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: string(id)})
		o.must(err)
		if told := a.GetInstallProgress() != nil; told != want {
			t.Errorf("%s progress is told: %t", when, told)
		}
	}
	order := install(1)
	told("while it runs", true)
	o.must(o.db.RecordInstallReport(t.Context(), agent, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
	told("after its report", false)
	o.must(errorOf(o.db.RecordInstalled(t.Context(), id, 1, 1, order.Secret, "b2")))
	told("once the system is up", false)
	install(2)
	told("of the reinstall", true)
}

// TestListAndDetailsAgree: a machine is the same in a list and on its own, from its intent until
// its system is installed. Only while somebody is at work on it do the reasons differ.
func TestListAndDetailsAgree(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	client := o.client(token.Viewer)
	agree := func(step string) {
		t.Helper()
		list, err := client.ListMachines(t.Context(), &fleetv1.ListMachinesRequest{})
		o.must(err)
		for _, row := range list.GetMachines() {
			a, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: row.GetId()})
			o.must(err)
			if strings.HasSuffix(row.GetReason(), " is under way") {
				row.Reason = a.GetMachine().GetReason()
			}
			if diff := cmp.Diff(row, a.GetMachine(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: the list (-) and the machine (+) differ:\n%s", step, diff)
			}
			explained, err := client.ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: row.GetId()})
			o.must(err)
			if diff := cmp.Diff(a.GetMachine(), explained.GetMachine(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: the machine (-) and its explanation (+) differ:\n%s", step, diff)
			}
		}
	}
	w := o.claim(fleet.ProcessProvision)[0]
	var opened []fleet.Intent
	o.must(w.Note(t.Context(), bmdb.OpenIntents(0, []bmdb.NewIntent{{Capacity: "slot", Machine: fleet.NewMachineID(), Token: fleet.NewToken()}}, &opened)))
	agree("creating")
	id := opened[0].Machine
	o.must(w.Finish(t.Context(), bmdb.IntentCalled(id), bmdb.CloseIntentProvided(id, "dev-1", fleet.Provided{
		Status: fleet.ProviderStatusActive, Hostname: "host-0", Address: netip.MustParseAddr("2001:db8::7"), Location: "da11", Capacity: "slot",
	})))
	agree("provided")
	work := o.claim(fleet.ProcessAgentStart)[0]
	agree("agent-start is under way")
	agent := o.takeover(work)
	agree("available")
	_, err := o.db.RequestInstall(t.Context(), "test", id, fleet.InstallRequest{Image: fleet.Image{URL: "http://x/", Digest: "d"}}, false)
	o.must(err)
	agree("an install is wanted")
	order, err := o.db.HandOutInstall(t.Context(), agent, 0, 0)
	o.must(err)
	agree("installing")
	o.must(o.db.RecordInstallReport(t.Context(), agent, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
	agree("booting")
	o.must(errorOf(o.db.RecordInstalled(t.Context(), id, 1, 1, order.Secret, "b2")))
	agree("installed")
}

// TestExplain: a machine whose process is held, one in backoff, one that needs nothing, and one
// that is installed.
func TestExplain(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	ids := o.machines(3)
	works := o.claim(fleet.ProcessAgentStart)
	byMachine := map[fleet.MachineID]*bmdb.Work{}
	for _, w := range works {
		byMachine[w.Subject.Machine] = w
	}
	o.must(byMachine[ids[1]].Fail(t.Context(), bmdb.Failure{Cause: "no route to host", Backoff: fleet.Backoff{Initial: time.Hour}}))
	agent := o.takeover(byMachine[ids[2]])
	explain := func(id fleet.MachineID) *fleetv1.ExplainMachineResponse {
		a, err := o.client(token.Viewer).ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: string(id)})
		o.must(err)
		return a
	}
	decision := func(a *fleetv1.ExplainMachineResponse, process string) *fleetv1.Decision {
		for _, d := range a.GetDecisions() {
			if d.GetProcess() == process {
				return d
			}
		}
		return nil
	}
	held := explain(ids[0])
	if d := decision(held, "agent-start"); d.GetVerdict() != "running" || d.GetSession() != string(o.session.ID()) || d.GetEpoch() == 0 ||
		!strings.HasPrefix(held.GetSummary(), "agent-start is under way: held by session "+string(o.session.ID())) {
		t.Errorf("held: %s / %v", held.GetSummary(), d)
	}
	waiting := explain(ids[1])
	if d := decision(waiting, "agent-start"); d.GetVerdict() != "later" || d.GetBackoffCause() != "no route to host" || d.GetDueAt() == nil ||
		!strings.HasPrefix(waiting.GetSummary(), "agent-start waits until ") || !strings.Contains(waiting.GetSummary(), "no route to host") {
		t.Errorf("in backoff: %s / %v", waiting.GetSummary(), d)
	}
	idle := explain(ids[2])
	if !strings.HasPrefix(idle.GetSummary(), "Nothing is to be done now: it is available") {
		t.Errorf("available: %s", idle.GetSummary())
	}
	_, err := o.db.RequestInstall(t.Context(), "test", ids[2], fleet.InstallRequest{Image: fleet.Image{URL: "http://x/", Digest: "d"}}, false)
	o.must(err)
	order, err := o.db.HandOutInstall(t.Context(), agent, 0, 0)
	o.must(err)
	o.must(o.db.RecordInstallReport(t.Context(), agent, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
	onDisk := func() bool {
		a, err := o.client(token.Viewer).GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: string(ids[2])})
		o.must(err)
		return slices.ContainsFunc(a.GetFacts(), func(f *fleetv1.Fact) bool { return f.GetName() == "on disk" })
	}
	if !onDisk() {
		t.Error("booting: no fact says what is on the disk")
	}
	o.must(errorOf(o.db.RecordInstalled(t.Context(), ids[2], 1, 1, order.Secret, "b2")))
	installed := explain(ids[2])
	if onDisk() {
		t.Error("installed: it is said not to have come up")
	}
	if installed.GetMachine().GetState() != "installed" || !strings.HasPrefix(installed.GetSummary(), "Nothing is wanted of this machine: it is installed") {
		t.Errorf("installed: %s", installed.GetSummary())
	}
}

func TestHistoryProvidersSessionsVersion(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(2)[0]
	o.claim(fleet.ProcessAgentStart)
	client := o.client(token.Viewer)
	h, err := client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Machine: string(id)})
	o.must(err)
	if n := len(h.GetEntries()); n < 2 || h.GetEntries()[n-1].GetEvent() != string(fleet.EventStarted) || h.GetEntries()[n-1].GetProcess() != "agent-start" {
		t.Errorf("history: %v", h)
	}
	h, err = client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Provider: "lab"})
	o.must(err)
	if len(h.GetEntries()) == 0 {
		t.Error("the provider has no history")
	}
	_, err = client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Provider: "lab", Machine: string(id)})
	if code(err) != connect.CodeInvalidArgument {
		t.Errorf("a history of two: %v", err)
	}
	_, err = client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Machine: string(id), WithoutFinished: true})
	if code(err) != connect.CodeInvalidArgument {
		t.Errorf("a machine without what finished: %v", err)
	}
	finished := func(without bool) bool {
		h, err := client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Provider: "lab", WithoutFinished: without})
		o.must(err)
		return slices.ContainsFunc(h.GetEntries(), func(e *fleetv1.HistoryEntry) bool { return e.GetEvent() == string(fleet.EventFinished) })
	}
	if !finished(false) || finished(true) {
		t.Errorf("passes that finished are told: %t, and where they are left out: %t", finished(false), finished(true))
	}
	p, err := client.ListProviders(t.Context(), &fleetv1.ListProvidersRequest{})
	o.must(err)
	if len(p.GetProviders()) != 1 {
		t.Fatalf("providers: %v", p)
	}
	if got := p.GetProviders()[0]; got.GetMachines() != 2 || got.GetMaxMachines() != 7 || got.GetPenalties() != 1 || got.GetLastPass() != "all is well" || !slices.Equal(got.GetUnusable(), []string{"host c makes no sense"}) || got.GetLastUpdate() == "" || got.GetPacing() != "as lab wants" {
		t.Errorf("provider: %v", got)
	}
	s, err := client.ListSessions(t.Context(), &fleetv1.ListSessionsRequest{})
	o.must(err)
	if got := s.GetSessions(); len(got) != 1 || got[0].GetComponent() != "tester" || len(got[0].GetHolds()) != 2 || got[0].GetHolds()[0].GetSubject() != string(id) {
		t.Errorf("sessions: %v", got)
	}
	d, err := client.ListDiscrepancies(t.Context(), &fleetv1.ListDiscrepanciesRequest{})
	o.must(err)
	if len(d.GetDiscrepancies()) != 0 {
		t.Errorf("discrepancies: %v", d)
	}
	v, err := client.GetVersion(t.Context(), &fleetv1.GetVersionRequest{})
	o.must(err)
	if want := (&fleetv1.GetVersionResponse{Version: "v1", Database: "sqlite", Schema: 1, GoVersion: v.GetGoVersion()}); !proto.Equal(v, want) {
		t.Errorf("version: %v", v)
	}
}

// TestSessionsTellTheirRole: whoever is told that nobody has a role finds those who have it by that
// word.
func TestSessionsTellTheirRole(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	started, err := o.db.StartSession(t.Context(), bmdb.SessionOptions{Component: fleet.RoleInitializer.Component(), Lease: time.Hour})
	o.must(err)
	all, err := o.client(token.Viewer).ListSessions(t.Context(), &fleetv1.ListSessionsRequest{})
	o.must(err)
	for _, s := range all.GetSessions() {
		want := ""
		if s.GetId() == string(started.ID()) {
			want = "initializer"
		}
		if s.GetRole() != want {
			t.Errorf("a session of %s has the role %q", s.GetComponent(), s.GetRole())
		}
	}
	if len(all.GetSessions()) != 2 {
		t.Errorf("sessions: %v", all)
	}
}

func TestBadQuestions(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(2)
	client, ctx := o.client(token.Viewer), t.Context()
	for _, c := range []struct {
		name string
		call func() error
		code connect.Code
		says string
	}{
		{"page too large", func() error {
			_, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: 1001})
			return err
		}, connect.CodeInvalidArgument, "page_size must be 1 to 1000"},
		{"negative page", func() error {
			_, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageSize: -1})
			return err
		}, connect.CodeInvalidArgument, "page_size"},
		{"foreign page token", func() error {
			_, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{PageToken: "x"})
			return err
		}, connect.CodeInvalidArgument, "page_token"},
		{"no such state", func() error {
			_, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{States: []string{"happy"}})
			return err
		}, connect.CodeInvalidArgument, `no state is named "happy": use one of creating,`},
		{"bad provider", func() error {
			_, err := client.ListMachines(ctx, &fleetv1.ListMachinesRequest{Provider: "A!"})
			return err
		}, connect.CodeInvalidArgument, "provider"},
		{"no name", func() error { _, err := client.GetMachine(ctx, &fleetv1.GetMachineRequest{}); return err }, connect.CodeInvalidArgument, "machine must be"},
		{"no such machine", func() error {
			_, err := client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: "nobody"})
			return err
		}, connect.CodeNotFound, "nobody"},
		{"ambiguous", func() error {
			_, err := client.ExplainMachine(ctx, &fleetv1.ExplainMachineRequest{Machine: "0000"})
			return err
		}, connect.CodeNotFound, "0000"},
		{"history too long", func() error {
			_, err := client.ListHistory(ctx, &fleetv1.ListHistoryRequest{Machine: "host-0", Limit: 5000})
			return err
		}, connect.CodeInvalidArgument, "limit must be"},
	} {
		if err := c.call(); code(err) != c.code || !strings.Contains(message(err), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestUnknownProviderIsNamed(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	_, err := o.client(token.Operator).ListMachines(t.Context(), &fleetv1.ListMachinesRequest{Provider: "mettal"})
	if code(err) != connect.CodeNotFound || !strings.Contains(err.Error(), `no provider is named "mettal": use one of `) {
		t.Errorf("got %v", err)
	}
}

// TestExplainNamesTheDay: an instant that is not today's has its date, and a long time its days.
func TestExplainNamesTheDay(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	until := time.Now().Add(100*24*time.Hour + time.Minute)
	o.must(bmdbtest.BeginMaintenance(t.Context(), o.db, "op", id, &until, "move"))
	a := o.explained()
	if want := until.UTC().Format("comes at 2006-01-02 15:04:05 UTC") + " (in 100 days): "; !strings.Contains(a.GetSummary(), want) {
		t.Errorf("%q, want %q", a.GetSummary(), want)
	}
}

// errorOf leaves out when the system is to call again.
func errorOf(_ time.Duration, err error) error { return err }
