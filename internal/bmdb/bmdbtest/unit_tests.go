package bmdbtest

import (
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

var unitTests = []test{
	{"a unit follows the interval that it was told, although the policy has a shorter one by now", func(w *world) {
		const told = time.Hour
		p := fleet.DefaultPolicy()
		p.WatchInterval, p.UnreachableAfter = told, 3*told
		set := func(p fleet.Policy) {
			_, err := w.db.SetPolicy(w.ctx, p)
			w.must(err)
		}
		set(p)
		a, o := w.unseen(fleet.SeenUp{Watch: true})
		call := func(want time.Duration) {
			w.Helper()
			again, err := w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")
			if w.must(err); again != want {
				w.Fatalf("to call again after %s, want %s", again, want)
			}
		}
		overdue := func(want int) {
			w.Helper()
			s := w.sessionFor("prober", time.Hour)
			for _, work := range w.claim(s, fleet.ProcessProbe, 1) {
				want--
				w.must(work.Cancel(w.ctx, "seen"))
			}
			if want != 0 {
				w.Fatalf("%d more calls are overdue", want)
			}
		}
		call(told)
		w.heardFor(told / 2)
		soon := fleet.DefaultPolicy()
		set(soon)
		soon.SilentAfter += time.Second
		set(soon) // and another one, for another reason
		_, err := w.db.RecomputeAgenda(w.ctx, 100)
		w.must(err)
		w.heardFor(told / 4)
		overdue(0)
		w.heardFor(2 * told)
		overdue(1)
		call(soon.WatchInterval)
		w.heardFor(3 * soon.WatchInterval)
		overdue(1)
	}},
	{"the host keys that a unit tells count where its system is seen by HTTP", func(w *world) {
		byHTTP := fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}
		const person, unit, later = "ssh-ed25519 PERSON", "ssh-ed25519 UNIT", "ssh-ed25519 LATER"
		for _, c := range []struct {
			capacity         fleet.CapacityID
			probed, accepted bool
		}{{capacity: "c1", probed: true}, {capacity: "c2", accepted: true}, {capacity: "c3"}} {
			a, o := w.unseenOn(c.capacity, byHTTP)
			tell := func(secret []byte, key string) error {
				w.shift.Advance(time.Second)
				return errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, secret, "boot9", key))
			}
			known := func(want string, source fleet.HostKeySource) {
				w.Helper()
				keys, err := w.db.HostKeys(w.ctx, a.Machine)
				if w.must(err); !slices.Equal(keys.Known, []string{want}) || keys.Source != source {
					w.Fatalf("%+v: known by %+v, want %s (%s)", c, keys, want, source)
				}
			}
			probing := func() *bmdb.Work {
				works := w.claim(w.sessionFor("prober", time.Hour), fleet.ProcessProbe, 3)
				return works[slices.IndexFunc(works, func(work *bmdb.Work) bool { return work.Subject.Machine == a.Machine })]
			}
			if c.accepted { // since the disk was written
				w.shift.Advance(time.Second)
				w.must(probing().Fail(w.ctx, bmdb.Failure{Cause: "another key", Backoff: growing}, bmdb.RefuseHostKey(person, "SHA256:P")))
				w.must(w.db.AcceptHostKey(w.ctx, actor, a.Machine, person, "SHA256:P", "seen on the console"))
			}
			if c.probed {
				up := bmdb.ProbeResult{Generation: 1, Attempt: 1, Answered: true, Detail: "it answers HTTP"}
				w.must(probing().Finish(w.ctx, bmdb.RecordProbe(up)))
			}
			w.wantKind(tell([]byte("guess"), later), fleet.KindForbidden)
			w.must(tell(o.Secret, unit))
			if c.accepted {
				known(person, fleet.HostKeyAccepted)
				continue
			}
			known(unit, fleet.HostKeyInstalled)
			w.must(tell(o.Secret, later))
			known(unit, fleet.HostKeyInstalled)
			if !c.probed {
				continue
			}
			_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, SeenUp: byHTTP}, true)
			w.must(err)
			b := w.startAgentAs(a.Machine, "boot10")
			w.must(w.db.RecordSpoken(w.ctx, b, "boot10"))
			w.must(w.db.RecordHardware(w.ctx, b, []byte("report"), nil))
			w.handOut(b, 1, 1)
			w.must(tell(o.Secret, later)) // the system of before runs
			known(unit, fleet.HostKeyInstalled)
			w.must(w.db.RecordInstallReport(w.ctx, b, fleet.InstallReport{Generation: 2, Attempt: 1, OK: true}))
			w.must(tell(o.Secret, later)) // the disk of before was booted
			known(unit, fleet.HostKeyInstalled)
		}
	}},
	{"the host keys that a unit tells once count although another install is wanted by now", func(w *world) {
		byHTTP := fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}
		a, o := w.unseenOn("c1", byHTTP)
		w.shift.Advance(time.Second)
		up := bmdb.ProbeResult{Generation: 1, Attempt: 1, Answered: true, Detail: "it answers HTTP"}
		w.must(w.claimOne(w.sessionFor("prober", time.Hour), fleet.ProcessProbe).Finish(w.ctx, bmdb.RecordProbe(up)))
		_, err := w.db.RequestInstall(w.ctx, actor, a.Machine, fleet.InstallRequest{Image: image, SeenUp: fleet.SeenUp{By: fleet.SeenByUnit}}, true)
		w.must(err)
		start := w.claimOne(w.sessionFor("initializer", time.Hour), fleet.ProcessAgentStart)
		w.must(start.Fail(w.ctx, bmdb.Failure{Cause: "another key", Backoff: growing}, bmdb.RefuseHostKey("ssh-ed25519 UNIT", "SHA256:U")))
		w.must(errorOf(w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9", "ssh-ed25519 UNIT")))
		keys, err := w.db.HostKeys(w.ctx, a.Machine)
		if w.must(err); !slices.Equal(keys.Known, []string{"ssh-ed25519 UNIT"}) || keys.Refused != "" {
			w.Fatalf("known by %+v", keys)
		}
		if b := w.record(a.Machine).Backoffs; len(b) != 0 {
			w.Fatalf("the agent start that was refused waits: %v", b)
		}
	}},
	{"a unit calls once a day, whatever longer interval the policy had", func(w *world) {
		const month = 30 * 24 * time.Hour
		p := fleet.DefaultPolicy()
		p.WatchInterval, p.UnreachableAfter = month, 3*month
		_, err := w.db.SetPolicy(w.ctx, p)
		w.must(err)
		a, o := w.unseen(fleet.SeenUp{Watch: true})
		for range 2 { // its first call, and another one
			again, err := w.db.RecordInstalled(w.ctx, a.Machine, 1, 1, o.Secret, "boot9")
			if w.must(err); again != 24*time.Hour {
				w.Fatalf("to call again after %s", again)
			}
		}
		missed := func(want int) {
			w.Helper()
			works := w.claim(w.sessionFor("prober", time.Hour), fleet.ProcessProbe, 1)
			for _, work := range works {
				w.must(work.Cancel(w.ctx, "seen"))
			}
			if len(works) != want {
				w.Fatalf("%d calls are missed, want %d", len(works), want)
			}
		}
		w.heardFor(47 * time.Hour)
		missed(0)
		_, err = w.db.SetPolicy(w.ctx, fleet.DefaultPolicy())
		w.must(err)
		_, err = w.db.RecomputeAgenda(w.ctx, 100)
		w.must(err)
		w.heardFor(30 * time.Minute)
		missed(0)
		w.heardFor(time.Hour)
		missed(1)
	}},
}
