package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
)

// A large fleet is made of a few machines that came to be through the protocol: every row of
// theirs, in every table, is copied with new identities. So it is what the protocol would have
// made, in minutes instead of hours; the database's own check judges it.

// column of a table.
type column struct{ table, name string }

// own are the columns that name a machine, unique those whose values must differ from machine to
// machine. entryInstants are the instants of entries in the agenda: an entry has its own, and the
// row of its machine repeats it.
var (
	own           = []string{"machine", "subject"}
	unique        = []string{"provider_id", "token", "capacity", "hostname"}
	entryInstants = map[string][]string{"agenda": {"due_at"}, "machine": {"due_agent_start", "due_install", "due_recovery"}}
)

// copyMachines copies the machines that the query selects until there are so many copies.
func copyMachines(ctx context.Context, conn *pgx.Conn, tag int, templates string, copies int) error {
	if copies <= 0 {
		return nil
	}
	// Version 7 of UUIDs, as the protocol mints them, at instants that follow each other, one tag
	// after the other.
	_, err := conn.Exec(ctx, fmt.Sprintf(`CREATE TEMP TABLE copy AS
		WITH t AS (SELECT id, row_number() OVER (ORDER BY id) - 1 AS i, count(*) OVER () AS n FROM (%[3]s) AS templates (id))
		SELECT t.id AS old, g AS number,
		  '%04[1]x' || lpad(to_hex(g / 65536), 4, '0') || '-' || lpad(to_hex(g %% 65536), 4, '0') || '-7000-8%03[2]x-' || lpad(to_hex(g), 12, '0') AS new
		FROM generate_series(1, %[4]d) AS g JOIN t ON t.i = g %% t.n`, 0x018f+tag, tag, templates, copies))
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "ANALYZE copy"); err != nil {
		return err
	}
	tables, err := tablesOf(ctx, conn)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if _, err := conn.Exec(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	_, err = conn.Exec(ctx, `UPDATE provider p SET machines = (SELECT count(*) FROM machine m WHERE m.provider = p.name)`)
	if err != nil {
		return err
	}
	if err := countStates(ctx, conn); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "DROP TABLE copy")
	return err
}

// tablesOf returns, for each table that has rows about machines, the statement that copies them.
func tablesOf(ctx context.Context, conn *pgx.Conn) (statements []string, err error) {
	rows, err := conn.Query(ctx, `SELECT c.table_name, c.column_name FROM information_schema.columns c
		JOIN pg_class k ON k.relname = c.table_name AND k.relnamespace = CAST(current_schema() AS REGNAMESPACE)
		WHERE c.table_schema = current_schema() AND NOT k.relispartition AND k.relkind IN ('r', 'p')
		  AND NOT (c.table_name = 'history' AND c.column_name = 'id')
		ORDER BY c.table_name, c.ordinal_position`)
	if err != nil {
		return nil, err
	}
	columns, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c column, err error) { return c, r.Scan(&c.table, &c.name) })
	if err != nil {
		return nil, err
	}
	for len(columns) > 0 {
		table := columns[0].table
		n := slices.IndexFunc(columns, func(c column) bool { return c.table != table })
		if n < 0 {
			n = len(columns)
		}
		if s := copyStatement(table, columns[:n]); s != "" {
			statements = append(statements, s)
		}
		columns = columns[n:]
	}
	return statements, nil
}

func copyStatement(table string, columns []column) string {
	key, names, values := "", make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i], values[i] = c.name, "t."+c.name
		switch {
		case slices.Contains(own, c.name), table == "machine" && c.name == "id":
			key, values[i] = c.name, "copy.new"
		case slices.Contains(entryInstants[table], c.name):
			// Spread over the second before, as if it had not been one instant that made them all. 0 says
			// that there is no entry.
			values[i] = fmt.Sprintf("CASE WHEN t.%[1]s = 0 THEN 0 ELSE t.%[1]s - CAST(copy.number AS BIGINT) * 7919 %% 1000003 END", c.name)
		case slices.Contains(unique, c.name):
			values[i] = fmt.Sprintf("CASE WHEN t.%[1]s = '' THEN '' ELSE t.%[1]s || '-' || substr(copy.new, 16) END", c.name)
		}
	}
	if key == "" {
		return ""
	}
	order := "copy.number"
	if table == "history" { // its rows are numbered as they come
		order += ", t.id"
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM copy JOIN %s t ON t.%s = copy.old ORDER BY %s", table,
		strings.Join(names, ", "), strings.Join(values, ", "), table, key, order)
}

// countStates makes the kept counts what the rows say.
func countStates(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "DELETE FROM state_count")
	if err == nil {
		_, err = conn.Exec(ctx, "INSERT INTO state_count (provider, state, n) SELECT provider, state, count(*) FROM machine_state GROUP BY provider, state")
	}
	return err
}

