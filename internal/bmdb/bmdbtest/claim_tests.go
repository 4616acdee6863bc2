package bmdbtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var claimTests = []test{
	{"no more than the limit, longest due first, all of them in the end", func(w *world) {
		var ids []fleet.MachineID
		for i := range 7 {
			ids = append(ids, w.machine(fleet.CapacityID(fmt.Sprintf("c%d", i))))
			w.shift.Advance(time.Second)
		}
		s := w.session("a")
		var got []fleet.MachineID
		for _, want := range []int{3, 3, 1, 0} {
			works := w.claim(s, fleet.ProcessAgentStart, 3)
			if len(works) != want {
				w.Fatalf("claimed %d, want %d", len(works), want)
			}
			for _, work := range works {
				got = append(got, work.Subject.Machine)
			}
		}
		if !slices.Equal(got, ids) {
			w.Fatalf("claimed in the order %v, want %v", got, ids)
		}
	}},
	{"slots are kept for machines that have not failed lately, and the others stay due", func(w *world) {
		for i := range 5 {
			w.machine(fleet.CapacityID(fmt.Sprintf("failing%d", i)))
		}
		s := w.session("a")
		for _, work := range w.claim(s, fleet.ProcessAgentStart, 5) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "it hangs", Backoff: fleet.Backoff{Initial: 2 * time.Second}}))
		}
		w.shift.Advance(4 * time.Second)
		for i := range 3 {
			w.machine(fleet.CapacityID(fmt.Sprintf("fresh%d", i)))
		}
		w.must(s.Extend(w.ctx))
		for i, claim := range []struct{ limit, kept, failing, fresh int }{
			{4, 2, 2, 2}, {1, 1, 0, 1}, {4, 4, 0, 0}, {4, 4, 0, 0}, {4, 2, 2, 0}, {4, 2, 1, 0}, {4, 0, 0, 0},
		} {
			for range 6 { // so long that no slack of a floor hides that it passed somebody
				w.shift.Advance(interval - margin)
				w.must(s.Extend(w.ctx))
			}
			got, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: claim.limit, Kept: claim.kept})
			w.must(err)
			failing := 0
			for _, work := range got.Works {
				if work.Failing() {
					failing++
				}
			}
			if fresh := len(got.Works) - failing; failing != claim.failing || fresh != claim.fresh {
				w.Fatalf("claim %d of %+v got %d that failed, %d that did not", i, claim, failing, fresh)
			}
		}
	}},
	{"the next due row is told", func(w *world) {
		w.machines(nil, "c1", "c2")
		s := w.session("a")
		request := bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}
		c, err := s.Claim(w.ctx, request)
		w.must(err)
		if len(c.Works) != 1 || c.NextDue.IsZero() || c.NextDue.After(w.now()) {
			w.Fatalf("claimed %d, next due %s", len(c.Works), c.NextDue)
		}
		request.Limit = 2
		held := w.record(c.Works[0].Subject.Machine).Holds[fleet.LaneHost]
		c, err = s.Claim(w.ctx, request)
		w.must(err)
		if len(c.Works) != 1 || !c.NextDue.Equal(held.Deadline) {
			w.Fatalf("claimed %d, next due %s: want %s, the deadline of what is held", len(c.Works), c.NextDue, held.Deadline)
		}
		c, err = s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessInstall, Limit: 1})
		w.must(err)
		if len(c.Works) != 0 || !c.NextDue.IsZero() {
			w.Fatalf("claimed %d, next due %s: nothing is ever due", len(c.Works), c.NextDue)
		}
	}},
	{"what is held is never claimed, and taken over after the holder's death", func(w *world) {
		id := w.machine("c1")
		dead, heir := w.session("dead"), w.session("heir")
		work := w.claimOne(dead, fleet.ProcessAgentStart)
		for range 3 { // I1, also when the row comes up again
			if got := w.claim(heir, fleet.ProcessAgentStart, 5); len(got) != 0 {
				w.Fatal("claimed what is held")
			}
			w.shift.Advance(interval - margin)
			w.must(dead.Extend(w.ctx))
			w.must(heir.Extend(w.ctx))
		}
		w.shift.Advance(interval + margin)
		w.must(heir.Extend(w.ctx))
		// the claim itself ends the session that is in its way
		taken := w.claimOne(heir, fleet.ProcessAgentStart)
		if taken.Epoch <= work.Epoch {
			w.Fatalf("epoch %d after %d", taken.Epoch, work.Epoch)
		}
		w.wantKind(work.Finish(w.ctx, bmdb.RecordHistory("late", "must not be there")), fleet.KindLeaseLost)
		w.wantEvents(id, "expired", "started")
		if slices.Contains(w.events(id), "late") {
			w.Fatal("a late commit wrote")
		}
	}},
	{"two processes of one lane exclude each other", func(w *world) {
		a := w.ready("c1", false)
		w.pulls(fleet.LeverReboot)
		w.shift.Advance(time.Hour) // silent: recovery is due
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		w.shift.Advance(time.Hour)
		w.must(w.claimOne(w.session("initializer"), fleet.ProcessAgentStart).Fail(w.ctx, bmdb.Failure{
			Cause: "no route to host", Backoff: fleet.Backoff{Initial: time.Second, Maximum: time.Second},
		}))
		w.shift.Advance(2 * time.Second)
		s := w.session("recoverer")
		work := w.claimOne(s, fleet.ProcessRecovery)
		if work.Subject.Machine != a.Machine {
			w.Fatalf("claimed %s", work.Subject)
		}
		other := w.session("initializer")
		if got := w.claim(other, fleet.ProcessAgentStart, 5); len(got) != 0 {
			w.Fatal("claimed a machine whose host lane is held")
		}
		w.must(work.Cancel(w.ctx, "test"))
	}},
	{"claims of many at once never meet", func(w *world) {
		var capacities []fleet.CapacityID
		for i := range 40 {
			capacities = append(capacities, fleet.CapacityID(fmt.Sprintf("c%02d", i)))
		}
		w.machines(nil, capacities...)
		var mu sync.Mutex
		seen := make(map[fleet.Subject]int)
		var wg sync.WaitGroup
		for i := range 4 {
			s := w.session(fmt.Sprintf("s%d", i))
			wg.Go(func() {
				for {
					c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 3})
					if err != nil {
						w.Error(err)
						return
					}
					if len(c.Works) == 0 {
						return
					}
					mu.Lock()
					for _, work := range c.Works {
						seen[work.Subject]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != len(capacities) {
			w.Fatalf("%d of %d machines were claimed", len(seen), len(capacities))
		}
		for subject, n := range seen {
			if n != 1 {
				w.Errorf("%s was claimed %d times", subject, n)
			}
		}
	}},
	{"a session that has ended claims nothing", func(w *world) {
		w.machine("c1")
		s := w.session("a")
		w.shift.Advance(interval + margin)
		if _, err := w.db.CollectSessions(w.ctx); err != nil {
			w.Fatal(err)
		}
		_, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		w.wantKind(err, fleet.KindLeaseLost)
	}},
	{"the limit counts across providers", func(w *world) {
		w.machines(nil, "c1", "c2")
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		s := w.session("provisioner")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{"p2"}, Limit: 1})
		w.must(err)
		wanted := newIntents("d1", "d2")
		var opened []fleet.Intent
		w.must(c.Works[0].Finish(w.ctx, bmdb.OpenIntents(0, wanted, &opened),
			bmdb.CloseIntentProvided(wanted[0].Machine, "d1", providedAs(fleet.ProviderStatusActive, "d1")),
			bmdb.CloseIntentProvided(wanted[1].Machine, "d2", providedAs(fleet.ProviderStatusActive, "d2"))))
		for _, want := range []int{3, 1, 0} {
			c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 3})
			w.must(err)
			if len(c.Works) != want {
				w.Fatalf("claimed %d, want %d", len(c.Works), want)
			}
		}
	}},
	{"what was due long ago is found at once", func(w *world) { // below the floor of earlier scans
		id := w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		for range 5 {
			w.shift.Advance(interval - margin)
			w.must(s.Extend(w.ctx))
			w.shift.Advance(interval - margin)
			w.must(s.Extend(w.ctx))
			if got := w.claim(s, fleet.ProcessAgentStart, 5); len(got) != 0 {
				w.Fatal("claimed what is held")
			}
		}
		w.must(work.Cancel(w.ctx, "again"))
		if again := w.claimOne(s, fleet.ProcessAgentStart); again.Subject.Machine != id {
			w.Fatalf("claimed %s", again.Subject)
		}
	}},
	// rule 2: no floor passes it
	{"what becomes due while a claim looks is found by the next one", func(w *world) {
		w.machine("c1")
		s := w.sessionFor("a", time.Hour)
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.shift.Advance(time.Minute)
		w.after = map[string]func(){"look for due work": func() { w.must(work.Cancel(w.ctx, "again")) }}
		if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 || len(w.after) != 0 {
			w.Fatalf("claimed %d", len(got))
		}
		w.claimOne(s, fleet.ProcessAgentStart)
	}},
	{"only the providers asked for", func(w *world) {
		w.machine("c1")
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		s := w.session("a")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{"p2"}, Limit: 5})
		w.must(err)
		if len(c.Works) != 0 {
			w.Fatal("claimed a machine of another provider")
		}
		if got := w.claim(s, fleet.ProcessAgentStart, 5); len(got) != 1 {
			w.Fatalf("claimed %d", len(got))
		}
	}},
	{"what becomes due wakes those who wait for it", func(w *world) {
		w.session("a")
		s := w.session("b")
		wake := w.db.Wake(fleet.ProcessAgentStart)
		if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatal("claimed something")
		}
		w.machine("c1")
		select {
		case <-wake:
		default:
			w.Fatal("nobody was woken")
		}
		work := w.claimOne(s, fleet.ProcessAgentStart)
		w.must(work.Cancel(w.ctx, "again")) // due at once: wakes again
		<-wake
		w.claimOne(s, fleet.ProcessAgentStart)
	}},
	{"what becomes due while a claim asks what is next is not slept through", func(w *world) {
		w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		// and is told to wait for the deadline of who has it
		if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatal("claimed what is held")
		}
		w.shift.Advance(interval - margin)
		w.must(s.Extend(w.ctx))
		w.shift.Advance(2 * margin) // which passes
		wake := w.db.Wake(fleet.ProcessAgentStart)
		select {
		case <-wake:
		default:
		}
		soon := bmdb.Failure{Cause: "x", Backoff: fleet.Backoff{Initial: margin, Maximum: margin}}
		w.after = map[string]func(){"look for due work": func() { w.must(work.Fail(w.ctx, soon)) }}
		request := bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: 1}
		c, err := s.Claim(w.ctx, request)
		w.must(err)
		if len(c.Works) != 0 || len(w.after) != 0 {
			w.Fatalf("claimed %d", len(c.Works))
		}
		select {
		case <-wake:
		default:
			if soonest := w.now().Add(2 * margin); c.NextDue.After(soonest) {
				w.Fatalf("what is due before %s is waited for until %s", soonest, c.NextDue)
			}
		}
		if c, err = s.Claim(w.ctx, request); err != nil || len(c.Works) != 0 || c.NextDue.After(w.now().Add(2*margin)) {
			w.Fatalf("claimed %d, next due %s, %v", len(c.Works), c.NextDue, err)
		}
		w.shift.Advance(2 * margin)
		w.claimOne(s, fleet.ProcessAgentStart)
	}},
	{"provider work comes back after its interval", func(w *world) {
		s := w.session("provisioner")
		work := w.claimOne(s, fleet.ProcessProvision)
		update := w.claimOne(s, fleet.ProcessUpdate) // lanes of their own
		w.must(update.Finish(w.ctx))
		w.must(work.Finish(w.ctx, bmdb.SetPassResult("all well")))
		if got := w.claim(s, fleet.ProcessProvision, 1); len(got) != 0 {
			w.Fatal("claimed before the interval was over")
		}
		w.shift.Advance(fleet.DefaultPolicy().ProvisionInterval)
		w.must(s.Extend(w.ctx))
		w.claimOne(s, fleet.ProcessProvision)
		list, err := w.db.Providers(w.ctx)
		w.must(err)
		if len(list) != 1 || list[0].PassResult != "all well" || list[0].LastPassAt.IsZero() || len(list[0].Decisions) != 2 {
			w.Fatalf("providers: %+v", list)
		}
	}},
	// the row is a hint, lifecycle decides
	{"a row that is due too early is moved, not claimed", func(w *world) {
		a := w.ready("c1", false)
		s := w.session("recoverer")
		w.shift.Advance(9 * time.Minute)
		w.must(w.db.FlushSeen(w.ctx, []bmdb.Seen{{Machine: a.Machine, TakeoverGeneration: a.TakeoverGeneration}}))
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		w.shift.Advance(2 * time.Minute)
		w.must(s.Extend(w.ctx))
		before := w.now()
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		w.must(err)
		if len(c.Works) != 0 || !c.NextDue.After(before) {
			w.Fatalf("claimed %d, next due %s", len(c.Works), c.NextDue)
		}
	}},
	{"a context that is over claims nothing", func(w *world) {
		w.machine("c1")
		s := w.session("a")
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		if _, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}); err == nil {
			w.Fatal("claimed under a context that is over")
		}
		w.claimOne(s, fleet.ProcessAgentStart)
	}},
}
