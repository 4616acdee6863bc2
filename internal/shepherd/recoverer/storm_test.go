package recoverer_test

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/token"
)

var stormMachines = flag.Int("storm", 200, "machines of TestPowerIsLost; 10,000 take minutes")

// TestPowerIsLost: a large fleet, all of it silent because we do not listen, and then nearly all of
// it without power. What goes on is told at every moment; it drains within its limits, and nothing
// is done to a machine that reports.
func TestPowerIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		machines := *stormMachines
		atOnce := machines / 40
		herd, handler := newHerd(t, machines, func(p *fleet.Policy) {
			p.RecoveryAtOnce = atOnce
			p.HeartbeatInterval, p.SilentAfter = 5*time.Minute, 15*time.Minute
			p.InstallTimeout = 48 * time.Hour // some are installed all the while
		})
		herd.Interval, herd.Parallelism = 5*time.Minute, atOnce
		all := herd.Machines()
		well, dark := all[:machines/50], all[machines/50:] // a fiftieth has power of its own
		defer herd.Start(handler)()
		time.Sleep(12 * time.Minute)
		var installed []func()
		for _, id := range well[:len(well)/2] {
			installed = append(installed, herd.Install(id))
		}

		herd.SetDeaf(true)
		time.Sleep(2 * time.Hour)
		if n := len(herd.Fake.Pulls()); n != 0 {
			t.Fatalf("we do not listen, and %d machines were touched", n)
		}
		says(t, herd, dark[0], fleet.StateAvailable, "the agent is not silent")
		verdict(t, herd, fmt.Sprintf("listener: no agent listener is up: nothing is heard of %d machines", machines))
		herd.SetDeaf(false)
		time.Sleep(12 * time.Minute)
		if n := len(herd.Fake.Pulls()); n != 0 {
			t.Fatalf("all are heard again, and %d machines were touched", n)
		}
		verdict(t, herd, fmt.Sprintf("late: %d installing for more than an hour", len(installed)))

		for _, id := range dark {
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		}
		lost := time.Now()
		time.Sleep(40 * time.Minute)
		if n := len(herd.Fake.Pulls()); n != 0 {
			t.Fatalf("recovery is stopped, and %d machines were touched", n)
		}
		stopped := fmt.Sprintf("%d of %d machines with an agent are silent: the fault is probably ours (listener, network, certificate, clock)", len(dark), machines)
		says(t, herd, dark[0], fleet.StateSilent, stopped)
		verdict(t, herd, fmt.Sprintf("state: %d silent", len(dark)), "recovery is stopped: "+stopped)
		hold, err := bmdbtest.RecoveryHold(t.Context(), herd.DB)
		check(t, err)
		if hold == nil || hold.Until == nil || hold.Reason != stopped {
			t.Fatalf("recovery is held by %+v", hold)
		}
		time.Sleep(time.Until(*hold.Until) + 2*time.Minute)
		waits, works := 0, 0
		for _, id := range dark[:min(len(dark), 4*atOnce)] {
			switch why := decided(t, herd, id).Reason; {
			case strings.Contains(why, fmt.Sprintf("it waits until fewer than %d machines of metal are under recovery", atOnce)):
				waits++
			case strings.Contains(why, "reboot was tried at"), strings.Contains(why, "agent-start was tried at"), strings.Contains(why, "held by session"), strings.Contains(why, "the agent is not silent"):
				works++
			case strings.Contains(why, "metal reboots it"): // due, and not looked at yet
			default:
				t.Fatalf("a machine that is to be repaired: %s", why)
			}
		}
		if waits == 0 && len(dark) > 4*atOnce {
			t.Error("nobody is told that he waits for his turn")
		}
		t.Logf("of %d machines %d wait for their turn", waits+works, waits)
		verdict(t, herd, "state: ") // so many are silent

		for range 100 {
			if len(herd.Fake.Pulls()) >= len(dark) {
				break
			}
			time.Sleep(10 * time.Minute)
		}
		time.Sleep(20 * time.Minute)
		pulls := herd.Fake.Pulls()
		touched := make(map[fleet.ProviderID]int)
		for _, p := range pulls {
			touched[p.ID]++
		}
		for _, id := range well {
			if touched[herd.Host(id).ID] != 0 {
				t.Errorf("a machine that reports was touched: %s", levers(herd, id))
			}
		}
		once := 0
		for _, id := range dark {
			if touched[herd.Host(id).ID] == 1 {
				once++
			}
		}
		if once != len(dark) || len(pulls) != len(dark) {
			t.Errorf("%d of %d were rebooted once, by %d calls", once, len(dark), len(pulls))
		}
		for _, done := range installed {
			done()
		}
		states, err := herd.DB.Summary(t.Context())
		check(t, err)
		if n, m := states.States[fleet.StateInstalled], states.States[fleet.StateAvailable]; n != len(installed) || n+m != machines {
			t.Errorf("the machines are %v in the end, want %d installed and the others available", states.States, len(installed))
		}
		verdict(t, herd, "")
		wantAtOnce(t, herd, dark, atOnce)
		t.Logf("the first of %d reboots came %s after the loss, the last %s", len(pulls), pulls[0].At.Sub(lost), pulls[len(pulls)-1].At.Sub(lost))
	})
}

