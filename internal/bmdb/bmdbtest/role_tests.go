package bmdbtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// missing returns which roles nobody has, as what explains a machine knows it.
func (w *world) missing(machine fleet.MachineID) []fleet.Role {
	w.Helper()
	d, err := w.db.MachineDetails(w.ctx, machine)
	w.must(err)
	return d.Environment.Missing
}

// has starts a session of a role.
func (w *world) has(role fleet.Role) *bmdb.Session {
	w.Helper()
	return w.session(role.Component())
}

// judgeMissing checks whether nobody has a role.
func (w *world) judgeMissing(machine fleet.MachineID, role fleet.Role, want bool) {
	w.Helper()
	if slices.Contains(w.missing(machine), role) != want {
		w.Fatalf("that nobody is the %s is %t, want %t", role, !want, want)
	}
}

// wantUncompared checks what is said of the provider; "": a pass has compared it.
func (w *world) wantUncompared(want string) {
	w.Helper()
	got := ""
	all, err := w.db.Uncompared(w.ctx)
	w.must(err)
	for _, u := range all {
		got += string(u.Provider) + ": " + u.Why
	}
	if (got == "") != (want == "") || !strings.Contains(got, want) {
		w.Fatalf("uncompared is %q, want %q", got, want)
	}
}

// serves starts a session of a role that works at these providers.
func (w *world) serves(role fleet.Role, providers ...fleet.ProviderName) *bmdb.Session {
	w.Helper()
	s, err := w.db.StartSession(w.ctx, bmdb.SessionOptions{
		Component: role.Component(), Host: "host1", PID: 1, Lease: interval, Providers: append([]fleet.ProviderName{}, providers...),
	})
	w.must(err)
	w.Cleanup(func() { _ = s.Close(context.WithoutCancel(w.ctx), "test over") })
	return s
}

// unserved checks for which roles nobody serves the provider.
func (w *world) unserved(want ...fleet.Role) {
	w.Helper()
	rows, err := w.db.Providers(w.ctx)
	w.must(err)
	if p := rows[slices.IndexFunc(rows, func(p bmdb.ProviderRow) bool { return p.Name == provider })]; fmt.Sprint(p.Unserved) != fmt.Sprint(want) {
		w.Fatalf("unserved are %v, want %v", p.Unserved, want)
	}
}

