package transfer

// table is one table of the schema.
type table struct {
	name string
	// key is the primary key, or what orders the rows like one.
	key []string
}

// copied are copied row by row, in this order.
var copied = []table{
	{"policy", []string{"number"}},
	{"listener", []string{"id"}}, // what agents were promised; nobody listens until somebody says so
	{"provider", []string{"name"}},
	{"machine", []string{"id"}},
	{"session", []string{"id"}},
	{"provider_lane", []string{"provider", "process"}},
	{"concurrency_limit", []string{"provider", "process"}},
	{"call_turn", []string{"call_limit"}},
	{"backoff", []string{"subject", "process"}},
	{"agenda", []string{"process", "due_at", "subject"}},
	{"machine_state", []string{"machine"}},
	{"intent", []string{"machine"}},
	{"token", []string{"token"}},
	{"fact_provided", []string{"machine"}},
	{"fact_agent_started", []string{"machine"}},
	{"fact_agent_seen", []string{"machine"}},
	{"agent_last_seen", []string{"machine"}},
	{"fact_hardware", []string{"machine"}},
	{"hardware_report", []string{"machine"}},
	{"install_request", []string{"machine"}},
	{"install_attempt", []string{"machine"}},
	{"install_deadline", []string{"machine"}},
	{"install_report", []string{"machine"}},
	{"installed", []string{"machine"}},
	{"probe", []string{"machine"}},
	{"quarantine", []string{"machine"}},
	{"maintenance", []string{"machine"}},
	{"install_cancel", []string{"machine"}},
	{"operation_request", []string{"machine"}},
	{"operation_attempt", []string{"machine"}},
	{"operation_report", []string{"machine"}},
	{"repair", []string{"machine"}},
	{"recovery_hold", []string{"id"}},
	{"known_silence", []string{"id"}},
	{"agent_authority", []string{"id"}},
	{"recovery_restart", []string{"machine", "at"}},
	{"adoption", []string{"provider", "provider_id"}},
	{"plan", []string{"id"}},
	{"host_key", []string{"machine"}},
	{"penalty", []string{"provider", "capacity"}},
	{"discrepancy", []string{"provider", "kind", "provider_id", "machine"}},
	{"history", []string{"subject", "id"}},
}

// derived are made anew from what was copied.
var derived = map[string]string{
	"state_count": "INSERT INTO state_count (provider, state, n) SELECT provider, state, count(*) FROM machine_state GROUP BY provider, state",
}

// own are each database's own: which one it is, and whether that is in doubt.
var own = []string{"database_mark", "restored"}

// afterwards is what an engine needs when rows came with numbers that it gives out itself.
var afterwards = map[string]string{
	"postgres": "SELECT setval('history_id', (SELECT COALESCE(max(id), 0) + 1 FROM history), false)",
}

// patience is what an engine must be told that ends transactions which are left open: each side
// waits for the other one.
var patience = map[string]string{
	"postgres": "SELECT set_config('idle_in_transaction_session_timeout', '0', true)",
}

// catalog lists the tables that there are, but for the partitions of others and for what keeps the
// schema's version.
var catalog = map[string]string{
	"sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'goose%'",
	"postgres": `SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
		AND NOT c.relispartition AND c.relname NOT LIKE 'goose%'`,
}
