package bmdbtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// Silence takes over every machine of a provider by an agent that never speaks and that cannot be
// started again, under a policy that wants it recovered at once, at most atOnce at a time. Recovery
// is due then, as soon as some milliseconds have passed.
func Silence(ctx context.Context, db *bmdb.DB, name fleet.ProviderName, atOnce int) error {
	if err := SetAtOnce(ctx, db, atOnce); err != nil {
		return err
	}
	if err := db.SetLevers(ctx, name, []fleet.Lever{fleet.LeverReboot}); err != nil {
		return err
	}
	if err := db.ListenerAlive(ctx, 24*time.Hour, time.Second); err != nil {
		return err
	}
	s, err := db.StartSession(ctx, bmdb.SessionOptions{Component: "taker", Host: "host0", PID: 1, Lease: time.Hour})
	if err != nil {
		return err
	}
	for {
		c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{name}, Limit: 100})
		if err != nil {
			return err
		}
		if len(c.Works) == 0 {
			return s.Close(ctx, "all taken over")
		}
		for _, w := range c.Works {
			var g fleet.TakeoverGeneration
			if err := w.Note(ctx, bmdb.MintTakeover(0, &g)); err != nil {
				return err
			}
			started := fleet.AgentStarted{TakeoverGeneration: g, PublicKey: []byte("key of " + w.Subject.Machine), AgentVersion: "1.2.3", BootID: "boot1"}
			if err := w.Note(ctx, bmdb.SetAgentStarted(started)); err != nil {
				return err
			}
			if err := w.Fail(ctx, bmdb.Failure{Cause: "no route to host", Backoff: hours}); err != nil {
				return err
			}
		}
	}
}

// SetAtOnce sets how many machines of one provider may be under recovery at once, and makes silence
// a matter of a millisecond.
func SetAtOnce(ctx context.Context, db *bmdb.DB, atOnce int) error {
	p := fleet.DefaultPolicy()
	p.NeverSpokeAfter, p.RecoveryStepTimeout, p.RecoveryAtOnce = time.Millisecond, time.Millisecond, atOnce
	_, err := db.SetPolicy(ctx, p)
	return err
}

// silent stocks a provider with n machines that want recovery.
func (w *world) silent(name fleet.ProviderName, n, atOnce int) []fleet.MachineID {
	w.Helper()
	ids := make([]fleet.MachineID, n)
	for i := range ids {
		ids[i] = fleet.NewMachineID()
	}
	w.must(Stock(w.ctx, w.db, name, ids, nil))
	w.must(Silence(w.ctx, w.db, name, atOnce))
	w.shift.Advance(time.Second)
	return ids
}

// recover claims, and wants so many works. Unless as many were asked for, nothing may be said to be
// had at once.
func (w *world) recover(s *bmdb.Session, limit, want int, providers ...fleet.ProviderName) []*bmdb.Work {
	w.Helper()
	before := w.now()
	c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Providers: providers, Limit: limit})
	w.must(err)
	if len(c.Works) != want {
		w.Fatalf("claimed %d to recover, want %d", len(c.Works), want)
	}
	// what an untold claimer waits, and others more
	if least := before.Add(100 * time.Millisecond); want < limit && c.NextDue.Before(least) {
		w.Fatalf("claimed %d of %d, and told to look again at %s, not after %s", want, limit, c.NextDue, least)
	}
	return c.Works
}

const elsewhere = fleet.ProviderName("p2")

var hours = fleet.Backoff{Initial: time.Hour, Maximum: time.Hour}

