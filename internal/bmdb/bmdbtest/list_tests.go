package bmdbtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
)

var listTests = []test{
	{"pages by key, filtered", func(w *world) {
		ids := w.machines(nil, "c1", "c2", "c3", "c4", "c5")
		a := w.startAgent(ids[2])
		w.must(w.db.ListenerAlive(w.ctx, time.Hour, 30*time.Second))
		w.must(w.db.RecordSpoken(w.ctx, a, "b"))
		slices.Sort(ids)
		for _, f := range []bmdb.MachineFilter{{}, {Provider: provider}} {
			var got []fleet.MachineID
			f.Limit = 2
			for {
				page, err := w.db.ListMachines(w.ctx, f)
				w.must(err)
				for _, m := range page {
					got = append(got, m.ID)
					f.After = m.ID
				}
				if len(page) < 2 {
					break
				}
			}
			if !slices.Equal(got, ids) {
				w.Fatalf("pages %v, want %v", got, ids)
			}
		}
		page, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{States: []fleet.State{fleet.StateStarted}})
		w.must(err)
		if len(page) != 1 || page[0].ID != a.Machine || page[0].AgentVersion != "1.2.3" || page[0].LastSeenAt.IsZero() ||
			page[0].TakeoverGeneration != 1 || page[0].Address != "192.0.2.1" {
			w.Fatalf("page %+v", page)
		}
		page, err = w.db.ListMachines(w.ctx, bmdb.MachineFilter{Provider: "p9"})
		w.must(err)
		if len(page) != 0 {
			w.Fatalf("page %+v", page)
		}
	}},
	{"pages of locations and labels", func(w *world) {
		ids := w.machines(nil, "c1", "c2", "c3", "c4", "c5")
		racks := []string{"rack 4", "rack 5", "rack 4", "rack 6", "rack 4"}
		labels := [][]string{{"role=database", "zone=a"}, {"role=web"}, {"role=database", "zone=b"}, nil, {"role=database", "zone=a"}}
		w.provisioning(func(work *bmdb.Work) {
			for i, id := range ids {
				r := w.record(id)
				fact := *r.Provided
				fact.Location, fact.Labels = racks[i], labels[i]
				w.must(work.Note(w.ctx, bmdb.SetProvided(id, r.ProviderID, fact)))
			}
		})
		w.must(Quarantine(w.ctx, w.db, actor, ids[4], "kept"))
		for _, c := range []struct {
			f    bmdb.MachineFilter
			want []fleet.MachineID
		}{
			{bmdb.MachineFilter{Locations: []string{"rack 4"}}, []fleet.MachineID{ids[0], ids[2], ids[4]}},
			{bmdb.MachineFilter{Locations: []string{"rack 6", "rack 5", "rack 6"}}, []fleet.MachineID{ids[1], ids[3]}},
			{bmdb.MachineFilter{Locations: []string{"rack 4"}, Provider: provider, States: []fleet.State{fleet.StateProvided}}, []fleet.MachineID{ids[0], ids[2]}},
			{bmdb.MachineFilter{Locations: []string{"rack"}}, nil},
			{bmdb.MachineFilter{Locations: []string{"rack 4"}, Provider: "p9"}, nil},
			{bmdb.MachineFilter{Labels: []fleet.LabelSelector{"role"}}, []fleet.MachineID{ids[0], ids[1], ids[2], ids[4]}},
			{bmdb.MachineFilter{Labels: []fleet.LabelSelector{"role=database"}}, []fleet.MachineID{ids[0], ids[2], ids[4]}},
			{bmdb.MachineFilter{Labels: []fleet.LabelSelector{"zone=a", "role=database"}, States: []fleet.State{fleet.StateProvided}}, ids[:1]},
			{bmdb.MachineFilter{Labels: []fleet.LabelSelector{"zone=a"}, Locations: []string{"rack 5"}}, nil},
		} {
			slices.Sort(c.want)
			for _, c.f.Limit = range []int{1, 2, 100} {
				if got := idsOf(w.pages(c.f)); !slices.Equal(got, c.want) {
					w.Errorf("%+v: %v, want %v", c.f, got, c.want)
				}
			}
		}
	}},
	{"a location is found behind any number of others", func(w *world) {
		ids := make([]fleet.MachineID, 130) // more than are looked at in one statement
		for i := range ids {
			ids[i] = fleet.NewMachineID()
		}
		slices.Sort(ids)
		w.must(StockAt(w.ctx, w.db, "p7", ids, nil, func(n int) string { return []string{"here", "there"}[n/110] }))
		if got, want := idsOf(w.pages(bmdb.MachineFilter{Locations: []string{"there"}, Limit: 15})), ids[110:]; !slices.Equal(got, want) {
			w.Fatalf("%d machines: %v, want %v", len(got), got, want)
		}
	}},
	{"the summary counts", func(w *world) {
		w.machines(nil, "c1", "c2", "c3")
		s := w.session("a")
		works := w.claim(s, fleet.ProcessAgentStart, 2)
		w.must(works[0].Fail(w.ctx, bmdb.Failure{Cause: "x", Backoff: growing}))
		w.must(s.Extend(w.ctx)) // which tells what it has
		sum, err := w.db.Summary(w.ctx)
		w.must(err)
		if sum.Machines != 3 || sum.States[fleet.StateProvided] != 3 {
			w.Fatalf("summary %+v", sum)
		}
		for _, p := range sum.Processes {
			if p.Process == fleet.ProcessAgentStart && (p.Running != 1 || p.Due != 1 || p.BackingOff != 1 || p.OldestDue.IsZero()) {
				w.Fatalf("process %+v", p)
			}
		}
	}},
	{"what was held is not overdue for the time of the hold", func(w *world) {
		oldest := func() (due int, since time.Duration) {
			sum, err := w.db.Summary(w.ctx)
			w.must(err)
			p := sum.OfRole(fleet.RoleInitializer)
			return p.Due, sum.At.Sub(p.OldestDue)
		}
		id := w.machine("c1")
		w.must(BeginMaintenance(w.ctx, w.db, actor, id, nil, "new disks"))
		w.shift.Advance(7 * 24 * time.Hour)
		if due, _ := oldest(); due != 0 {
			w.Fatalf("%d are due while it lasts", due)
		}
		w.must(EndMaintenance(w.ctx, w.db, actor, id, "they are in"))
		w.shift.Advance(time.Minute)
		if due, since := oldest(); due != 1 || since > 2*time.Minute {
			w.Errorf("%d are due, for %v, a minute after its end", due, since)
		}
		w.shift.Advance(time.Hour)
		if due, since := oldest(); due != 1 || since < time.Hour {
			w.Errorf("%d are due, for %v, an hour later", due, since)
		}
	}},
	{"history is pruned, and what runs goes on", func(w *world) {
		id := w.machine("c1")
		s := w.session("a")
		work := w.claimOne(s, fleet.ProcessAgentStart)
		if n, err := w.db.PruneHistory(w.ctx, time.Hour, 1000); err != nil || n != 0 {
			w.Fatalf("pruned %d of what is young, %v", n, err)
		}
		w.shift.Advance(40 * 24 * time.Hour)
		w.must(s.Extend(w.ctx))
		if n, err := w.db.PruneHistory(w.ctx, time.Hour, 1000); err != nil || n != 0 {
			w.Fatalf("removed %d rows after a leap of the clock, %v", n, err)
		}
		if env, err := w.db.Environment(w.ctx); err != nil || !strings.Contains(env.Restored, "40 days after the database was last used") {
			w.Fatalf("evidence %q, %v", env.Restored, err)
		}
		w.must(w.db.AcceptRestore(w.ctx, actor))
		if n, err := w.db.PruneHistory(w.ctx, time.Hour, 1000); err != nil || n == 0 {
			w.Fatalf("pruned %d, %v", n, err)
		}
		if got := w.events(id); len(got) > 0 && !slices.Equal(got, []string{"started"}) {
			w.Fatalf("history %q", got)
		}
		w.must(work.Finish(w.ctx))
	}},
	{"a page by states is the page of all without the others, close to each other or far apart", func(w *world) {
		ids := w.fleetWithGaps(30)
		for i, id := range ids {
			if i%6 == 0 {
				w.must(Quarantine(w.ctx, w.db, actor, id, "kept"))
			}
		}
		a := w.startAgent(ids[1])
		w.must(w.db.RecordSpoken(w.ctx, a, "b"))
		all, err := w.db.ListMachines(w.ctx, bmdb.MachineFilter{Limit: 1000})
		w.must(err)
		if got := idsOf(all); !slices.Equal(got, ids) {
			w.Fatalf("all are %v, want %v", got, ids)
		}
		for _, m := range all {
			r := w.record(m.ID)
			if m.ProviderID != r.ProviderID || !m.CreatedAt.Equal(r.CreatedAt) || m.Hostname != r.Provided.Hostname ||
				m.Location != r.Provided.Location || !slices.Equal(m.Labels, r.Provided.Labels) || (m.InstallGeneration != 0) != (r.InstallRequest != nil) {
				w.Fatalf("the page says %+v of %+v", m, r)
			}
		}
		for _, states := range [][]fleet.State{
			{fleet.StateQuarantined},
			{fleet.StateProvided},
			{fleet.StateStarted},
			{fleet.StateQuarantined, fleet.StateStarted},
			{fleet.StateQuarantined, fleet.StateProvided, fleet.StateStarted},
			{fleet.StateProvided, fleet.StateProvided},
			{fleet.StateSilent},
		} {
			want := slices.DeleteFunc(slices.Clone(all), func(m bmdb.MachineRow) bool { return !slices.Contains(states, m.State) })
			for _, limit := range []int{1, 2, 7, 25, 30, 31} {
				for _, from := range []fleet.ProviderName{"", provider} {
					if got := w.pages(bmdb.MachineFilter{Provider: from, States: states, Limit: limit}); !reflect.DeepEqual(got, want) {
						w.Fatalf("%v in pages of %d: %v, want %v", states, limit, idsOf(got), idsOf(want))
					}
				}
			}
		}
	}},
	{"what is due or backing off is counted up to a bound, each process for itself", func(w *world) {
		const most = bmdb.CountedAtMost
		hosts := w.machines(nil, "h1", "h2", "h3", "h4")
		asked, _ := w.unseen(sshWatched)
		w.probe(w.sessionFor("prober", time.Hour), 0, true)
		now := w.now()
		var come []statement.InsertAgendaParams
		var gone []statement.DeleteAgendaParams
		var backoffs []statement.PutBackoffParams
		var over []statement.DeleteBackoffParams
		process := string(fleet.ProcessRecovery)
		for i := range most + 5 {
			subject, dueAt := fmt.Sprintf("due-%06d", i), now.Add(-time.Duration(most+5-i)*time.Second).UnixMicro()
			come = append(come, statement.InsertAgendaParams{Process: process, DueAt: dueAt, Subject: subject, Provider: string(provider)})
			gone = append(gone, statement.DeleteAgendaParams{Process: process, DueAt: dueAt, Subject: subject})
			backoffs = append(backoffs, statement.PutBackoffParams{
				Subject: subject, Process: process, NotBefore: now.Add(time.Hour).UnixMicro(), Lasts: 1, Cause: "x", Failures: 1,
			})
			over = append(over, statement.DeleteBackoffParams{Subject: subject, Process: process})
		}
		// in batches, as everything writes: a join of ten thousand rows with a table of as many is
		// quadratic on an engine that has no statistics of it yet
		for batch := range slices.Chunk(come, 500) {
			w.write(func(ctx context.Context, q statement.Many) error { return q.MoveAgenda(ctx, nil, batch) })
		}
		for batch := range slices.Chunk(backoffs, 500) {
			w.write(func(ctx context.Context, q statement.Many) error { return q.PutBackoffs(ctx, batch) })
		}
		other := otherBackoffs(now, asked.Machine, hosts)
		w.write(func(ctx context.Context, q statement.Many) error { return q.PutBackoffs(ctx, other) })
		w.must(w.faults.Engine.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO host_key (machine, at, pinned, refused) VALUES ($1, 1, 'A', 'C')", string(hosts[1]))
			return err
		}))
		sum, err := w.db.Summary(w.ctx)
		w.must(err)
		backing := map[fleet.Process]int{fleet.ProcessRecovery: most, fleet.ProcessAgentStart: 3, fleet.ProcessProbe: 1}
		for _, p := range sum.Processes {
			first := time.UnixMicro(come[0].DueAt)
			if p.Process == fleet.ProcessRecovery && (p.Due != most || !p.OldestDue.Equal(first)) {
				w.Errorf("%+v, want %d since %s", p, most, first)
			}
			if n := backing[p.Process]; p.BackingOff != n {
				w.Errorf("%s backs off on %d, want %d", p.Process, p.BackingOff, n)
			}
		}
		if sum.HostKeyRefused.N != 1 || sum.HostKeyRefused.First != hosts[1] || sum.LoginRefused.N != 2 || sum.LoginRefused.First != min(hosts[0], hosts[2]) ||
			sum.Unasked.N != 1 || sum.Unasked.First != asked.Machine || sum.UnaskedSince != time.UnixMicro(other[0].Since).UTC() {
			w.Errorf("%+v", sum)
		}
		w.must(w.shift.View(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			row, err := statement.New(tx).CountHostsRefusing(ctx, statement.CountHostsRefusingParams{
				Process: string(fleet.ProcessAgentStart), State: string(fleet.StateProvided), MaxRows: 1,
			})
			if row.N != 1 || row.First != string(sum.LoginRefused.First) {
				w.Errorf("with a limit of 1: %+v", row)
			}
			return err
		}))
		for _, b := range other {
			over = append(over, statement.DeleteBackoffParams{Subject: b.Subject, Process: b.Process})
		}
		// so that one less than the bound is left
		w.write(func(ctx context.Context, q statement.Many) error {
			return errors.Join(q.MoveAgenda(ctx, gone[most-1:], nil), q.DeleteBackoffs(ctx, over[most-1:]))
		})
		sum, err = w.db.Summary(w.ctx)
		w.must(err)
		for _, p := range sum.Processes {
			if p.Process == fleet.ProcessRecovery && (p.Due != most-1 || p.BackingOff != most-1) {
				w.Fatalf("%+v, want %d", p, most-1)
			}
		}
		for batch := range slices.Chunk(gone, 500) {
			w.write(func(ctx context.Context, q statement.Many) error { return q.MoveAgenda(ctx, batch, nil) })
		}
		for batch := range slices.Chunk(over, 500) {
			w.write(func(ctx context.Context, q statement.Many) error { return q.DeleteBackoffs(ctx, batch) })
		}
	}},
	{"who is in a state for longest", func(w *world) {
		ids := w.machines(nil, "c1", "c2", "c3")
		began, err := w.db.OldestByState(w.ctx)
		w.must(err)
		w.shift.Advance(time.Hour)
		w.must(Quarantine(w.ctx, w.db, actor, ids[0], "x"))
		w.shift.Advance(time.Hour)
		w.must(Quarantine(w.ctx, w.db, actor, ids[1], "x"))
		got, err := w.db.OldestByState(w.ctx)
		w.must(err)
		if len(began) != 1 || len(got) != 2 || got[fleet.StateProvided].Sub(began[fleet.StateProvided]).Abs() > time.Minute {
			w.Fatalf("first %v, then %v", began, got)
		}
		if lasts := w.now().Sub(got[fleet.StateQuarantined]); lasts < time.Hour || lasts > 90*time.Minute {
			w.Fatalf("quarantined for %s", lasts)
		}
		n, oldest, err := w.db.CountLate(w.ctx, fleet.StateQuarantined, w.now().Add(-30*time.Minute))
		if w.must(err); n != 1 || !oldest.Equal(got[fleet.StateQuarantined]) {
			w.Fatalf("%d in quarantine for half an hour, the first since %s", n, oldest)
		}
		if n, _, err = w.db.CountLate(w.ctx, fleet.StateQuarantined, oldest); err != nil || n != 0 {
			w.Fatalf("%d in quarantine before the first, %v", n, err)
		}
		now, rows := w.now(), make([]statement.PutStateParams, 1001)
		for i := range rows { // the last of them, by their IDs, is in it for longest
			rows[i] = statement.PutStateParams{
				Machine: fmt.Sprintf("m-%06d", i), Provider: string(provider), State: string(fleet.StateFailed), Reason: "x",
				Since: now.Add(-time.Duration(i) * time.Minute).UnixMicro(),
			}
		}
		w.write(func(ctx context.Context, q statement.Many) error { return q.PutStates(ctx, rows) })
		got, err = w.db.OldestByState(w.ctx)
		w.must(err)
		if want := time.UnixMicro(rows[len(rows)-1].Since); !got[fleet.StateFailed].Equal(want) {
			w.Fatalf("failed since %s, want %s", got[fleet.StateFailed], want)
		}
		w.must(w.faults.Engine.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM machine_state WHERE machine LIKE 'm-%'")
			return err
		}))
	}},
	{"who is in a state for longest is one question, however many providers there are", func(w *world) {
		const providers = 7
		now := w.now()
		var rows []statement.PutStateParams
		for i := range providers {
			name := fleet.ProviderName(fmt.Sprintf("q%d", i))
			w.must(w.db.RegisterProvider(w.ctx, name, "test", 0))
			if i == 3 {
				continue // has no machines
			}
			for j, state := range []fleet.State{fleet.StateProvided, fleet.StateFailed, fleet.StateBooting, fleet.StateInstalled}[:i%4+1] {
				for k := range 3 {
					lasts := time.Duration(10*j+i%6+k) * time.Hour
					rows = append(rows, statement.PutStateParams{
						Machine: fmt.Sprintf("m-%d-%d-%d", i, j, k), Provider: string(name), State: string(state), Reason: "x", Since: now.Add(-lasts).UnixMicro(),
					})
				}
			}
		}
		w.write(func(ctx context.Context, q statement.Many) error { return q.PutStates(ctx, rows) })
		want := make(map[fleet.State]time.Time)
		late, first := 0, now
		for _, r := range rows {
			state, since := fleet.State(r.State), time.UnixMicro(r.Since).UTC()
			if oldest, is := want[state]; !is || since.Before(oldest) {
				want[state] = since
			}
			if state == fleet.StateFailed && since.Before(now.Add(-12*time.Hour)) {
				late++
				first = slices.MinFunc([]time.Time{first, since}, time.Time.Compare)
			}
		}
		if cost := w.cost("time in state", func() {
			got, err := w.db.OldestByState(w.ctx)
			if w.must(err); !maps.Equal(got, want) {
				w.Errorf("the oldest are %v, want %v", got, want)
			}
		}); cost != 1 {
			w.Errorf("to find the oldest took %d statements", cost)
		}
		if cost := w.cost("count late machines", func() {
			n, oldest, err := w.db.CountLate(w.ctx, fleet.StateFailed, now.Add(-12*time.Hour))
			if w.must(err); n != late || late < 5 || !oldest.Equal(first) {
				w.Errorf("%d are late, the first since %s; want %d, %s", n, oldest, late, first)
			}
			if n, oldest, err = w.db.CountLate(w.ctx, fleet.StateOff, now); err != nil || n != 0 || !oldest.IsZero() {
				w.Errorf("%d are late where none is, since %s, %v", n, oldest, err)
			}
		}); cost != 2 {
			w.Errorf("two counts of late ones took %d statements", cost)
		}
		w.must(w.faults.Engine.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM machine_state WHERE machine LIKE 'm-%'")
			return err
		}))
	}},
	{"what happened at a provider is not crowded out by passes that finished", func(w *world) {
		w.must(w.db.PauseProvider(w.ctx, actor, provider, "the bill"))
		for range 3 {
			w.must(w.claimOne(w.session("updater"), fleet.ProcessUpdate).Finish(w.ctx))
			w.shift.Advance(time.Hour)
		}
		w.must(w.claimOne(w.session("updater"), fleet.ProcessUpdate).Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: growing}))
		w.shift.Advance(time.Hour)
		w.claimOne(w.session("updater"), fleet.ProcessUpdate)
		rows, err := w.db.ProviderHistory(w.ctx, provider, 3, true)
		w.must(err)
		var got []fleet.Event
		for _, r := range rows {
			got = append(got, r.Event)
		}
		if want := []fleet.Event{fleet.EventStarted, fleet.EventFailed, fleet.EventPaused}; !slices.Equal(got, want) {
			w.Fatalf("the events are %q, want %q", got, want)
		}
		if rows, err = w.db.ProviderHistory(w.ctx, provider, 3, false); err != nil || rows[2].Event != fleet.EventFinished {
			w.Fatalf("the history is %+v, %v", rows, err)
		}
	}},
}