// wantAtOnce checks by the histories of the machines that at no time more of them had been
// rebooted, and not been heard of since.
func wantAtOnce(t *testing.T, herd *shepherdtest.Herd, machines []fleet.MachineID, atOnce int) {
	t.Helper()
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, id := range machines {
		rows, err := herd.DB.History(t.Context(), id, 100)
		check(t, err)
		for _, row := range rows {
			switch {
			case row.Event == fleet.EventRepairStep && strings.HasPrefix(row.Detail, string(fleet.RungReboot)):
				changes = append(changes, change{row.At, +1})
			case row.Event == fleet.EventRepaired:
				changes = append(changes, change{row.At, -1})
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), a.by-b.by) })
	now, most := 0, 0
	for _, c := range changes {
		now += c.by
		most = max(most, now)
	}
	if len(changes) != 2*len(machines) || now != 0 || most > atOnce {
		t.Errorf("%d changes of %d machines: at most %d were under recovery at once, want at most %d", len(changes), len(machines), most, atOnce)
	}
	t.Logf("at most %d were under recovery at once", most)
}

// viewer is a token that everybody has.
type viewer struct{}

// Find implements server.Tokens.
func (viewer) Find(string) (token.Token, bool, error) {
	return token.Token{Name: "viewer", Role: token.Viewer, Expires: time.Now().Add(time.Hour)}, true, nil
}

// verdict checks what the overview says: every one of these, or that all is well.
func verdict(t *testing.T, herd *shepherdtest.Herd, wants ...string) {
	t.Helper()
	service := fleetapi.New(herd.DB, fleetapi.Options{})
	var response *fleetv1.GetSummaryResponse
	ask := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var err error
		response, err = service.GetSummary(r.Context(), &fleetv1.GetSummaryRequest{})
		check(t, err)
	})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header.Set("Authorization", "Bearer viewer")
	server.NewAccess(viewer{}, slog.New(slog.DiscardHandler)).Identify(ask).ServeHTTP(httptest.NewRecorder(), r)
	var all []string
	for _, c := range response.GetConcerns() {
		// The herd runs neither pass nor update of its provider, and its janitor has no session.
		if c.GetKind() == "role" && slices.Contains([]string{"provisioner", "updater", "janitor"}, c.GetSubject()) {
			continue
		}
		if c.GetKind() != "overdue" || c.GetSubject() != "provision" && c.GetSubject() != "update" {
			all = append(all, c.GetKind()+": "+c.GetText())
		}
	}
	if h := response.GetRecoveryHold(); h != nil {
		all = append(all, "recovery is stopped: "+h.GetReason())
	}
	said := strings.Join(all, "\n")
	for _, want := range wants {
		if want == "" && said != "" || !strings.Contains(said, want) {
			t.Errorf("the overview says %q, want %q", said, want)
		}
	}
}

// decided is what explain says of the recovery of a machine.
func decided(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID) lifecycle.Decision {
	t.Helper()
	d, err := herd.DB.MachineDetails(t.Context(), id)
	check(t, err)
	return lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery)
}

func says(t *testing.T, herd *shepherdtest.Herd, id fleet.MachineID, state fleet.State, why string) {
	t.Helper()
	d, err := herd.DB.MachineDetails(t.Context(), id)
	check(t, err)
	plan := lifecycle.Decide(d.Record, d.Environment, d.Now)
	if reason := plan.For(fleet.ProcessRecovery).Reason; plan.State != state || !strings.Contains(reason, why) {
		t.Errorf("a machine is %s, and explain says %q, want %s and %q", plan.State, reason, state, why)
	}
}
