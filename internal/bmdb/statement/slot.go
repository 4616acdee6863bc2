package statement

import "context"

const insertSlots = `INSERT INTO storm_slot (process, provider, slot, subject, lane, epoch, policy)
SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), '', '', 0, 0 FROM json_each($1) WHERE true
ON CONFLICT (process, provider, slot) DO NOTHING`

// InsertSlots makes those of the rows (process, provider, slot) that there are none of.
func (q *Queries) InsertSlots(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, insertSlots, rows)
}

const putSlots = `INSERT INTO storm_slot (process, provider, slot, subject, lane, epoch, policy)
SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), value ->> 3, value ->> 4, CAST(value ->> 5 AS BIGINT), CAST(value ->> 6 AS BIGINT)
FROM json_each($1) WHERE true
ON CONFLICT (process, provider, slot) DO UPDATE
SET subject = excluded.subject, lane = excluded.lane, epoch = excluded.epoch, policy = excluded.policy`

// PutSlots writes rows (process, provider, slot, subject, lane, epoch, policy).
func (q *Queries) PutSlots(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, putSlots, rows)
}