// fleetWithGaps makes machines, some of which want an install, and between them machines that were
// wanted and refused, whose requests stay. It returns those that there are, in order.
func (w *world) fleetWithGaps(n int) []fleet.MachineID {
	w.Helper()
	var ids []fleet.MachineID
	w.provisioning(func(work *bmdb.Work) {
		var capacities []fleet.CapacityID
		for i := range n + n/5 {
			capacities = append(capacities, fleet.CapacityID(fmt.Sprintf("c%03d", i)))
		}
		wanted := newIntents(capacities...)
		for i := range wanted {
			if i%3 == 0 {
				wanted[i].Install = &fleet.InstallRequest{Actor: actor, Image: image}
			}
		}
		var opened []fleet.Intent
		w.must(work.Note(w.ctx, bmdb.OpenIntents(0, wanted, &opened)))
		for i, o := range opened {
			if i%6 == 3 {
				w.must(work.Note(w.ctx, bmdb.CloseIntentRejected(o.Machine, "no")))
				continue
			}
			w.must(work.Note(w.ctx, bmdb.CloseIntentProvided(o.Machine, fleet.ProviderID("id-"+o.Capacity),
				providedAs(fleet.ProviderStatusActive, o.Capacity))))
			ids = append(ids, o.Machine)
		}
	})
	slices.Sort(ids)
	return ids
}

