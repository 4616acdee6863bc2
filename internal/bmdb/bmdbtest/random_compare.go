package bmdbtest

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/lifecycle"
)

// compareAgendas holds every machine's agenda to lifecycle.
func (x *random) compareAgendas() {
	for _, id := range x.machines {
		d, err := x.db.MachineDetails(x.ctx, id)
		x.must(err)
		rows := make(map[fleet.Process]time.Time)
		abandoned := false // the lane is still written to a session that has ended
		x.must(x.shift.View(x.ctx, func(ctx context.Context, tx bmdb.Tx) error {
			q := statement.New(tx)
			m, err := q.GetMachine(ctx, string(id))
			if err != nil || len(m) == 0 {
				return err
			}
			abandoned = m[0].Session != "" && m[0].SessionEndedAt != 0
			for process, due := range map[fleet.Process]int64{
				fleet.ProcessAgentStart: m[0].DueAgentStart, fleet.ProcessInstall: m[0].DueInstall,
				fleet.ProcessOperation: m[0].DueOperation, fleet.ProcessRecovery: m[0].DueRecovery,
				fleet.ProcessProbe: m[0].DueProbe,
			} {
				n, err := q.CountAgenda(ctx, statement.CountAgendaParams{Process: string(process), DueAt: due, Subject: string(id)})
				if err != nil {
					return err
				}
				if (due != 0) != (n == 1) {
					x.Fatalf("machine %s: %s is due at %d and has %d entries", id, process, due, n)
				}
				if due != 0 {
					rows[process] = time.UnixMicro(due).UTC()
				}
			}
			return nil
		}))
		plan := lifecycle.Decide(d.Record, d.Environment, d.Now)
		for _, process := range fleet.MachineProcesses() {
			decision := plan.For(process)
			at, there := rows[process]
			switch {
			case abandoned && there && !at.After(d.Now):
				// It stands at the deadline of the dead, which is past: whoever comes across it takes over.
			case there != decision.Verdict.Scheduled():
				x.Fatalf("machine %s: %s is %s (%s), and it has a row: %t", id, process, decision.Verdict, decision.Reason, there)
			case there && at.After(decision.DueAt):
				x.Fatalf("machine %s: %s is due at %s (%s), its row says %s", id, process, decision.DueAt, decision.Reason, at)
			}
		}
	}
}

// compareLeases holds what the database says is held to the model.
func (x *random) compareLeases() {
	ended := x.ended()
	for _, id := range x.machines {
		hold, held := x.record(id).Holds[fleet.LaneHost]
		l := x.held[id]
		if l != nil && ended[l.Session] {
			l = nil
		}
		if held != (l != nil) || held && (hold.Epoch != l.Epoch || hold.Session != l.Session) {
			x.Fatalf("machine %s is held by %+v, want %+v", id, hold, l)
		}
	}
}
