package bmdbtest

import (
	"context"
	"errors"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var sessionTests = []test{
	{"extended past its first deadline, it lives", func(w *world) {
		s := w.session("a")
		w.shift.Advance(interval - margin)
		w.must(s.Extend(w.ctx))
		w.shift.Advance(interval - margin)
		if n, err := w.db.CollectSessions(w.ctx); n != 0 || err != nil {
			w.Fatalf("collected %d sessions, %v", n, err)
		}
		w.must(s.Extend(w.ctx))
	}},
	{"past its deadline it is collected, for good", func(w *world) {
		s := w.session("a")
		w.shift.Advance(interval + margin)
		if n, err := w.db.CollectSessions(w.ctx); n != 1 || err != nil {
			w.Fatalf("collected %d sessions, %v", n, err)
		}
		w.wantKind(s.Extend(w.ctx), fleet.KindLeaseLost)
		if s.Trusted() {
			w.Fatal("a session that has ended is still trusted")
		}
		if n, err := w.db.CollectSessions(w.ctx); n != 0 || err != nil {
			w.Fatalf("collected %d sessions once more, %v", n, err)
		}
		w.wantHappenedOnce(bmdb.HappeningSessionLost, bmdb.LostOverdue)
	}},
	{"only a death that is a fact is one", func(w *world) { // rule 4: the deadline alone ends nothing
		s := w.session("a")
		work := w.one(s)
		w.shift.Advance(interval + margin)
		w.must(s.Extend(w.ctx))
		w.must(work.Finish(w.ctx))
	}},
	// rule 4: judged in the transaction that ends it
	{"extended in the last moment, it lives", func(w *world) {
		s := w.session("a")
		w.shift.Advance(interval + margin)
		w.after = map[string]func(){"overdue sessions": func() { w.must(s.Extend(w.ctx)) }}
		if n, err := w.db.CollectSessions(w.ctx); n != 0 || err != nil {
			w.Fatalf("collected %d sessions, %v", n, err)
		}
		w.must(s.Extend(w.ctx))
	}},
	{"ended, its commits are refused before anybody took over", func(w *world) { // rule 3
		w.machines(nil, "c1", "c2")
		dead, heir := w.session("dead"), w.session("heir")
		works := w.claim(dead, fleet.ProcessAgentStart, 2)
		w.shift.Advance(interval + margin)
		w.must(heir.Extend(w.ctx))
		// ends the other session, and takes one of its two
		taken := w.claimOne(heir, fleet.ProcessAgentStart)
		for _, work := range works {
			if work.Subject == taken.Subject {
				continue
			}
			w.wantKind(work.Note(w.ctx, bmdb.RecordHistory("late", "")), fleet.KindLeaseLost)
			w.wantKind(work.Finish(w.ctx), fleet.KindLeaseLost)
		}
	}},
	{"ended, it claims nothing", func(w *world) { // rule 3: it does not know yet
		w.machine("c1")
		dead, heir := w.session("dead"), w.session("heir")
		w.shift.Advance(interval - margin)
		w.must(heir.Extend(w.ctx))
		w.shift.Advance(2 * margin)
		n, err := w.db.CollectSessions(w.ctx)
		w.must(err)
		if n != 1 {
			w.Fatalf("ended %d sessions", n)
		}
		c, err := dead.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
		w.wantKind(err, fleet.KindLeaseLost)
		if len(c.Works) != 0 {
			w.Error("a session that has ended claimed")
		}
		w.claimOne(heir, fleet.ProcessAgentStart)
	}},
	{"closed, it holds nothing at once", func(w *world) {
		id := w.machine("c1")
		a, b := w.session("a"), w.session("b")
		work := w.claimOne(a, fleet.ProcessAgentStart)
		if got := w.claim(b, fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatal("claimed what another session holds")
		}
		w.must(a.Close(w.ctx, "test"))
		w.must(a.Close(w.ctx, "test"))
		taken := w.claimOne(b, fleet.ProcessAgentStart)
		if taken.Subject.Machine != id || taken.Epoch <= work.Epoch {
			w.Fatalf("took over %v epoch %d after epoch %d", taken.Subject, taken.Epoch, work.Epoch)
		}
		w.wantKind(work.Finish(w.ctx), fleet.KindLeaseLost)
		w.wantEvents(id, "expired", "started")
	}},
	{"its trust window ends by itself and cancels everything", func(w *world) {
		s := w.sessionFor("a", time.Second)
		guarded, cancel := s.Guard(w.ctx)
		defer cancel()
		<-guarded.Done()
		if !errors.Is(context.Cause(guarded), fleet.ErrLeaseLost) {
			w.Fatalf("cancelled with %v", context.Cause(guarded))
		}
		if s.Trusted() {
			w.Fatal("still trusted")
		}
		w.wantKind(s.Extend(w.ctx), fleet.KindLeaseLost)
		again, release := s.Guard(w.ctx)
		defer release()
		if again.Err() == nil {
			w.Fatal("a guard made after the end is not cancelled")
		}
	}},
	{"Run outlives failed extensions within the window", func(w *world) {
		s := w.sessionFor("a", 15*time.Second) // so long that a busy machine extends it in time
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		for range 2 {
			w.faults.FailStatement(1)
			for failed := false; ; { // until one failed and one succeeded
				select {
				case kind := <-w.transactions:
					failed = kind == "extend session" && w.faults.hit.Load() > 0
				case err := <-done:
					w.Fatalf("it has ended: %v", err)
				}
				if failed {
					break
				}
			}
			w.faults.Clear()
		}
		if !s.Trusted() {
			w.Fatal("not trusted after failed extensions were repeated")
		}
		cancel()
		w.must(<-done)
	}},
	{"Run ends when the session is ended by somebody else", func(w *world) {
		s := w.sessionFor("a", time.Second)
		w.shift.Advance(interval + margin)
		if n, err := w.db.CollectSessions(w.ctx); n != 1 || err != nil {
			w.Fatalf("collected %d sessions, %v", n, err)
		}
		w.wantKind(s.Run(w.ctx), fleet.KindLeaseLost)
	}},
	{"bad options", func(w *world) {
		_, err := w.db.StartSession(w.ctx, bmdb.SessionOptions{Lease: time.Millisecond})
		w.wantKind(err, fleet.KindInvalid)
	}},
	{"the list says who holds what", func(w *world) {
		w.machines(nil, "c1", "c2")
		s := w.session("holder")
		w.claim(s, fleet.ProcessAgentStart, 2)
		list, err := w.db.Sessions(w.ctx, false)
		w.must(err)
		if len(list) != 1 || list[0].ID != s.ID() || len(list[0].Held) != 2 || list[0].Component != "holder" {
			w.Fatalf("sessions: %+v", list)
		}
		all, err := w.db.Sessions(w.ctx, true)
		w.must(err)
		if len(all) < 2 || all[0].ID != s.ID() || all[1].EndedAt.IsZero() || all[1].Cause == "" {
			w.Fatalf("all sessions: %+v", all)
		}
	}},
	{"a claim whose reply was lost is handed back", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		w.faults.LoseReply()
		if _, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1}); err == nil {
			w.Fatal("the reply was not lost")
		}
		if got := w.claim(s, fleet.ProcessAgentStart, 1); len(got) != 0 {
			w.Fatal("claimed twice")
		}
		w.must(s.Extend(w.ctx))
		work := w.claimOne(s, fleet.ProcessAgentStart)
		if work.Subject.Machine != id {
			w.Fatalf("claimed %s", work.Subject)
		}
		w.wantEvents(id, "cancelled", "started")
	}},
	{"pruned when long over", func(w *world) {
		s := w.session("a")
		w.must(s.Close(w.ctx, "test"))
		_, err := w.db.CollectSessions(w.ctx) // who frees what is left of it
		w.must(err)
		if n, err := w.db.PruneSessions(w.ctx, time.Hour, 10); n != 0 || err != nil {
			w.Fatalf("pruned %d, %v", n, err)
		}
		w.shift.Advance(2 * time.Hour)
		if n, err := w.db.PruneSessions(w.ctx, time.Hour, 10); n != 1 || err != nil {
			w.Fatalf("pruned %d, %v", n, err)
		}
	}},
	// rule 4
	{"kept until nothing is held through it", func(w *world) {
		s := w.session("a")
		w.one(s)
		w.must(s.Close(w.ctx, "test"))
		w.shift.Advance(2 * time.Hour)
		if n, err := w.db.PruneSessions(w.ctx, time.Hour, 10); n != 0 || err != nil {
			w.Fatalf("pruned %d, %v", n, err)
		}
		w.must(errorOf2(w.db.CollectSessions(w.ctx)))
		if n, err := w.db.PruneSessions(w.ctx, time.Hour, 10); n == 0 || err != nil {
			w.Fatalf("when nothing is held any more, pruned %d, %v", n, err)
		}
	}},
}

// one returns some claimed work.
func (w *world) one(s *bmdb.Session) *bmdb.Work {
	w.Helper()
	w.machine("one")
	return w.claimOne(s, fleet.ProcessAgentStart)
}
