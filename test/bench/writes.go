package main

import (
	"context"
	"time"
)

// writes are what was written to the tables of a database.
type writes struct {
	inserted, updated, hot, deleted float64
	// entries are what the indexes of whole tables got: one for each new version of a row that is
	// no HOT update. partial are what partial indexes got at most, because the server does not count
	// which versions belong into them.
	entries, partial float64
}

func (w writes) minus(v writes) writes {
	return writes{
		w.inserted - v.inserted, w.updated - v.updated, w.hot - v.hot, w.deleted - v.deleted,
		w.entries - v.entries, w.partial - v.partial,
	}
}

// statisticsDelay is how long the server may keep to itself what an idle backend has counted:
// PGSTAT_IDLE_INTERVAL, ten seconds, and a margin.
const statisticsDelay = 11 * time.Second

// writes returns what was written to the tables of a database since it was made.
func (s *server) writes(ctx context.Context, database string) (w writes, err error) {
	conn, err := s.connect(ctx, database)
	if err != nil {
		return w, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return w, conn.QueryRow(ctx, `SELECT sum(n_tup_ins)::float8, sum(n_tup_upd)::float8, sum(n_tup_hot_upd)::float8, sum(n_tup_del)::float8,
			sum((n_tup_ins + n_tup_upd - n_tup_hot_upd) * whole)::float8, sum((n_tup_ins + n_tup_upd - n_tup_hot_upd) * partial)::float8
		FROM pg_stat_user_tables t CROSS JOIN LATERAL (
			SELECT count(*) FILTER (WHERE indpred IS NULL) AS whole, count(*) FILTER (WHERE indpred IS NOT NULL) AS partial
			FROM pg_index WHERE indrelid = t.relid) AS indexes`).
		Scan(&w.inserted, &w.updated, &w.hot, &w.deleted, &w.entries, &w.partial)
}