// fillHistory adds rows about the machines that there are, over the last thirty days.
func fillHistory(ctx context.Context, conn *pgx.Conn, rows int) error {
	const days = 30
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for i := 1; i <= days; i++ {
		from := today.AddDate(0, 0, -i)
		_, err := conn.Exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS history_p%s PARTITION OF history FOR VALUES FROM (%d) TO (%d)",
			from.Format("20060102"), from.UnixMicro(), from.AddDate(0, 0, 1).UnixMicro()))
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, fmt.Sprintf(`WITH m AS MATERIALIZED (SELECT id, row_number() OVER (ORDER BY id) - 1 AS i FROM machine)
			INSERT INTO history (subject, at, actor, process, epoch, started_at, why, event, detail, retry_at, session)
			SELECT m.id, %d + CAST(g AS BIGINT) * %d, 'agent', '', 0, 0, '', 'machine restarted', 'the agent came back with another boot ID', 0, ''
			FROM generate_series(0, %d) AS g JOIN m ON m.i = (CAST(g AS BIGINT) * 7919) %% (SELECT count(*) FROM m)`,
			from.UnixMicro(), 24*time.Hour.Microseconds()/int64(rows/days+1), rows/days-1))
		if err != nil {
			return err
		}
	}
	return nil
}

// settled are machines whose agents have spoken and reported, due for nothing for a while; due are
// machines due for an agent.
const (
	settledTemplates = "SELECT machine FROM fact_hardware"
	dueTemplates     = "SELECT m.id FROM machine m WHERE NOT EXISTS (SELECT 1 FROM fact_agent_started s WHERE s.machine = m.id)"
)

// large makes a fleet of that size, due of which are due for an agent, with so much history.
func (b *bench) large(ctx context.Context, size, due, history int) (_ *subject, err error) {
	s, err := b.server(ctx)
	if err != nil {
		return nil, err
	}
	name, err := s.Create(ctx, "")
	if err != nil {
		return nil, err
	}
	db, err := open(ctx, s.URL(name), postgres.Options{}, true)
	if err != nil {
		return nil, err
	}
	policy := fleet.DefaultPolicy()
	// else all that agents are in charge of is due for recovery soon, which nobody does here
	policy.SilentAfter = 1000 * time.Hour
	if _, err := db.SetPolicy(ctx, policy); err != nil {
		return nil, err
	}
	const templates = 20
	if err := makeFleet(ctx, db, 2*templates); err != nil {
		return nil, err
	}
	session, err := startSession(ctx, db, "initializer")
	if err != nil {
		return nil, err
	}
	if err := startAgents(ctx, db, session, templates); err != nil {
		return nil, err
	}
	if err := quarantineSome(ctx, db); err != nil {
		return nil, err
	}
	conn, err := s.connect(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	for i, part := range []struct {
		templates string
		copies    int
	}{{settledTemplates, size - due - templates}, {dueTemplates, due - templates}} {
		if err := copyMachines(ctx, conn, i, part.templates, part.copies); err != nil {
			return nil, err
		}
	}
	if err := fillHistory(ctx, conn, history); err != nil {
		return nil, err
	}
	b.say("a fleet of %d machines, %d due, and %d rows of history", size, due, history)
	if size <= b.check {
		if err := b.sound(ctx, db); err != nil {
			return nil, err
		}
		b.say("its check finds nothing")
	}
	return &subject{name: name, cycler: &cycler{db: db, session: session, batch: b.batch}}, nil
}

// startAgents puts agents in charge of some machines; they have spoken and reported.
func startAgents(ctx context.Context, db *bmdb.DB, session *bmdb.Session, n int) error {
	if err := db.ListenerAlive(ctx, 1000*time.Hour, time.Minute); err != nil {
		return err
	}
	c, err := session.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{provider}, Limit: n})
	if err != nil {
		return err
	}
	return each(c.Works, func(w *bmdb.Work) error {
		a := bmdb.AgentIdentity{Machine: w.Subject.Machine, PublicKey: []byte("key")}
		if err := w.Note(ctx, bmdb.MintTakeover(0, &a.TakeoverGeneration)); err != nil {
			return err
		}
		started := fleet.AgentStarted{TakeoverGeneration: a.TakeoverGeneration, PublicKey: a.PublicKey, AgentVersion: "1.0.0", BootID: "boot"}
		if err := w.Finish(ctx, bmdb.SetAgentStarted(started)); err != nil {
			return err
		}
		if err := db.RecordSpoken(ctx, a, "boot"); err != nil {
			return err
		}
		return db.RecordHardware(ctx, a, make([]byte, 2048), nil)
	})
}

// quarantineSome keeps every fifth of the machines with an agent away from all work.
func quarantineSome(ctx context.Context, db *bmdb.DB) error {
	settled, err := db.ListMachines(ctx, bmdb.MachineFilter{States: []fleet.State{fleet.StateAvailable}})
	if err != nil {
		return err
	}
	var kept []fleet.MachineID
	for i, m := range settled {
		if i%5 == 0 {
			kept = append(kept, m.ID)
		}
	}
	p, err := db.CreatePlan(ctx, "operator", bmdb.PlanRequest{Verb: fleet.VerbQuarantine, Machines: kept, Reason: "kept"})
	if err != nil {
		return err
	}
	if p, err = db.ConfirmPlan(ctx, "operator", p.ID); err != nil {
		return err
	}
	for _, o := range p.Outcomes {
		if o.Outcome != bmdb.OutcomeDone {
			return fmt.Errorf("quarantine a machine: %s: %s", o.Outcome, o.Detail)
		}
	}
	return nil
}