var roleTests = []test{
	{"the authority of agents is the first one, until another one is accepted", func(w *world) {
		kept := func(ours, want string) {
			w.Helper()
			if got, err := w.db.KeepAuthority(w.ctx, ours); err != nil || got != want {
				w.Fatalf("%s keeps %s (%v), want %s", ours, got, err, want)
			}
		}
		kept("01:AB", "01:AB")
		kept("02:CD", "01:AB")
		kept("01:AB", "01:AB")
		w.must(w.db.AcceptAuthority(w.ctx, actor, "02:CD"))
		kept("01:AB", "02:CD")
	}},
	{"a control plane that runs is seen by its sessions, or by its listener", func(w *world) {
		runs := func(want string) {
			w.Helper()
			err := w.db.NoneRuns(w.ctx)
			if (err == nil) != (want == "") || err != nil && (fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), want)) {
				w.Fatalf("%v, want %q", err, want)
			}
		}
		runs("")
		s := w.has(fleet.RoleJanitor)
		runs("a control plane runs on host ")
		w.must(s.Close(w.ctx, "it ends"))
		runs("")
		w.has(fleet.RoleJanitor)
		w.shift.Advance(time.Hour) // it died
		runs("")
		w.must(w.db.ListenerAlive(w.ctx, 10*time.Second, 30*time.Second))
		runs("a control plane has listened for agents a moment ago")
		w.shift.Advance(time.Minute)
		runs("")
	}},
	{"what no pass has compared lately, or since the database came back, is told", func(w *world) {
		s := w.lasting("provisioner")
		w.wantUncompared(string(provider) + ": it was never compared")
		w.must(w.claimOne(s, fleet.ProcessProvision).Finish(w.ctx))
		w.wantUncompared("")
		w.shift.Advance(time.Hour)
		w.wantUncompared("it was last compared at")
		failed := w.claimOne(s, fleet.ProcessProvision)
		w.must(failed.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: fleet.Backoff{Initial: time.Minute}}))
		w.wantUncompared("it was last compared at")
		w.shift.Advance(time.Hour)
		refused := w.claimOne(s, fleet.ProcessProvision) // it compares, and then nothing can be created
		w.must(refused.Note(w.ctx, bmdb.SetDiscrepancies(nil)))
		w.must(refused.Fail(w.ctx, bmdb.Failure{Cause: "the project has its quota", Backoff: fleet.Backoff{Initial: time.Minute}}))
		w.wantUncompared("")
		w.shift.Advance(time.Second)
		w.putBack()
		w.wantUncompared("and the database looks restored since")
		w.shift.Advance(time.Hour)
		w.must(w.claimOne(s, fleet.ProcessProvision).Finish(w.ctx))
		w.wantUncompared("")
	}},
	{"a provider is unserved in a role that others have when nobody served it for a minute", func(w *world) {
		for _, other := range []fleet.ProviderName{"p2", "p11"} {
			w.must(w.db.RegisterProvider(w.ctx, other, "test", 0))
		}
		w.serves(fleet.RoleProvisioner, "p2")
		w.unserved() // whoever starts together with this process needs a moment
		w.shift.Advance(time.Hour)
		w.unserved() // nobody has any role
		w.serves(fleet.RoleProvisioner, "p2", "p11")
		w.unserved(fleet.RoleProvisioner)
		here := w.serves(fleet.RoleProvisioner, "p2", provider)
		w.unserved()
		w.must(here.Close(w.ctx, "its configuration changes"))
		w.shift.Advance(time.Minute - margin)
		w.unserved()
		w.serves(fleet.RoleProvisioner)
		w.serves(fleet.RoleUpdater, "p2")
		w.shift.Advance(2 * margin)
		w.unserved(fleet.RoleProvisioner, fleet.RoleUpdater)
		w.has(fleet.RoleUpdater) // of a version that does not say at which providers it works
		w.unserved(fleet.RoleProvisioner)
	}},
	{"what is due at an unserved provider is overdue nowhere, and said of its machines", func(w *world) {
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		id := w.machines(nil, "c1")[0]
		w.shift.Advance(time.Hour)
		w.serves(fleet.RoleProvisioner, "p2")
		w.serves(fleet.RoleInitializer, "p2")
		s, err := w.db.Summary(w.ctx)
		w.must(err)
		if got := fmt.Sprint(s.OfRole(fleet.RoleProvisioner).Due, s.OfRole(fleet.RoleInitializer).Due, s.OfRole(fleet.RoleUpdater).Due); got != "1 0 2" {
			w.Fatalf("due are %s, want 1 0 2: of p2 alone what somebody does there", got)
		}
		d, err := w.db.MachineDetails(w.ctx, id)
		w.must(err)
		if got := fmt.Sprint(d.Environment.Unserved); got != "[provisioner initializer]" {
			w.Fatalf("unserved are %s", got)
		}
		plan := lifecycle.Decide(d.Record, d.Environment, d.Now)
		if got := plan.For(fleet.ProcessAgentStart).Reason; !strings.HasSuffix(got, ", but no live control plane serves provider p1") {
			w.Fatalf("the reason is %s", got)
		}
	}},
	{"a provider that somebody may serve is not forgotten, nor are its machines", func(w *world) {
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		id := w.machines(nil, "c1")[0]
		refused := func(want, machine string) {
			w.Helper()
			err := w.db.ForgetProvider(w.ctx, actor, provider, "sold")
			if w.wantKind(err, fleet.KindConflict); !strings.Contains(err.Error(), want) {
				w.Fatalf("refused with %q, want %q", err, want)
			}
			err = Forget(w.ctx, w.db, actor, id, "sold")
			if w.wantKind(err, fleet.KindConflict); !strings.Contains(err.Error(), cmp.Or(machine, want)) {
				w.Fatalf("the machine is refused with %q, want %q", err, cmp.Or(machine, want))
			}
		}
		refused("in the first minute", "")
		w.shift.Advance(time.Hour)
		refused("no live control plane has the role provisioner", "")
		w.serves(fleet.RoleProvisioner, "p2")
		operations := w.serves(fleet.RoleOperations, provider)
		refused("the role operations serves provider p1", "cannot be asked to take it back")
		w.must(operations.Close(w.ctx, "its configuration changes"))
		refused("the role operations serves provider p1, or did within the last minute", "")
		prober := w.serves(fleet.RoleProber, provider)
		w.shift.Advance(time.Minute - margin)
		w.serves(fleet.RoleProvisioner, "p2")
		w.shift.Advance(2 * margin)
		refused("the role prober serves provider p1", "")
		w.must(prober.Close(w.ctx, "its configuration changes"))
		refused("the role prober serves provider p1, or did within the last minute", "")
		old := w.has(fleet.RoleUpdater)
		w.shift.Advance(time.Minute + margin)
		w.serves(fleet.RoleProvisioner, "p2")
		w.must(old.Extend(w.ctx))
		refused("the role updater does not say whether it serves provider p1", "")
		w.must(old.Close(w.ctx, "it is upgraded"))
		w.shift.Advance(time.Minute + margin)
		w.serves(fleet.RoleProvisioner, "p2")
		err := w.db.ForgetProvider(w.ctx, actor, provider, "sold")
		if w.wantKind(err, fleet.KindConflict); !strings.HasPrefix(err.Error(), "machines of provider p1 are known (1): `ironherd machine forget --provider p1 --reason WHY`") {
			w.Fatalf("refused with %q", err)
		}
	}},
	{"an unserved provider is forgotten with its machines, and begins anew", func(w *world) {
		var intent fleet.MachineID
		var token fleet.Token
		var epoch fleet.Epoch
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, newIntents("c2"), &opened)))
			intent, token = opened[0].Machine, opened[0].Token
			w.must(work.Note(w.ctx, bmdb.IntentCalled(intent)))
			epoch = work.Epoch
		})
		id := w.machines(nil, "c1")[0]
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		w.must(w.db.PauseProvider(w.ctx, actor, provider, "it is sold"))
		w.shift.Advance(time.Hour)
		w.serves(fleet.RoleProvisioner, "p2")
		for _, machine := range []fleet.MachineID{id, intent} {
			p := w.planned(fleet.VerbForget, machine)
			if m := p.Machines[0]; m.Refused != "" || !strings.Contains(m.Destroys, "no control plane serves p1, which may have it still") {
				w.Fatalf("the plan is %+v", m)
			}
			if o := w.confirmed(p.ID).Outcomes[0]; o.Outcome != bmdb.OutcomeDone {
				w.Fatalf("the outcome is %+v", o)
			}
		}
		closed, err := w.db.ClosedTokens(w.ctx, provider, []fleet.Token{token})
		if w.must(err); closed[token] != (bmdb.ClosedToken{Machine: intent, Forgotten: true}) {
			w.Fatalf("of what was forgotten, the closed token is %+v", closed)
		}
		w.must(w.db.ForgetProvider(w.ctx, actor, provider, "sold"))
		w.wantKind(w.db.ForgetProvider(w.ctx, actor, provider, "again"), fleet.KindNotFound)
		w.sound()
		// A control plane that was paused meanwhile wakes. It works at the others.
		if got := fmt.Sprint(w.serves(fleet.RoleUpdater, "p2", provider).Unregistered()); got != "[p1]" {
			w.Fatalf("unregistered are %s", got)
		}
		rows, err := w.db.ProviderHistory(w.ctx, provider, 1, true)
		if w.must(err); len(rows) != 1 || rows[0].Event != fleet.EventForgotten || rows[0].Detail != "sold" {
			w.Fatalf("its history ends with %+v", rows)
		}
		s, err := w.db.Summary(w.ctx)
		if w.must(err); s.Machines != 0 || s.OfRole(fleet.RoleProvisioner).Due+s.OfRole(fleet.RoleUpdater).Due != 2 {
			w.Fatalf("left are %+v", s)
		}
		w.must(w.db.RegisterProvider(w.ctx, provider, "other", 0))
		w.provisioning(func(work *bmdb.Work) {
			if work.Epoch <= epoch+1 {
				w.Fatalf("epoch %d comes after %d", work.Epoch, epoch)
			}
			v, err := w.db.ViewProvider(w.ctx, provider)
			if w.must(err); len(v.Machines)+len(v.Intents) != 0 {
				w.Fatalf("it has %+v", v)
			}
		})
	}},

	{"a role is missing when nobody had it for a minute", func(w *world) {
		id := w.machine("c1")
		missing := func(want ...fleet.Role) {
			w.Helper()
			if got := w.missing(id); fmt.Sprint(got) != fmt.Sprint(want) {
				w.Fatalf("missing are %v, want %v", got, want)
			}
		}
		all := fleet.Roles()[:8] // without the operator API
		missing()                // whoever starts together with this process needs a moment
		w.shift.Advance(time.Minute)
		missing(all...)
		for _, role := range all {
			if role != fleet.RoleAgentAPI {
				w.has(role)
			}
		}
		missing(fleet.RoleAgentAPI)
		w.listening()
		missing()
		// killed: until the deadline, and as long as a restart takes
		w.shift.Advance(interval + time.Minute - margin)
		missing()
		w.shift.Advance(2 * margin)
		missing(all[:7]...)
	}},
	{"a role whose control plane stops is missing a minute later", func(w *world) {
		id := w.machine("c1")
		w.shift.Advance(time.Hour)
		s := w.has(fleet.RoleJanitor)
		w.must(s.Close(w.ctx, "its process stops"))
		w.shift.Advance(time.Minute - margin)
		w.judgeMissing(id, fleet.RoleJanitor, false)
		heir := w.has(fleet.RoleJanitor) // a restart
		w.shift.Advance(2 * margin)
		w.judgeMissing(id, fleet.RoleJanitor, false)
		w.must(heir.Close(w.ctx, "its process stops"))
		w.shift.Advance(time.Minute + margin)
		w.judgeMissing(id, fleet.RoleJanitor, true)
	}},
	{"a session that is ended late counts until its deadline", func(w *world) {
		id := w.machine("c1")
		w.shift.Advance(time.Hour)
		w.has(fleet.RoleRecoverer)
		w.shift.Advance(time.Hour)
		_, err := w.db.CollectSessions(w.ctx)
		w.must(err)
		w.judgeMissing(id, fleet.RoleRecoverer, true)
	}},
	{"a listener that agents do not get through to has its role", func(w *world) {
		id := w.machine("c1")
		w.must(w.db.ListenerAlive(w.ctx, time.Second, 30*time.Second))
		w.shift.Advance(time.Hour)
		w.judgeMissing(id, fleet.RoleAgentAPI, true)
		w.must(w.db.ListenerFull(w.ctx, 4*time.Minute))
		w.judgeMissing(id, fleet.RoleAgentAPI, false)
		w.shift.Advance(5*time.Minute - margin)
		w.judgeMissing(id, fleet.RoleAgentAPI, false)
		w.shift.Advance(2 * margin)
		w.judgeMissing(id, fleet.RoleAgentAPI, true)
	}},
	{"the summary names a role that is missing when it has something to do", func(w *world) {
		named := func(want ...fleet.Role) {
			w.Helper()
			s, err := w.db.Summary(w.ctx)
			if w.must(err); fmt.Sprint(s.Missing) != fmt.Sprint(want) {
				w.Fatalf("the summary names %v, want %v", s.Missing, want)
			}
		}
		w.shift.Advance(time.Hour)
		named(fleet.RoleProvisioner, fleet.RoleUpdater, fleet.RoleJanitor)
		w.machines(nil, "c1")
		named(fleet.RoleProvisioner, fleet.RoleInitializer, fleet.RoleUpdater, fleet.RoleJanitor)
		w.has(fleet.RoleProvisioner)
		w.has(fleet.RoleInitializer)
		w.has(fleet.RoleUpdater)
		w.has(fleet.RoleJanitor)
		named()
	}},
	{"what explains a machine knows which roles are missing", func(w *world) {
		id := w.machines(nil, "c1")[0]
		w.shift.Advance(time.Hour)
		w.has(fleet.RoleInitializer)
		if got := fmt.Sprint(w.missing(id)); got != "[provisioner updater recoverer operations prober janitor agent-api]" {
			w.Fatalf("missing are %s", got)
		}
	}},
}
