package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// serveAlone has every loop served for one provider, and for no other.
func (w *world) serveAlone(name fleet.ProviderName) (initializer *bmdb.Session) {
	w.Helper()
	w.exec("UPDATE session SET providers = $1", string(name))
	for _, role := range fleet.Roles() {
		if !role.AtProviders() {
			continue
		}
		s, err := w.db.StartSession(w.ctx, bmdb.SessionOptions{
			Component: role.Component(), Host: "host1", PID: 1, Lease: 1000 * time.Hour, Providers: []fleet.ProviderName{name},
		})
		w.must(err)
		if role == fleet.RoleInitializer {
			initializer = s
		}
	}
	return initializer
}

// fourBesideFive makes four machines whose agents speak and, at another provider, five that are
// silent. later has so much time pass, and wants the guard to do that.
func (w *world) fourBesideFive() (p fleet.Policy, later func(after time.Duration, want string)) {
	w.Helper()
	w.suspecting(2)
	var agents []bmdb.AgentIdentity
	for _, c := range []fleet.CapacityID{"c1", "c2", "c3", "c4"} {
		agents = append(agents, w.ready(c, false))
	}
	w.silent(elsewhere, 5, 0)
	w.must(w.db.SetLevers(w.ctx, elsewhere, everyLever))
	return w.suspecting(2), func(after time.Duration, want string) {
		w.Helper()
		w.shift.Advance(after)
		for _, a := range agents {
			w.must(w.db.RecordSpoken(w.ctx, a, "boot1"))
		}
		w.judgeAgain()
		w.watch(want)
	}
}

var unservedTests = []test{
	{"machines of a provider that nobody serves stop recovery once, and keep it from no later stop", func(w *world) {
		p, later := w.fourBesideFive()
		initializer := w.serveAlone(provider)
		later(p.NeverSpokeAfter+time.Minute, "5 of 9 machines with an agent are silent"+ours)
		later(p.SuspectFor+time.Minute, "0 of 4 machines with an agent are silent, without 5 that have been silent for long, and that recovery cannot restart: recovery goes on")
		later(p.SuspectFor+time.Minute, "")
		w.shift.Advance(p.SilentAfter + time.Minute)
		for _, work := range w.claim(initializer, fleet.ProcessAgentStart, 9) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours}))
		}
		w.judgeAgain()
		w.watch("4 of 4 machines with an agent are silent, without 5 that have been silent for long, and that recovery cannot restart" + ours)
	}},
	{"machines at which recovery fails stop recovery once, and keep it from no later stop", func(w *world) {
		p, later := w.fourBesideFive()
		w.judgeAgain() // under this policy they are not silent yet
		fail := func(process fleet.Process, name fleet.ProviderName, want int, f bmdb.Failure) {
			w.Helper()
			c, err := w.lasting("worker").Claim(w.ctx, bmdb.ClaimRequest{Process: process, Providers: []fleet.ProviderName{name}, Limit: 9})
			w.must(err)
			if len(c.Works) != want {
				w.Fatalf("claimed %d for %s, want %d", len(c.Works), process, want)
			}
			for _, work := range c.Works {
				w.must(work.Fail(w.ctx, f))
			}
		}
		later(2*time.Hour, "5 of 9 machines with an agent are silent"+ours)
		fail(fleet.ProcessAgentStart, elsewhere, 5, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone})
		later(p.SuspectFor+time.Minute, "") // the stop is over by now, and none of them was restarted
		minutes := fleet.Backoff{Initial: time.Minute, Maximum: time.Minute}
		fail(fleet.ProcessRecovery, elsewhere, 5, bmdb.Failure{Cause: "the provider refuses the token", Backoff: minutes})
		later(p.SuspectFor/2, "")
		fail(fleet.ProcessRecovery, elsewhere, 5, bmdb.Failure{Cause: "the provider refuses the token", Backoff: minutes})
		const left = ", without 5 that have been silent for long, and that recovery cannot restart"
		later(p.SuspectFor/2+time.Minute, "0 of 4 machines with an agent are silent"+left+": recovery goes on")
		w.shift.Advance(p.SilentAfter + time.Minute)
		fail(fleet.ProcessAgentStart, provider, 4, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone})
		w.watch("4 of 4 machines with an agent are silent" + left + ours)
	}},
	{"a control plane that comes back within the time of a stop does not make one silence two", func(w *world) {
		p, later := w.fourBesideFive()
		w.serveAlone(provider)
		s := w.serve(elsewhere)
		later(p.NeverSpokeAfter+time.Minute, "5 of 9 machines with an agent are silent"+ours)
		for range 2 { // while the stop lasts, and when it is over
			w.must(s.Close(w.ctx, "another version"))
			later(5*time.Minute, "")
			s = w.serve(elsewhere)
			later(p.SuspectFor, "")
		}
		w.must(s.Close(w.ctx, "its host is gone"))
		later(p.SuspectFor-time.Minute, "")
		later(2*time.Minute, "0 of 4 machines with an agent are silent, without 5 that have been silent for long, and that recovery cannot restart: recovery goes on")
	}},
	{"nor does one that comes back to hosts that have never answered", func(w *world) {
		p := w.suspecting(2)
		w.pulls(fleet.LeverPower)
		w.machines(nil, "c1", "c2", "c3")
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 5) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		}
		w.serveAlone(elsewhere)
		s := w.serve(provider)
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.watch("3 of 3 machines are silent, of which 3 have never answered" + ours)
		w.must(s.Close(w.ctx, "another version"))
		w.shift.Advance(5 * time.Minute)
		w.watch("")
		w.serve(provider)
		w.watch("")
	}},
}

// serve has a recoverer for one provider.
func (w *world) serve(name fleet.ProviderName) *bmdb.Session {
	w.Helper()
	s, err := w.db.StartSession(w.ctx, bmdb.SessionOptions{
		Component: fleet.RoleRecoverer.Component(), Host: "host2", PID: 1, Lease: 1000 * time.Hour, Providers: []fleet.ProviderName{name},
	})
	w.must(err)
	return s
}
