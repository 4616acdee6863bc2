package bmdbtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

// enter writes an entry into the agenda that no row of a subject knows of.
func (w *world) enter(process fleet.Process, dueAt int64, subject string) {
	w.Helper()
	w.exec("INSERT INTO agenda (process, due_at, subject, provider) VALUES ($1, $2, $3, $4)", string(process), dueAt, subject, string(provider))
}

// entries counts the entries of a process.
const entries = "SELECT count(*) FROM agenda WHERE process = $1"

// hear makes an agent be heard now, as a heartbeat that repeats what is known.
func (w *world) hear(a bmdb.AgentIdentity) {
	w.Helper()
	w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration}}))
}

// putBack makes the database look restored.
func (w *world) putBack() {
	w.Helper()
	w.must(w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
		return statement.New(tx).PutRestored(ctx, statement.PutRestoredParams{At: w.now().UnixMicro(), Evidence: "put back by hand"})
	}))
}

// listening makes silence count from now on, however far the test moves time.
func (w *world) listening() {
	w.Helper()
	w.must(w.db.ListenerAlive(w.ctx, 1000*time.Hour, 30*time.Second))
}

// unread makes the install request of a machine one that nobody can read.
func (w *world) unread(id fleet.MachineID) {
	w.Helper()
	w.exec("UPDATE install_request SET image = 'no JSON' WHERE machine = $1", string(id))
}