// pages reads page after page.
func (w *world) pages(f bmdb.MachineFilter) []bmdb.MachineRow {
	w.Helper()
	all := []bmdb.MachineRow{}
	for {
		page, err := w.db.ListMachines(w.ctx, f)
		w.must(err)
		all = append(all, page...)
		if len(page) < f.Limit {
			return all
		}
		f.After = page[len(page)-1].ID
	}
}

// otherBackoffs are those of a system that cannot be asked whether it is up, and of hosts at which
// no agent can be started: three of them refuse us, and the backoff of the last is over.
func otherBackoffs(now time.Time, asked fleet.MachineID, hosts []fleet.MachineID) []statement.PutBackoffParams {
	hour := time.Hour.Microseconds()
	rows := []statement.PutBackoffParams{{
		Subject: string(asked), Process: string(fleet.ProcessProbe), NotBefore: now.UnixMicro() + hour, Since: now.UnixMicro() - 2*hour,
		Lasts: 1, Cause: "the jump host is down", Failures: 1,
	}}
	for _, id := range hosts {
		rows = append(rows, statement.PutBackoffParams{
			Subject: string(id), Process: string(fleet.ProcessAgentStart), NotBefore: now.UnixMicro() + hour, Since: now.UnixMicro() - hour,
			Lasts: 1, Cause: "it refuses our key", Failures: 1, Answered: 2,
		})
	}
	rows[2].Cause, rows[2].Answered = "another host key", 3
	rows[4].NotBefore, rows[4].Answered = now.UnixMicro()-hour, 1
	return rows
}

func idsOf(page []bmdb.MachineRow) []fleet.MachineID {
	ids := make([]fleet.MachineID, len(page))
	for i, m := range page {
		ids[i] = m.ID
	}
	return ids
}

// write writes rows that no protocol made.
func (w *world) write(fn func(ctx context.Context, q statement.Many) error) {
	w.Helper()
	w.must(w.shift.Update(w.ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, w.shift.Many(tx)) }))
}
