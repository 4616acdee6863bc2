package bmdbtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

var intentTests = []test{
	{"never more than max_machines, one per capacity", func(w *world) {
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			first := newIntents("c1", "c2", "c3")
			w.must(work.Note(w.ctx, bmdb.OpenIntents(2, first, &opened)))
			if len(opened) != 2 || opened[0].Capacity != "c1" || opened[1].Capacity != "c2" {
				w.Fatalf("opened %+v", opened)
			}
			w.must(work.Note(w.ctx, bmdb.OpenIntents(2, newIntents("c4"), &opened)))
			if len(opened) != 0 {
				w.Fatalf("opened %+v beyond the limit", opened)
			}
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, newIntents("c1", "c5"), &opened)))
			if len(opened) != 1 || opened[0].Capacity != "c5" {
				w.Fatalf("opened %+v: c1 has an open intent", opened)
			}
			w.must(work.Note(w.ctx, bmdb.IntentCalled(first[0].Machine)))
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(first[0].Machine, "d1", providedAs(fleet.ProviderStatusCreating, "c1"))))
			w.must(work.Note(w.ctx, bmdb.OpenIntents(3, newIntents("c6"), &opened)))
			if len(opened) != 0 {
				w.Fatalf("opened %+v: the machine counts when its intent is closed", opened)
			}
		})
	}},
	{"after a lost reply they are open, and not opened again", func(w *world) {
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			wanted := newIntents("c1", "c2")
			w.faults.LoseReply()
			if err := work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)); err == nil {
				w.Fatal("the reply was not lost")
			}
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, newIntents("c1", "c2"), &opened)))
			if i := w.record(wanted[0].Machine).Intent; len(opened) != 0 || i == nil || i.Token != wanted[0].Token {
				w.Fatalf("opened %+v, and there is %+v", opened, i)
			}
		})
	}},
	{"calls and rejections are counted, and an open call keeps it open", func(w *world) {
		wanted := newIntents("c1")
		id := wanted[0].Machine
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			w.wantKind(work.Note(w.ctx, bmdb.IntentAnswered(id, nil)), fleet.KindConflict)
			w.must(work.Note(w.ctx, bmdb.IntentCalled(id)))
			w.wantKind(work.Note(w.ctx, bmdb.CloseIntentRejected(id, "no")), fleet.KindConflict)
			w.must(work.Note(w.ctx, bmdb.IntentAnswered(id, nil)))
			w.must(work.Note(w.ctx, bmdb.IntentCalled(id)))
			i := w.record(id).Intent
			if i.Calls != 2 || i.Rejected != 1 || i.CalledAt == nil {
				w.Fatalf("intent %+v", i)
			}
			w.wantKind(work.Note(w.ctx, bmdb.CloseIntentRejected(id, "no")), fleet.KindConflict)
			w.must(work.Note(w.ctx, bmdb.IntentAnswered(id, nil)))
			w.must(work.Note(w.ctx, bmdb.CloseIntentRejected(id, "race lost")))
			w.wantKind(work.Note(w.ctx, bmdb.IntentCalled(id)), fleet.KindConflict)
		})
		_, err := w.db.Machine(w.ctx, id)
		w.wantKind(err, fleet.KindNotFound)
		w.wantEvents(id, "intent opened", "asked the provider", "the provider refused", "intent closed")
		v, err := w.db.ViewProvider(w.ctx, provider)
		w.must(err)
		closed, err := w.db.ClosedTokens(w.ctx, provider, []fleet.Token{wanted[0].Token, fleet.NewToken()})
		w.must(err)
		if len(v.Intents) != 0 || len(closed) != 1 || closed[wanted[0].Token].Machine != id {
			w.Fatalf("view %+v, closed %v", v, closed)
		}
	}},
	{"the last call without an answer is remembered, and nothing else closes the intent", func(w *world) {
		wanted := newIntents("c1")
		id := wanted[0].Machine
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			called := func() time.Time {
				w.Helper()
				w.must(work.Note(w.ctx, bmdb.IntentCalled(id)))
				return *w.record(id).Intent.CalledAt
			}
			first := called()
			w.shift.Advance(time.Second)
			lost := called()
			w.shift.Advance(time.Second)
			refused := called()
			if !lost.After(first) || !refused.After(lost) {
				w.Fatalf("called at %s, %s and %s", first, lost, refused)
			}
			w.must(work.Note(w.ctx, bmdb.IntentAnswered(id, &lost)))
			if i := w.record(id).Intent; i.Calls != 3 || i.Rejected != 1 || !i.CalledAt.Equal(lost) {
				w.Fatalf("intent %+v, want the call at %s", i, lost)
			}
			w.wantKind(work.Note(w.ctx, bmdb.CloseIntentRejected(id, "no")), fleet.KindConflict)
			w.has(fleet.RoleOperations)
			err := Forget(w.ctx, w.db, actor, id, "it hangs")
			if fleet.KindOf(err) != fleet.KindConflict || !strings.Contains(err.Error(), "is not created yet") || strings.Contains(err.Error(), "machine release") {
				w.Errorf("forget says %v", err)
			}
			w.must(work.Note(w.ctx, bmdb.CloseIntentNothingMade(id, "no, and nothing carries the token")))
			w.wantKind(work.Note(w.ctx, bmdb.CloseIntentNothingMade(id, "again")), fleet.KindConflict)
			_, err = w.db.Machine(w.ctx, id)
			w.wantKind(err, fleet.KindNotFound)
			w.must(work.Note(w.ctx, bmdb.AdoptToken(wanted[0].Token, "d1", "c1", providedAs(fleet.ProviderStatusActive, "c1"), bmdb.Configured{})))
		})
		if r := w.record(id); r.ProviderID != "d1" || r.Intent != nil {
			w.Fatalf("adopted %+v", r)
		}
	}},
	{"a closed token that surfaces is adopted under the same UUID", func(w *world) {
		wanted := newIntents("c1")
		wanted[0].Install = &fleet.InstallRequest{Image: image, Actor: actor}
		id, token := wanted[0].Machine, wanted[0].Token
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(id)))
			w.must(work.Note(w.ctx, bmdb.CloseIntentOtherOwner(id, "two lists agree")))
			w.must(work.Note(w.ctx, bmdb.AdoptToken(token, "d1", "c1", providedAs(fleet.ProviderStatusActive, "c1"), bmdb.Configured{})))
			w.must(work.Note(w.ctx, bmdb.AdoptToken(token, "d1", "c1", providedAs(fleet.ProviderStatusActive, "c1"), bmdb.Configured{})))
			w.wantKind(work.Note(w.ctx, bmdb.AdoptToken("ironherd-unknown", "d2", "c2", fleet.Provided{}, bmdb.Configured{})), fleet.KindNotFound)
		})
		r := w.record(id)
		if r.ProviderID != "d1" || r.Provided == nil || r.InstallRequest == nil {
			w.Fatalf("adopted %+v", r)
		}
		if w.state(id) != fleet.StateProvided {
			w.Fatalf("state %s", w.state(id))
		}
		w.wantEvents(id, "intent opened", "intent closed", "adopted")
	}},
	{"a closed token that surfaces is to run what is configured", func(w *world) {
		const by = "configuration of provider p1"
		first := fleet.InstallRequest{Actor: by, Image: fleet.Image{URL: "http://images.example/1", Digest: "sha256:1"}, RootDisk: fleet.DiskSelector{Erase: true}}
		second := fleet.InstallRequest{Actor: by, Image: fleet.Image{URL: "http://images.example/2", Digest: "sha256:2"}}
		persons := fleet.InstallRequest{Image: fleet.Image{URL: "http://images.example/3", Digest: "sha256:3"}}
		wanted := newIntents("changed", "removed", "added", "asked for", "called off", "opened since")
		for i := range wanted {
			wanted[i].Install = &first
		}
		wanted[2].Install = nil
		installs := []*fleet.InstallRequest{&second, nil, &second, &second, &second, &second}
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			_, err := w.db.RequestInstall(w.ctx, "ada", wanted[3].Machine, persons, false)
			w.must(err)
			_, err = CancelInstall(w.ctx, w.db, "ada", wanted[4].Machine, "not this one")
			w.must(err)
			for i, n := range wanted {
				read := w.now()
				if n.Capacity == "opened since" {
					read = read.Add(-time.Minute)
				}
				adopt := bmdb.AdoptToken(n.Token, fleet.ProviderID("d-"+n.Capacity), n.Capacity, providedAs(fleet.ProviderStatusActive, n.Capacity),
					bmdb.Configured{Actor: by, Install: installs[i], ReadAt: read})
				w.must(work.Note(w.ctx, bmdb.IntentCalled(n.Machine), bmdb.CloseIntentOtherOwner(n.Machine, "two lists agree")))
				w.must(work.Note(w.ctx, adopt))
			}
			// Its install may have begun by now.
			w.must(work.Note(w.ctx, bmdb.AdoptToken(wanted[0].Token, "d-changed", "changed", providedAs(fleet.ProviderStatusActive, "changed"),
				bmdb.Configured{Actor: by, Install: &first})))
		})
		for i, want := range []*fleet.InstallRequest{&second, nil, &second, &persons, &first, &first} {
			got := w.record(wanted[i].Machine).InstallRequest
			if (got == nil) != (want == nil) || got != nil && (got.Image != want.Image || got.RootDisk != want.RootDisk) {
				w.Errorf("%s: %+v, want %+v", wanted[i].Capacity, got, want)
			}
		}
	}},
	{"adopting closes an intent that is still open", func(w *world) {
		wanted := newIntents("c1")
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(wanted[0].Machine)))
			w.must(work.Note(w.ctx, bmdb.AdoptToken(wanted[0].Token, "d1", "c1", providedAs(fleet.ProviderStatusActive, "c1"), bmdb.Configured{})))
		})
		if r := w.record(wanted[0].Machine); r.Intent != nil || r.ProviderID != "d1" {
			w.Fatalf("adopted %+v", r)
		}
	}},
	{"an unknown machine is adopted by an operator's word", func(w *world) {
		id := fleet.NewMachineID()
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.AdoptEntry(id, "d7", "c7", providedAs(fleet.ProviderStatusActive, "c7"))))
			w.wantKind(work.Note(w.ctx, bmdb.AdoptEntry(fleet.NewMachineID(), "d7", "c7", providedAs(fleet.ProviderStatusActive, "c7"))),
				fleet.KindConflict)
		})
		if w.state(id) != fleet.StateProvided {
			w.Fatalf("state %s", w.state(id))
		}
	}},
	{"a machine of another provider is not adopted", func(w *world) {
		mine, wanted := w.machine("c1"), newIntents("c2")
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
		})
		w.must(w.db.RegisterProvider(w.ctx, elsewhere, "test", 0))
		w.must(w.db.RegisterProvider(w.ctx, "list", "another", 0))
		s := w.lasting("other")
		c, err := s.Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{elsewhere}, Limit: 1})
		w.must(err)
		unknown := bmdb.Discrepancy{Kind: fleet.DiscrepancyUnknownMachine, ProviderID: "id-c1", Evidence: "it is there"}
		w.must(c.Works[0].Note(w.ctx, bmdb.SetDiscrepancies([]bmdb.Discrepancy{unknown})))
		adopt := bmdb.AdoptEntry(fleet.NewMachineID(), "id-c1", "c1", providedAs(fleet.ProviderStatusActive, "c1"))
		entries := map[fleet.ProviderID][]fleet.Token{"id-c1": nil, "id-x": {fleet.NewToken()}, "id-c2": {wanted[0].Token}}
		found, err := w.db.Elsewhere(w.ctx, elsewhere, entries)
		w.must(err)
		if len(found) != 2 || found["id-c1"] != (bmdb.Elsewhere{Machine: mine, Provider: provider}) ||
			found["id-c2"] != (bmdb.Elsewhere{Machine: wanted[0].Machine, Provider: provider, ByToken: true}) {
			w.Fatalf("found %+v", found)
		}
		for _, name := range []fleet.ProviderName{provider, "list"} {
			if found, err = w.db.Elsewhere(w.ctx, name, entries); err != nil || len(found) != 0 {
				w.Fatalf("of %s: %+v, %v", name, found, err)
			}
		}
		w.wantKind(w.db.RequestAdoption(w.ctx, actor, elsewhere, "id-c1", false, "it is ours"), fleet.KindConflict)
		w.wantKind(c.Works[0].Note(w.ctx, adopt), fleet.KindConflict)
		w.provisioning(func(work *bmdb.Work) { // its provider has said that it does not have it
			w.must(work.Note(w.ctx, bmdb.SetProvided(mine, "id-c1", fleet.Provided{Status: fleet.ProviderStatusGone})))
		})
		w.must(w.db.RequestAdoption(w.ctx, actor, elsewhere, "id-c1", false, "it is ours"))
		w.must(c.Works[0].Note(w.ctx, adopt))
	}},
	{"a host with the address of another provider's machine is not taken in", func(w *world) {
		mine := w.machine("c1")
		w.must(w.db.RegisterProvider(w.ctx, elsewhere, "test", 0))
		c, err := w.lasting("other").Claim(w.ctx, bmdb.ClaimRequest{Process: fleet.ProcessProvision, Providers: []fleet.ProviderName{elsewhere}, Limit: 1})
		w.must(err)
		wanted, is := newIntents("n1", "n2"), providedAs(fleet.ProviderStatusActive, "n1")
		take := func(i int, apart ...fleet.MachineID) error {
			return c.Works[0].Note(w.ctx, bmdb.CloseIntentProvided(wanted[i].Machine, fleet.ProviderID(wanted[i].Capacity), is), bmdb.UnlessTaken(is.Address, apart))
		}
		shared := func(of fleet.ProviderName, want bool) {
			w.Helper()
			found, err := w.db.SharedAddresses(w.ctx, of)
			w.must(err)
			if len(found) > 1 || found[is.Address] != want {
				w.Errorf("%s shares %v", of, found)
			}
		}
		var opened []fleet.Intent
		w.must(c.Works[0].Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
		if err := take(0, fleet.NewMachineID()); !errors.Is(err, bmdb.ErrTaken) || !strings.Contains(err.Error(), string(mine)+" of provider "+string(provider)) {
			w.Fatalf("it was taken in: %v", err)
		}
		if r := w.record(wanted[0].Machine); r.Intent == nil || r.Provided != nil {
			w.Fatalf("recorded %+v", r)
		}
		shared(elsewhere, false)
		w.must(take(0, mine))
		shared(elsewhere, true)
		shared(provider, true)
		w.must(take(1, mine)) // the list itself says that its hosts are several
		w.provisioning(func(work *bmdb.Work) {
			gone := providedAs(fleet.ProviderStatusGone, "c1")
			w.must(work.Note(w.ctx, bmdb.SetProvided(mine, "id-c1", gone)))
		})
		shared(elsewhere, false)
	}},
	{"an intent closed twice in the same way", func(w *world) {
		wanted := newIntents("c1")
		id := wanted[0].Machine
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.IntentCalled(id)))
			for range 2 {
				w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(id, "d1", providedAs(fleet.ProviderStatusCreating, "c1"))))
			}
			w.wantKind(work.Note(w.ctx, bmdb.CloseIntentProvided(id, "d2", providedAs(fleet.ProviderStatusCreating, "c1"))), fleet.KindConflict)
		})
		if w.state(id) != fleet.StateProvisioning {
			w.Fatalf("state %s", w.state(id))
		}
	}},
	{"an open intent has the install that is configured when it is closed", func(w *world) {
		by := fleet.ConfigurationOf(provider)
		first := fleet.InstallRequest{Actor: by, Image: fleet.Image{URL: "http://images.example/1", Digest: "sha256:1"}, RootDisk: fleet.DiskSelector{Erase: true}}
		second := fleet.InstallRequest{Actor: by, Image: fleet.Image{URL: "http://images.example/2", Digest: "sha256:2"}, FirstBootData: []byte("two")}
		persons := fleet.InstallRequest{Image: fleet.Image{URL: "http://images.example/3", Digest: "sha256:3"}}
		wanted := newIntents("changed", "removed", "asked for", "called off", "made", "asked for alike", "added", "opened since", "opened since by the older one")
		for i := range wanted {
			wanted[i].Install = &first
		}
		wanted[6].Install = nil
		wanted[8].ConfiguredAt = w.now().Add(-time.Hour)
		id := func(i int) fleet.MachineID { return wanted[i].Machine }
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
			_, err := w.db.RequestInstall(w.ctx, "ada", id(2), persons, false)
			w.must(err)
			_, err = CancelInstall(w.ctx, w.db, "ada", id(3), "not this one")
			w.must(err)
			_, err = w.db.RequestInstall(w.ctx, "ada", id(5), first, false)
			w.must(err)
			read := w.now()
			for i, install := range []*fleet.InstallRequest{&second, nil, &second, &second, 5: nil, 6: &second, 7: &second, 8: &second} {
				if i == 4 {
					continue
				}
				since := read
				if i >= 7 {
					since = since.Add(-time.Minute)
				}
				w.must(work.Note(w.ctx, bmdb.IntentCalled(id(i)), bmdb.InstallAsConfigured(id(i), bmdb.Configured{Actor: by, Install: install, ReadAt: since}),
					bmdb.CloseIntentProvided(id(i), fleet.ProviderID("d-"+wanted[i].Capacity), providedAs(fleet.ProviderStatusActive, wanted[i].Capacity))))
			}
			made := bmdb.CloseIntentProvided(id(4), "d-made", providedAs(fleet.ProviderStatusActive, "made"))
			w.must(work.Note(w.ctx, bmdb.IntentCalled(id(4)), bmdb.InstallAsConfigured(id(4), bmdb.Configured{Actor: by, Install: &first, ReadAt: read}), made))
			// Its install may have begun by now.
			w.must(work.Note(w.ctx, bmdb.InstallAsConfigured(id(4), bmdb.Configured{Actor: by, Install: &second, ReadAt: read}), made))
		})
		w.wantNumber(1, "SELECT count(*) FROM history WHERE subject = $1 AND actor = 'ada'", string(id(5)))
		for i, want := range []*fleet.InstallRequest{&second, nil, &persons, &first, &first, &first, &second, &first, &second} {
			got := w.record(id(i)).InstallRequest
			if (got == nil) != (want == nil) || got != nil && (got.Image != want.Image || got.RootDisk != want.RootDisk) {
				w.Errorf("%s: %+v, want %+v", wanted[i].Capacity, got, want)
			}
		}
		if r := w.record(id(0)).InstallRequest; r.Generation != 1 || r.Actor != by {
			w.Errorf("%+v", r)
		}
	}},
	{"penalties end", func(w *world) {
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetPenalty("c1", time.Hour, "failed")))
			v, err := w.db.ViewProvider(w.ctx, provider)
			w.must(err)
			rows, err := w.db.Providers(w.ctx)
			w.must(err)
			if p := v.Penalties["c1"]; p.Cause != "failed" || p.Until.Sub(v.Now) > time.Hour || rows[0].Penalties != 1 {
				w.Fatalf("penalties %v, counted as %d", v.Penalties, rows[0].Penalties)
			}
			w.shift.Advance(time.Hour + time.Second)
			v, err = w.db.ViewProvider(w.ctx, provider)
			w.must(err)
			rows, err = w.db.Providers(w.ctx)
			w.must(err)
			if len(v.Penalties) != 0 || rows[0].Penalties != 0 {
				w.Fatalf("penalties %v, counted as %d", v.Penalties, rows[0].Penalties)
			}
		})
	}},
	{"discrepancies keep their age and clear themselves", func(w *world) {
		one := bmdb.Discrepancy{Kind: "unknown-machine", ProviderID: "x1", Evidence: "list of now", Remedy: "adopt"}
		two := bmdb.Discrepancy{Kind: "unknown-machine", ProviderID: "x2", Evidence: "list of now", Remedy: "adopt"}
		w.provisioning(func(work *bmdb.Work) {
			w.must(work.Note(w.ctx, bmdb.SetDiscrepancies([]bmdb.Discrepancy{one})))
			began := w.now()
			w.shift.Advance(time.Minute)
			one.Evidence = "a later list"
			w.must(work.Note(w.ctx, bmdb.SetDiscrepancies([]bmdb.Discrepancy{two, one})))
			list, err := w.db.Discrepancies(w.ctx, 0)
			w.must(err)
			if len(list) != 2 || list[0].Evidence != "a later list" || list[0].Since.After(began) || !list[1].Since.After(began) {
				w.Fatalf("discrepancies %+v", list)
			}
			w.must(work.Note(w.ctx, bmdb.SetDiscrepancies(nil)))
			list, err = w.db.Discrepancies(w.ctx, 0)
			w.must(err)
			if len(list) != 0 {
				w.Fatalf("discrepancies %+v", list)
			}
		})
		rows, err := w.db.ProviderHistory(w.ctx, provider, 100, false)
		w.must(err)
		if n := len(slices.DeleteFunc(rows, func(r bmdb.HistoryRow) bool { return r.Event != "discrepancy cleared" })); n != 2 {
			w.Fatalf("%d cleared in history", n)
		}
	}},
	{"many discrepancies are counted up to a bound, and listed as far as is asked", func(w *world) {
		w.must(w.db.RegisterProvider(w.ctx, provider, "test", 0))
		const most = bmdb.CountedAtMost
		w.must(w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			for i := range most + 5 {
				row := statement.PutDiscrepancyParams{Provider: string(provider), Kind: string(fleet.DiscrepancyUnknownMachine), ProviderID: fmt.Sprintf("x%06d", i)}
				if err := statement.New(tx).PutDiscrepancy(ctx, row); err != nil {
					return err
				}
			}
			return nil
		}))
		rows, err := w.db.Providers(w.ctx)
		w.must(err)
		sum, err := w.db.Summary(w.ctx)
		w.must(err)
		if len(rows) != 1 || rows[0].Discrepancies != most || sum.Discrepancies != most {
			w.Errorf("%+v, and %d in all, want %d", rows, sum.Discrepancies, most)
		}
		for limit, want := range map[int]int{100: 100, 0: most + 5} {
			list, err := w.db.Discrepancies(w.ctx, limit)
			w.must(err)
			if len(list) != want || list[99].ProviderID != "x000099" {
				w.Errorf("of at most %d: %d", limit, len(list))
			}
		}
	}},
	{"the details of a machine that is to be created say what stops that", func(w *world) {
		wanted := newIntents("c1")
		w.provisioning(func(work *bmdb.Work) {
			var opened []fleet.Intent
			w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened), bmdb.SetDiscrepancies([]bmdb.Discrepancy{{Kind: "unknown-machine", ProviderID: "x1"}})))
		})
		w.must(w.claimOne(w.session("provisioner"), fleet.ProcessProvision).Fail(w.ctx, bmdb.Failure{Cause: "401", Backoff: growing}))
		d, err := w.db.MachineDetails(w.ctx, wanted[0].Machine)
		w.must(err)
		if env := d.Environment; env.Discrepancies != 1 || env.PassFailed == nil || env.PassFailed.Cause != "401" {
			w.Fatalf("environment %+v", env)
		}
	}},
	{"a pass sees all of the provider and nothing of others", func(w *world) {
		w.must(w.db.RegisterProvider(w.ctx, "p2", "test", 0))
		var capacities []fleet.CapacityID
		for i := range 5 {
			capacities = append(capacities, fleet.CapacityID(fmt.Sprint("c", i)))
		}
		ids := w.machines(nil, capacities...)
		v, err := w.db.ViewProvider(w.ctx, provider)
		w.must(err)
		if len(v.Machines) != len(ids) || v.Machines[0].Provided == nil || v.Machines[0].ProviderID != "id-c0" {
			w.Fatalf("view %+v", v)
		}
		v, err = w.db.ViewProvider(w.ctx, "p2")
		w.must(err)
		if len(v.Machines) != 0 {
			w.Fatalf("view %+v", v)
		}
		_, err = w.db.ViewProvider(w.ctx, "p3")
		w.wantKind(err, fleet.KindNotFound)
	}},
}