var slotTests = []test{
	{"no more at once than the limit, whoever claims", func(w *world) {
		ids := w.silent(provider, 5, 2)
		a, b := w.session("a"), w.session("b")
		works := w.recover(a, 5, 2)
		w.recover(b, 5, 0)
		w.recover(a, 1, 0)
		var done []fleet.MachineID
		for left := len(ids) - len(works); len(works) > 0; left-- {
			done = append(done, works[0].Subject.Machine)
			w.must(works[0].Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours}))
			works = append(works[1:], w.recover(b, 3, min(1, max(left, 0)))...)
			w.recover(a, 3, 0)
		}
		slices.Sort(done)
		if slices.Sort(ids); !slices.Equal(done, ids) {
			w.Fatalf("%v had their turn, want each of %v once", done, ids)
		}
	}},
	{"whatever frees the lane frees the slot", func(w *world) {
		w.silent(provider, 8, 1)
		s := w.session("a")
		for i, free := range []func(work *bmdb.Work, s *bmdb.Session){
			func(work *bmdb.Work, _ *bmdb.Session) { w.must(work.Finish(w.ctx)) },
			func(work *bmdb.Work, _ *bmdb.Session) {
				w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours}))
			},
			func(work *bmdb.Work, _ *bmdb.Session) { w.must(work.Cancel(w.ctx, "x")) },
			func(_ *bmdb.Work, s *bmdb.Session) { w.must(s.Close(w.ctx, "x")) },
			func(work *bmdb.Work, _ *bmdb.Session) {
				w.must(Quarantine(w.ctx, w.db, actor, work.Subject.Machine, "x"))
			},
			func(work *bmdb.Work, _ *bmdb.Session) {
				_, err := w.db.RequestInstall(w.ctx, actor, work.Subject.Machine, fleet.InstallRequest{Image: image}, false)
				w.must(err)
			},
			func(*bmdb.Work, *bmdb.Session) { // it dies, and the claim finds it
				w.shift.Advance(interval + margin)
				w.must(s.Extend(w.ctx))
			},
			func(*bmdb.Work, *bmdb.Session) { // it dies, and the janitor finds it
				w.shift.Advance(interval + margin)
				w.must(s.Extend(w.ctx))
				if _, err := w.db.CollectSessions(w.ctx); err != nil {
					w.Fatal(err)
				}
			},
		} {
			holder := w.session(fmt.Sprintf("holder %d", i))
			work := w.recover(holder, 2, 1)[0]
			w.recover(s, 5, 0)
			free(work, holder)
			w.must(w.recover(s, 5, 1)[0].Cancel(w.ctx, "x"))
		}
	}},
	{"a lane that is held again is not in the slot that it had", func(w *world) {
		w.silent(provider, 3, 2)
		s := w.session("a")
		works := w.recover(s, 2, 2)
		w.must(works[0].Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours}))
		w.must(works[1].Finish(w.ctx))
		// in the slot of the other one
		if again := w.recover(s, 1, 1)[0]; again.Subject != works[1].Subject {
			w.Fatalf("claimed %s before %s", again.Subject, works[1].Subject)
		}
		w.recover(s, 2, 1)
	}},
	{"providers have slots of their own", func(w *world) {
		w.silent(provider, 30, 2)
		w.silent(elsewhere, 3, 2)
		a, b := w.session("a"), w.session("b")
		w.recover(a, 5, 2, provider)
		works := w.recover(b, 5, 2) // all of p1 was due before any of p2
		for _, work := range works {
			if got := w.record(work.Subject.Machine).Provider; got != elsewhere {
				w.Fatalf("claimed at %s, which is full", got)
			}
		}
		w.recover(a, 5, 0)
		w.recover(a, 5, 0, provider)
		w.recover(b, 5, 0, provider, elsewhere)
		w.must(works[0].Cancel(w.ctx, "x"))
		w.recover(a, 5, 0, provider)
		w.recover(a, 5, 1, provider, elsewhere)
	}},
	{"the limit is raised, lowered, lifted and set again", func(w *world) {
		w.silent(provider, 12, 2)
		s := w.session("a")
		works := w.recover(s, 12, 2)
		w.must(SetAtOnce(w.ctx, w.db, 5))
		works = append(works, w.recover(s, 12, 3)...)
		w.must(SetAtOnce(w.ctx, w.db, 3))
		for range 2 { // those that run go on, and count
			w.recover(s, 12, 0)
			w.must(works[0].Cancel(w.ctx, "x"))
			works = works[1:]
		}
		w.recover(s, 12, 0)
		w.must(works[0].Cancel(w.ctx, "x"))
		works = append(works[1:], w.recover(s, 12, 1)...)
		w.must(SetAtOnce(w.ctx, w.db, 0))
		works = append(works, w.recover(s, 12, 9)...)
		w.must(SetAtOnce(w.ctx, w.db, 4))
		for len(works) > 4 {
			w.recover(s, 12, 0)
			w.must(works[0].Cancel(w.ctx, "x"))
			works = works[1:]
		}
		w.recover(s, 12, 0)
		w.must(works[3].Cancel(w.ctx, "x"))
		w.recover(s, 12, 1)
	}},
	{"the end of work wakes those who found no slot", func(w *world) {
		w.silent(provider, 3, 1)
		a, b := w.session("a"), w.session("b")
		wake := w.db.Wake(fleet.ProcessRecovery)
		for _, end := range []func(*bmdb.Work) error{
			func(work *bmdb.Work) error { return work.Finish(w.ctx) },
			func(work *bmdb.Work) error {
				return work.Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: hours})
			},
			func(work *bmdb.Work) error {
				return Quarantine(w.ctx, w.db, actor, work.Subject.Machine, "x")
			},
		} {
			work := w.recover(a, 2, 1)[0]
			w.recover(b, 1, 0)
			w.recover(b, 1, 0)
			w.drain(wake)
			w.must(end(work))
			select {
			case <-wake:
			default:
				w.Fatal("nobody was woken")
			}
		}
		w.recover(b, 2, 1)
	}},
	{"a limit that is raised wakes those who found no slot", func(w *world) {
		w.silent(provider, 3, 1)
		s := w.session("a")
		w.recover(s, 2, 1)
		wake := w.db.Wake(fleet.ProcessRecovery)
		w.drain(wake)
		w.must(SetAtOnce(w.ctx, w.db, 2))
		select {
		case <-wake:
		default:
			w.Fatal("nobody was woken")
		}
		w.recover(s, 2, 1)
	}},
	{"the dead keep no slot, whatever is due of theirs", func(w *world) {
		w.silent(provider, 40, 3)
		dead, s := w.session("dead"), w.session("heir")
		held := w.recover(dead, 3, 3)
		for _, work := range held[:2] { // nothing is due there: no row of theirs comes up
			w.must(w.db.RecordSpoken(w.ctx, bmdb.AgentIdentity{
				Machine: work.Subject.Machine, TakeoverGeneration: 1, PublicKey: []byte("key of " + work.Subject.Machine),
			}, "boot1"))
		}
		w.recover(s, 10, 0)
		for range 3 {
			w.shift.Advance(interval - margin)
			w.must(s.Extend(w.ctx))
		}
		works := w.recover(s, 10, 3)
		for _, work := range works {
			if slices.ContainsFunc(held[:2], func(was *bmdb.Work) bool { return was.Subject == work.Subject }) {
				w.Fatalf("claimed %s, which has spoken", work.Subject)
			}
		}
		for _, work := range held {
			w.wantKind(work.Finish(w.ctx), fleet.KindLeaseLost)
		}
	}},
	// rules 2 and 4: it may go on yet, so nobody gets its slot before its session has ended
	{"who is overdue has its slot until its session has ended", func(w *world) {
		w.silent(provider, 3, 1)
		late, heir := w.session("late"), w.sessionFor("heir", time.Hour)
		w.recover(late, 1, 1)
		w.shift.Advance(interval + margin)
		w.recover(heir, 1, 1)
		w.wantKind(late.Extend(w.ctx), fleet.KindLeaseLost)
	}},
	{"one claim takes what was free and what the dead had", func(w *world) {
		w.silent(provider, 6, 4)
		dead, s := w.session("dead"), w.session("heir")
		w.recover(dead, 3, 3)
		w.shift.Advance(interval + margin)
		w.must(s.Extend(w.ctx))
		w.recover(s, 10, 4)
	}},
	{"no slot is idle while something is due", func(w *world) { // in whatever order they come and go
		ids := w.silent(provider, 20, 4)
		var sessions []*bmdb.Session
		for _, name := range []string{"a", "b", "c"} { // nobody extends them, however slow it is here
			sessions = append(sessions, w.sessionFor(name, time.Hour))
		}
		var works []*bmdb.Work
		for i := range 3 * len(ids) {
			s := sessions[i%len(sessions)]
			works = append(works, w.recover(s, 7, 4-len(works))...)
			for range 1 + i%4 {
				k := (i * 7) % len(works)
				w.must(works[k].Finish(w.ctx))
				works = slices.Delete(works, k, k+1)
			}
		}
	}},
	{"an explanation says what a machine waits for", func(w *world) {
		ids := w.silent(provider, 3, 2)
		s := w.session("a")
		reason := func(id fleet.MachineID) string {
			d, err := w.db.MachineDetails(w.ctx, id)
			w.must(err)
			return lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery).Reason
		}
		works := w.recover(s, 3, 2)
		i := slices.IndexFunc(ids, func(id fleet.MachineID) bool {
			return !slices.ContainsFunc(works, func(work *bmdb.Work) bool { return work.Subject.Machine == id })
		})
		const want = "waits until fewer than 2 machines of p1 are under recovery"
		if got := reason(ids[i]); !strings.Contains(got, want) {
			w.Errorf("it waits for a slot, and is said to: %s", got)
		}
		if got := reason(works[0].Subject.Machine); strings.Contains(got, want) {
			w.Errorf("it has a slot, and is said to: %s", got)
		}
		w.must(works[0].Cancel(w.ctx, "x"))
		if got := reason(ids[i]); strings.Contains(got, want) {
			w.Errorf("there is a slot, and it is said to: %s", got)
		}
	}},
	{"whatever fails in a claim, no slot is lost and none taken twice", func(w *world) {
		w.silent(provider, 3, 1)
		s := w.session("a")
		for n := 1; ; n++ {
			for _, reply := range []bool{false, true} {
				if w.faults.FailStatement(n); reply {
					w.faults.FailStatement(0)
					w.faults.LoseReply()
				}
				c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessRecovery, Limit: 3})
				hits := w.faults.Clear()
				if hits == 0 && n > 10 {
					return
				}
				if err == nil && len(c.Works) != 1 {
					w.Fatalf("claimed %d at fault %d", len(c.Works), n)
				}
				w.must(s.Extend(w.ctx)) // hands back what nobody learned of
				for _, work := range c.Works {
					w.recover(s, 3, 0)
					w.must(work.Cancel(w.ctx, "x"))
				}
				w.must(w.recover(s, 3, 1)[0].Cancel(w.ctx, "x"))
			}
		}
	}},
	{"who waits for its next step for long has a slot for the time of its step alone", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce = 1
		w.must(errorOf2(w.db.SetPolicy(w.ctx, p)))
		a := w.broken("c1")
		w.pulls(fleet.LeverReboot)
		w.shift.Advance(time.Hour)
		s := w.lasting("recoverer")
		w.must(w.recover(s, 1, 1)[0].Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(BeginMaintenance(w.ctx, w.db, actor, a.Machine, new(w.now().Add(20*time.Hour)), "a new fan"))
		w.broken("c2")
		w.shift.Advance(p.RecoveryStepTimeout)
		w.judgeAgain()
		w.must(w.recover(s, 2, 1)[0].Cancel(w.ctx, "not now"))
	}},
	// rule 2, I10
	{"a machine that its provider reinstalls has its slot meanwhile, and the time of a step after it", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce, p.RecoveryReboots, p.RecoveryPowerCycles, p.RecoveryReinstalls = 1, 0, 0, 1
		w.must(errorOf2(w.db.SetPolicy(w.ctx, p)))
		w.pulls() // the provider is known
		a, b := w.broken("c1").Machine, w.broken("c2").Machine
		w.pulls(fleet.LeverReinstall)
		w.shift.Advance(time.Hour)
		s := w.lasting("recoverer")
		work := w.recover(s, 2, 1)[0]
		reinstalled, waits := a, b
		if work.Subject.Machine == b {
			reinstalled, waits = b, a
		}
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		says := func(status fleet.ProviderStatus) {
			r := w.record(reinstalled)
			w.provisioning(func(work *bmdb.Work) {
				w.must(work.Note(w.ctx, bmdb.SetProvided(r.ID, r.ProviderID, providedAs(status, r.Provided.Capacity))))
			})
		}
		says(fleet.ProviderStatusCreating)
		w.shift.Advance(3 * p.RecoveryStepTimeout)
		w.recover(s, 2, 0)
		d, err := w.db.MachineDetails(w.ctx, waits)
		w.must(err)
		reason := lifecycle.Decide(d.Record, d.Environment, d.Now).For(fleet.ProcessRecovery).Reason
		if !strings.Contains(reason, "it waits until fewer than 1 machines of p1 are under recovery") {
			w.Errorf("it waits for a slot, and is said to: %s", reason)
		}
		says(fleet.ProviderStatusActive)
		w.shift.Advance(p.RecoveryStepTimeout - time.Minute)
		w.recover(s, 2, 0)
		w.shift.Advance(2 * time.Minute)
		if next := w.recover(s, 1, 1)[0]; next.Subject.Machine != waits {
			w.Errorf("claimed %s, which was reinstalled", next.Subject)
		}
	}},
	{"a machine that hangs in a reinstall has its slot for a day", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce, p.RecoveryReboots, p.RecoveryPowerCycles, p.RecoveryReinstalls = 1, 0, 0, 1
		w.must(errorOf2(w.db.SetPolicy(w.ctx, p)))
		w.pulls() // the provider is known
		w.broken("c1")
		w.broken("c2")
		w.pulls(fleet.LeverReinstall)
		w.shift.Advance(time.Hour)
		s := w.lasting("recoverer")
		work := w.recover(s, 2, 1)[0]
		hangs := w.record(work.Subject.Machine)
		w.must(work.Finish(w.ctx, bmdb.TakeStep(fleet.RungReinstall)))
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetProvided(hangs.ID, hangs.ProviderID, providedAs(fleet.ProviderStatusCreating, hangs.Provided.Capacity))))
		})
		w.shift.Advance(23 * time.Hour)
		w.recover(s, 2, 0)
		w.shift.Advance(2 * time.Hour)
		if next := w.recover(s, 2, 1)[0]; next.Subject.Machine == hangs.ID {
			w.Errorf("claimed %s, which hangs", next.Subject)
		}
	}},
	{"a step that the provider refused keeps no slot", func(w *world) {
		p := fleet.DefaultPolicy()
		p.RecoveryAtOnce = 1
		w.must(errorOf2(w.db.SetPolicy(w.ctx, p)))
		w.pulls() // the provider is known
		w.broken("c1")
		w.broken("c2")
		w.pulls(fleet.LeverReboot)
		w.shift.Advance(time.Hour)
		s := w.lasting("recoverer")
		refused := w.recover(s, 2, 1)[0]
		w.must(refused.Note(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		w.must(refused.Finish(w.ctx, bmdb.RefuseStep(fleet.RungReboot, bmdb.BeforeStep{}, "not on this plan")))
		next := w.recover(s, 2, 1)[0]
		if next.Subject == refused.Subject {
			w.Errorf("claimed %s, whose step was refused", next.Subject)
		}
		w.must(next.Finish(w.ctx, bmdb.TakeStep(fleet.RungReboot)))
		d, err := w.db.MachineDetails(w.ctx, refused.Subject.Machine)
		if w.must(err); d.Environment.UnderRecovery != 1 {
			w.Errorf("%d are under recovery", d.Environment.UnderRecovery)
		}
	}},
	{"other processes know no slots", func(w *world) {
		w.machines(nil, "c1", "c2", "c3")
		w.must(SetAtOnce(w.ctx, w.db, 1))
		if got := w.claim(w.session("a"), fleet.ProcessAgentStart, 5); len(got) != 3 {
			w.Fatalf("claimed %d", len(got))
		}
	}},
}

func (w *world) drain(wake <-chan struct{}) {
	select {
	case <-wake:
	default:
	}
}