var agendaTests = []test{
	{"work that is not wanted any more wakes nobody", func(w *world) {
		w.must(w.claimOne(w.lasting("a"), fleet.ProcessProvision).Finish(w.ctx))
		wake := w.db.Wake(fleet.ProcessProvision)
		select {
		case <-wake:
		default:
		}
		w.must(w.db.PauseProvider(w.ctx, actor, provider, "no money"))
		select {
		case <-wake:
			w.Fatal("woken, and the provider is paused")
		default:
		}
		w.must(w.db.ResumeProvider(w.ctx, actor, provider, "money"))
		<-wake
	}},
	// rule 12: where nobody serves their provider, say
	{"what stays due and nobody claims is judged again once, but for what may have been written late", func(w *world) {
		w.machines(nil, "c1", "c2", "c3")
		judged := func(want int) {
			w.Helper()
			n := 0
			for some := 2; some == 2; n += some {
				var err error
				some, err = w.db.RecomputeAgenda(w.ctx, 2)
				w.must(err)
			}
			if n != want {
				w.Fatalf("judged %d again, want %d", n, want)
			}
			w.shift.Advance(2 * time.Minute)
		}
		judged(3)
		judged(3)
		w.machine("c4")
		judged(1)
		judged(1)
		judged(0)
		w.wantNumber(4, "SELECT count(*) FROM agenda WHERE process = 'agent-start'")
	}},
	// rule 2: an entry is a hint. One that its subject does not know of starts nothing, and goes.
	{"an entry of a provider that is not there stops nobody, and goes", func(w *world) {
		s := w.lasting("a")
		w.exec("INSERT INTO agenda (process, due_at, subject, provider) VALUES ('provision', 1, 'provider/nobody', 'nobody')")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Limit: 9})
		w.must(err)
		if len(c.Works) != 1 || c.Works[0].Subject.Provider != provider {
			w.Fatalf("claimed %+v", c.Works)
		}
		w.wantNumber(0, "SELECT count(*) FROM agenda WHERE subject = 'provider/nobody'")
	}},
	{"whoever meets a stale entry removes it", func(w *world) {
		ids := w.machines(nil, "c1", "c2")
		s, other := w.lasting("a"), w.lasting("b")
		stale := func() {
			w.enter(fleet.ProcessAgentStart, 1, string(ids[0]))
			w.enter(fleet.ProcessAgentStart, 2, string(fleet.NewMachineID()))
			w.enter(fleet.ProcessAgentStart, 3, string(ids[1]))
			w.enter(fleet.ProcessProvision, 4, "provider/"+string(provider))
		}
		scopes := 0
		claimed := func(s *bmdb.Session, process fleet.Process, want, left int) {
			w.Helper()
			before := w.now()
			scopes++ // of which no floor is known yet
			scope := []fleet.ProviderName{provider, fleet.ProviderName(fmt.Sprint("none", scopes))}
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: process, Providers: scope, Limit: 9})
			w.must(err)
			if len(c.Works) != want || len(c.Works) == 2 && c.Works[0].Subject == c.Works[1].Subject {
				w.Fatalf("claimed %d of %s, want %d", len(c.Works), process, want)
			}
			if !c.NextDue.After(before) {
				w.Fatalf("a claimer of %s is told at %s to look again at %s", process, before, c.NextDue)
			}
			w.wantNumber(int64(left), entries, string(process))
		}
		w.must(w.claimOne(s, fleet.ProcessProvision).Finish(w.ctx))
		w.shift.Advance(fleet.DefaultPolicy().ProvisionInterval)
		stale()
		claimed(s, fleet.ProcessAgentStart, 2, 2)
		claimed(s, fleet.ProcessProvision, 1, 1)
		stale() // of what is held
		claimed(other, fleet.ProcessAgentStart, 0, 2)
		claimed(other, fleet.ProcessProvision, 0, 1)
	}},
	// rule 9: a heartbeat that repeats what is known touches no agenda. The end of work follows it.
	{"an end follows what was heard since the claim", func(w *world) {
		a, b := w.ready("c1", false), w.ready("c2", false)
		w.listening()
		w.shift.Advance(time.Hour)
		s := w.lasting("recoverer")
		works := w.claim(s, fleet.ProcessAgentStart, 5)
		if len(works) != 2 {
			w.Fatalf("claimed %d", len(works))
		}
		w.hear(a)
		w.hear(b)
		w.must(works[0].Finish(w.ctx))
		w.must(works[1].Cancel(w.ctx, "it speaks"))
		for _, id := range []fleet.MachineID{a.Machine, b.Machine} {
			// a claim would put it right
			due := w.number("SELECT due_agent_start FROM machine WHERE id = $1", string(id))
			w.wantAbout("silence is due in", time.UnixMicro(due).Sub(w.now()), fleet.DefaultPolicy().SilentAfter)
			if got := w.state(id); got != fleet.StateAvailable {
				w.Fatalf("machine %s is %s", id, got)
			}
		}
	}},
	{"a machine that goes leaves nothing of what was derived", func(w *world) { // I2, I3
		wanted := newIntents("c1")
		id := string(wanted[0].Machine)
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			for i, process := range fleet.MachineProcesses() { // as if it had been tried already
				w.exec("INSERT INTO backoff (subject, process, not_before, lasts, cause, failures) VALUES ($1, $2, 9, 9, 'x', 1)", id, string(process))
				w.enter(process, int64(i+5), id)
			}
			w.exec("UPDATE machine SET due_agent_start = 5, due_install = 6, due_operation = 7, due_recovery = 8, due_probe = 9 WHERE id = $1", id)
			w.must(work.Note(w.ctx, bmdb.CloseIntentRejected(wanted[0].Machine, "never asked for")))
		})
		w.wantNumber(0, "SELECT count(*) FROM machine_state")
		w.wantNumber(0, "SELECT count(*) FROM backoff WHERE subject = $1", id)
		w.wantNumber(0, "SELECT count(*) FROM agenda WHERE subject = $1", id)
		w.wantNumber(0, "SELECT CAST(COALESCE(sum(n), 0) AS BIGINT) FROM state_count")
		w.wantNumber(0, "SELECT machines FROM provider")
	}},
	{"a machine that cannot be read stops nobody else", func(w *world) { // rule 12, I2
		ids := w.machines(&fleet.InstallRequest{Actor: actor, Image: image}, "c1", "c2", "c3")
		bad := ids[1]
		w.unread(bad)
		s := w.lasting("a")
		var got []fleet.MachineID
		for _, work := range w.claim(s, fleet.ProcessAgentStart, 9) {
			got = append(got, work.Subject.Machine)
		}
		slices.Sort(got)
		want := []fleet.MachineID{ids[0], ids[2]}
		if slices.Sort(want); !slices.Equal(got, want) {
			w.Fatalf("claimed %v, want %v", got, want)
		}
		if got := w.state(bad); got != fleet.StateUnreadable {
			w.Fatalf("it is %s", got)
		}
		w.wantAbout("it is put off for", time.Duration(w.number("SELECT due_agent_start FROM machine WHERE id = $1", string(bad))-w.now().UnixMicro())*
			time.Microsecond, time.Hour)
		p := fleet.DefaultPolicy()
		p.SilentAfter = time.Hour
		set, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		if n, err := w.db.RecomputeAgenda(w.ctx, 100); n < 3 || err != nil {
			w.Fatalf("judged %d, %v", n, err)
		}
		w.wantNumber(3, "SELECT count(*) FROM machine_state WHERE policy / 1000 = $1", set.Number)
		findings, err := w.db.Check(w.ctx)
		w.must(err)
		if len(findings) != 1 || findings[0].Invariant != "unreadable" || findings[0].Subject != string(bad) {
			w.Fatalf("findings %+v", findings)
		}
		some, next, err := w.db.CheckAfter(w.ctx, "", 100)
		if err != nil || next != "" || !slices.Equal(some, findings) {
			w.Fatalf("findings %+v (next: %q), %v", some, next, err)
		}
		// a person puts it right
		if g, err := w.db.RequestInstall(w.ctx, actor, bad, fleet.InstallRequest{Image: image}, false); g != 2 || err != nil {
			w.Fatalf("install generation %d, %v", g, err)
		}
		if work := w.claimOne(s, fleet.ProcessAgentStart); work.Subject.Machine != bad {
			w.Fatalf("claimed %s", work.Subject)
		}
	}},
	{"an installed system counts although its request cannot be read", func(w *world) { // I9
		a := w.ready("c1", true)
		o := w.handOut(a, 0, 0)
		w.must(w.db.RecordInstallReport(w.ctx, a, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true}))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")))
		w.unread(a.Machine)
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, false)
		w.wantKind(err, fleet.KindConflict)
		if g, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image}, true); g != 2 || err != nil {
			w.Fatalf("install generation %d, %v", g, err)
		}
	}},
	{"work on a machine makes its provider be asked at another pace", func(w *world) { // rule 3
		p := fleet.DefaultPolicy()
		id := w.machine("c1")
		s := w.lasting("a")
		w.must(w.claimOne(s, fleet.ProcessUpdate).Finish(w.ctx))
		w.wantAbout("settled, it is asked in", w.nextUpdate(s), p.UpdateSettledInterval)
		work := w.claimOne(s, fleet.ProcessAgentStart)
		wake := w.db.Wake(fleet.ProcessUpdate)
		for len(wake) > 0 {
			<-wake
		}
		w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusDeleting, "c1"))))
		if len(wake) == 0 {
			w.Fatal("nobody was told")
		}
		w.wantAbout("changing, it is asked in", w.nextUpdate(s), p.UpdateInterval)
		w.must(work.Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusActive, "c1"))))
		w.wantAbout("settled again, it is asked in", w.nextUpdate(s), p.UpdateSettledInterval)
	}},
	{"a machine that is not on changes for a quarter of an hour", func(w *world) { // as lifecycle says
		p := fleet.DefaultPolicy()
		id := w.machine("c1")
		s := w.lasting("updater")
		for _, status := range []fleet.ProviderStatus{fleet.ProviderStatusOff, fleet.ProviderStatusPowering} {
			w.must(w.claimOne(s, fleet.ProcessUpdate).Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(status, "c1"))))
			for range 14 {
				w.wantAbout(string(status)+", it is asked in", w.nextUpdate(s), p.UpdateInterval)
				w.shift.Advance(time.Minute)
				w.must(w.claimOne(s, fleet.ProcessUpdate).Finish(w.ctx))
			}
			w.shift.Advance(time.Minute)
			w.wantAbout(string(status)+" for long, it is asked in", w.nextUpdate(s), p.UpdateSettledInterval-time.Minute)
			w.shift.Advance(p.UpdateSettledInterval)
		}
	}},
	{"a machine that was off for long makes its provider be asked often when it changes", func(w *world) {
		p := fleet.DefaultPolicy()
		id := w.machine("c1")
		s := w.lasting("updater")
		for _, status := range []fleet.ProviderStatus{fleet.ProviderStatusCreating, fleet.ProviderStatusPowering, fleet.ProviderStatusDeleting} {
			work := w.claimOne(s, fleet.ProcessAgentStart)
			w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusOff, "c1"))))
			w.shift.Advance(p.UpdateSettledInterval)
			w.must(w.claimOne(s, fleet.ProcessUpdate).Finish(w.ctx))
			w.wantAbout("off for long, it is asked in", w.nextUpdate(s), p.UpdateSettledInterval)
			w.must(work.Note(w.ctx, bmdb.SetProvided(id, "", providedAs(status, "c1"))))
			w.wantAbout(string(status)+", it is asked in", w.nextUpdate(s), p.UpdateInterval)
			w.must(work.Finish(w.ctx, bmdb.SetProvided(id, "", providedAs(fleet.ProviderStatusActive, "c1"))))
		}
	}},
	// rule 11
	{"an agent that was not heard since the database came back is told before it is accepted", func(w *world) {
		heard, unheard, installed := w.ready("c1", false), w.ready("c2", false), w.installedMachine("c3")
		w.listening()
		w.putBack()
		w.listening()
		w.shift.Advance(time.Minute)
		w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: heard.Machine, TakeoverGeneration: heard.TakeoverGeneration}}))
		told := func() (list []string) {
			withheld, err := w.db.Withheld(w.ctx)
			w.must(err)
			for _, h := range withheld {
				list = append(list, fmt.Sprint(h.Machine, " ", h.Process, " ", strings.Contains(h.Reason, "has not been heard since")))
			}
			return list
		}
		if got, want := told(), []string{fmt.Sprint(unheard.Machine, " ", fleet.ProcessAgentStart, " ", true)}; !slices.Equal(got, want) {
			w.Fatalf("told %q, want %q; installed is %s", got, want, installed.Machine)
		}
		w.must(w.db.AcceptRestore(w.ctx, actor))
		if got := told(); len(got) != 0 {
			w.Fatalf("accepted, and told %q", got)
		}
	}},
	{"agents and repairs wait while the database looks restored", func(w *world) { // rule 11
		a := w.ready("c1", false)
		id, sold := w.machine("c2"), w.machine("c3")
		w.must(w.db.SetLevers(w.ctx, provider, []fleet.Lever{fleet.LeverRelease}))
		_, err := Operate(w.ctx, w.db, actor, sold, fleet.OperationRelease, "sold")
		w.must(err)
		w.listening()
		w.shift.Advance(time.Hour)
		w.putBack()
		s := w.lasting("a")
		for _, process := range []fleet.Process{fleet.ProcessAgentStart, fleet.ProcessOperation, fleet.ProcessRecovery} {
			if got := w.claim(s, process, 5); len(got) != 0 {
				w.Fatalf("claimed %s of %s", process, got[0].Subject)
			}
		}
		withheld, err := w.db.Withheld(w.ctx)
		w.must(err)
		var waits []string
		for _, h := range withheld {
			waits = append(waits, fmt.Sprint(h.Process, " ", h.Machine))
		}
		slices.Sort(waits)
		want := []string{fmt.Sprint(fleet.ProcessAgentStart, " ", a.Machine), fmt.Sprint(fleet.ProcessAgentStart, " ", id), fmt.Sprint(fleet.ProcessOperation, " ", sold)}
		if slices.Sort(want); !slices.Equal(waits, want) {
			w.Fatalf("it waits: %+v", withheld)
		}
		w.must(w.db.AcceptRestore(w.ctx, actor))
		if withheld, err := w.db.Withheld(w.ctx); len(withheld) != 0 || err != nil {
			w.Fatalf("it waits still: %+v, %v", withheld, err)
		}
		if n, err := w.db.RecomputeAgenda(w.ctx, 100); n < 2 || err != nil {
			w.Fatalf("judged %d, %v", n, err)
		}
		works := w.claim(s, fleet.ProcessAgentStart, 5)
		if len(works) != 2 {
			w.Fatalf("claimed %v, want %s and the silent %s", works, id, a.Machine)
		}
	}},
	// I2, I4: nobody has judged providers in this process, as in one that only checks.
	{"a check of what others work at sees providers whose work is never done", func(w *world) {
		s := w.lasting("a")
		w.must(w.claimOne(s, fleet.ProcessUpdate).Finish(w.ctx))
		w.claimOne(s, fleet.ProcessProvision)
		const onUpdate = " WHERE process = 'update'"
		due := w.number("SELECT due_at FROM provider_lane" + onUpdate)
		since := w.number("SELECT since FROM provider_lane WHERE session <> ''")
		policy := fleet.DefaultPolicy()
		policy.ProvisionInterval, policy.UpdateInterval, policy.UpdateSettledInterval = time.Second, time.Second, time.Second
		for _, set := range []bool{false, true} {
			if set { // the entries are those of the policy before, until the janitor comes to them
				_, err := w.db.SetPolicy(w.ctx, policy)
				w.must(err)
			}
			for _, c := range []struct{ damage, repair, says string }{
				{"UPDATE agenda SET process = 'x'" + onUpdate, "UPDATE agenda SET process = 'update' WHERE process = 'x'", "agenda provider/p1: update is due at"},
				{
					"UPDATE provider_lane SET due_at = 0" + onUpdate, fmt.Sprintf("UPDATE provider_lane SET due_at = %d%s", due, onUpdate),
					"agenda provider/p1: update is later and has no entry",
				},
				{
					"UPDATE provider_lane SET since = 0", fmt.Sprintf("UPDATE provider_lane SET since = %d WHERE session <> ''", since),
					"I4 provider/p1: provision epoch 1 is held and has not started",
				},
			} {
				w.sound()
				w.exec(c.damage)
				findings, err := w.db.Check(w.ctx)
				w.must(err)
				if len(findings) != 1 || !strings.HasPrefix(fmt.Sprintf("%s %s: %s", findings[0].Invariant, findings[0].Subject, findings[0].Detail), c.says) {
					w.Errorf("a policy is set: %v; after %q: %+v", set, c.damage, findings)
				}
				w.exec(c.repair)
			}
		}
	}},
	{"a check sees what must not be", func(w *world) { // I1, I2, I4
		id := w.machine("c1")
		s := w.lasting("a")
		w.claimOne(s, fleet.ProcessAgentStart)
		w.claimOne(s, fleet.ProcessProvision)
		// When work of providers is due counts from then on.
		if _, err := w.db.RecomputeAgenda(w.ctx, 10); err != nil {
			w.Fatal(err)
		}
		w.sound()
		const onUpdate, hour = " WHERE process = 'update'", "3600000000"
		since, passSince := w.number("SELECT since FROM machine"), w.number("SELECT since FROM provider_lane WHERE session <> ''")
		due := w.number("SELECT due_at FROM provider_lane" + onUpdate)
		for _, c := range []struct{ damage, repair, invariant, subject, says string }{
			{
				"UPDATE agenda SET process = 'x' WHERE process = 'agent-start'", "UPDATE agenda SET process = 'agent-start' WHERE process = 'x'",
				"agenda", string(id), "agent-start is due at",
			},
			{
				"UPDATE agenda SET process = 'x'" + onUpdate, "UPDATE agenda SET process = 'update' WHERE process = 'x'",
				"agenda", "provider/p1", "update is due at",
			},
			{
				"UPDATE machine SET due_agent_start = due_agent_start + " + hour, "UPDATE machine SET due_agent_start = due_agent_start - " + hour,
				"agenda", string(id), "its entry says",
			},
			{
				"UPDATE provider_lane SET due_at = due_at + " + hour + onUpdate, "UPDATE provider_lane SET due_at = due_at - " + hour + onUpdate,
				"agenda", "provider/p1", "its entry says",
			},
			{
				"UPDATE provider_lane SET due_at = 0" + onUpdate, fmt.Sprintf("UPDATE provider_lane SET due_at = %d%s", due, onUpdate),
				"agenda", "provider/p1", "and has no entry",
			},
			{
				"UPDATE machine SET since = 0", fmt.Sprintf("UPDATE machine SET since = %d", since),
				"I4", string(id), "is held and has not started",
			},
			{
				"UPDATE provider_lane SET since = 0", fmt.Sprintf("UPDATE provider_lane SET since = %d WHERE session <> ''", passSince),
				"I4", "provider/p1", "is held and has not started",
			},
			{
				"UPDATE provider SET machines = machines + 1", "UPDATE provider SET machines = machines - 1",
				"count", "provider/p1", "machines counted",
			},
			{
				"UPDATE machine SET session = 'x' || session", "UPDATE machine SET session = substr(session, 2)",
				"I1", string(id), "contradicts",
			},
		} {
			w.exec(c.damage)
			findings, err := w.db.Check(w.ctx)
			w.must(err)
			if !slices.ContainsFunc(findings, func(f bmdb.Finding) bool {
				return f.Invariant == c.invariant && f.Subject == c.subject && strings.Contains(f.Detail, c.says)
			}) {
				w.Errorf("after %q: %+v", c.damage, findings)
			}
			w.exec(c.repair)
			w.sound()
		}
	}},
}
