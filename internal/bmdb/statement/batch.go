package statement

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// The statements of this file work on many rows at once, because a list is the one thing that the
// engines have no common type for. sqlc knows none of it. They are written for SQLite, where the
// rows are one argument, a JSON array of arrays, read by the function json_each and the operator
// ->>. What a database makes of that is a matter of its costs:
//   - SQLite, where a statement costs no round trip and JSON more than it saves, writes row by row:
//     see OneByOne. It reads with JSON.
//   - Everybody else has one array for each column, which costs the server no parsing.

// OneByOne is implemented by a DBTX that would rather run such a statement for each row, with the
// columns as arguments.
type OneByOne interface{ OneByOne() bool }

func (q *Queries) oneByOne() bool {
	o, ok := q.db.(OneByOne)
	return ok && o.OneByOne()
}

var (
	listOfRows = regexp.MustCompile(`\s+FROM json_each\(\$1\)( AS v)?`)
	column     = regexp.MustCompile(`(?:v\.)?value ->> (\d+)`)
	numbers    = regexp.MustCompile(`CAST\((?:v\.)?value ->> (\d+) AS BIGINT\)`)
	list       = regexp.MustCompile(`json_each\(\$1\)( AS v)?`)
	oneOf      = regexp.MustCompile(`IN \(SELECT value ->> 0 FROM json_each\(\$1\)\)`)
	singles    sync.Map
	columnars  sync.Map
)

// single turns a statement that writes many rows into the same for one row.
func single(query string) string {
	if known, ok := singles.Load(query); ok {
		return known.(string) //nolint:forcetypeassert // see Store
	}
	one := column.ReplaceAllStringFunc(listOfRows.ReplaceAllString(query, ""), func(c string) string {
		return "$" + strconv.Itoa(numberIn(c)+1)
	})
	singles.Store(query, one)
	return one
}

// numberIn returns the number after the operator.
func numberIn(column string) int {
	// the patterns say so
	n, _ := strconv.Atoi(strings.TrimRight(column[strings.Index(column, "->> ")+4:], " ASBIGNT)"))
	return n
}

// columnar is a statement that takes an array for each column.
type columnar struct {
	query string
	// number says of each column whether it is BIGINT, not TEXT.
	number []bool
}

// byColumn turns a statement on many rows into that.
func byColumn(query string) columnar {
	if known, ok := columnars.Load(query); ok {
		return known.(columnar) //nolint:forcetypeassert // see Store
	}
	c := columnar{query: oneOf.ReplaceAllLiteralString(query, "= ANY(CAST($1 AS TEXT[]))")}
	if c.query != query {
		c.number = []bool{false}
		columnars.Store(query, c)
		return c
	}
	use := func(number bool) func(string) string {
		return func(found string) string {
			n := numberIn(found)
			for len(c.number) <= n {
				c.number = append(c.number, false)
			}
			c.number[n] = c.number[n] || number
			return "v.c" + strconv.Itoa(n)
		}
	}
	text := column.ReplaceAllStringFunc(numbers.ReplaceAllStringFunc(query, use(true)), use(false))
	arrays, names := make([]string, len(c.number)), make([]string, len(c.number))
	for i, number := range c.number {
		arrays[i], names[i] = fmt.Sprintf("CAST($%d AS TEXT[])", i+1), "c"+strconv.Itoa(i)
		if number {
			arrays[i] = fmt.Sprintf("CAST($%d AS BIGINT[])", i+1)
		}
	}
	c.query = list.ReplaceAllLiteralString(text, fmt.Sprintf("unnest(%s) AS v (%s)", strings.Join(arrays, ", "), strings.Join(names, ", ")))
	columnars.Store(query, c)
	return c
}

// Rows are the rows of a statement on many, each with its columns in order: strings and whole
// numbers.
type Rows [][]any

// text encodes the rows. NUL, which not every engine can store, is replaced, as is what is not
// UTF-8.
func (r Rows) text() (string, error) {
	for _, row := range r {
		for i, column := range row {
			if s, ok := column.(string); ok && strings.IndexByte(s, 0) >= 0 {
				row[i] = strings.ReplaceAll(s, "\x00", "\uFFFD")
			}
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode rows: %w", err)
	}
	return string(text), nil
}

// arrays returns the columns of the rows, []string or []int64. What a database cannot store is
// replaced by its engine.
func (r Rows) arrays(number []bool) ([]any, error) {
	columns := make([]any, len(number))
	for i := range columns {
		var err error
		if number[i] {
			columns[i], err = arrayOf[int64](r, i)
		} else {
			columns[i], err = arrayOf[string](r, i)
		}
		if err != nil {
			return nil, err
		}
	}
	return columns, nil
}

func arrayOf[T string | int64](r Rows, column int) ([]T, error) {
	list := make([]T, len(r))
	for k, row := range r {
		value, ok := row[column].(T)
		if !ok {
			return nil, fmt.Errorf("column %d of a row is a %T", column, row[column])
		}
		list[k] = value
	}
	return list, nil
}

// Keys makes rows of one column.
func Keys[T ~string](keys []T) Rows {
	rows := make(Rows, len(keys))
	for i, k := range keys {
		rows[i] = []any{string(k)}
	}
	return rows
}

// execRows runs a statement that writes rows.
func (q *Queries) execRows(ctx context.Context, query string, rows Rows) error {
	if !q.oneByOne() {
		return q.execTogether(ctx, query, rows)
	}
	for _, row := range rows {
		if _, err := q.db.ExecContext(ctx, single(query), row...); err != nil {
			return err
		}
	}
	return nil
}

func (q *Queries) execTogether(ctx context.Context, query string, rows Rows) error {
	query, args, err := q.together(query, rows)
	if err != nil {
		return err
	}
	_, err = q.db.ExecContext(ctx, query, args...)
	return err
}

const insertHistories = `INSERT INTO history (subject, at, actor, process, lane, epoch, edge, event, detail, retry_at, session)
SELECT value ->> 0, CAST(value ->> 1 AS BIGINT), value ->> 2, value ->> 3, value ->> 4, CAST(value ->> 5 AS BIGINT), value ->> 6,
  value ->> 7, value ->> 8, CAST(value ->> 9 AS BIGINT), value ->> 10
FROM json_each($1)`

// InsertHistories appends rows (subject, at, actor, process, lane, epoch, edge, event, detail,
// retry_at, session) in their order.
func (q *Queries) InsertHistories(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, insertHistories, rows)
}

const putAgendas = `INSERT INTO agenda (subject, process, provider, due_at)
SELECT value ->> 0, value ->> 1, value ->> 2, CAST(value ->> 3 AS BIGINT) FROM json_each($1) WHERE true
ON CONFLICT (subject, process) DO UPDATE SET due_at = excluded.due_at`

// PutAgendas writes rows (subject, process, provider, due_at).
func (q *Queries) PutAgendas(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, putAgendas, rows)
}

const deleteAgendas = `DELETE FROM agenda WHERE (subject, process) IN (SELECT value ->> 0, value ->> 1 FROM json_each($1))`

// DeleteAgendas deletes rows (subject, process).
func (q *Queries) DeleteAgendas(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, deleteAgendas, rows)
}

const putStates = `INSERT INTO machine_state (machine, provider, state, reason, since, policy)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, CAST(value ->> 4 AS BIGINT), CAST(value ->> 5 AS BIGINT)
FROM json_each($1) WHERE true
ON CONFLICT (machine) DO UPDATE
SET state = excluded.state, reason = excluded.reason, since = excluded.since, policy = excluded.policy`

// PutStates writes rows (machine, provider, state, reason, since, policy).
func (q *Queries) PutStates(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, putStates, rows)
}

const insertStateCounts = `INSERT INTO state_count (provider, state, n)
SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT) FROM json_each($1)`

// InsertStateCounts appends rows (provider, state, n).
func (q *Queries) InsertStateCounts(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, insertStateCounts, rows)
}

const deleteStateCounts = `DELETE FROM state_count WHERE id IN (SELECT CAST(value ->> 0 AS BIGINT) FROM json_each($1))`

// DeleteStateCounts deletes rows (id).
func (q *Queries) DeleteStateCounts(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, deleteStateCounts, rows)
}

const deleteBackoffs = `DELETE FROM backoff WHERE (subject, process) IN (SELECT value ->> 0, value ->> 1 FROM json_each($1))`

// DeleteBackoffs deletes rows (subject, process).
func (q *Queries) DeleteBackoffs(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, deleteBackoffs, rows)
}

const putBackoffs = `INSERT INTO backoff (subject, process, not_before, lasts, cause, failures)
SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), CAST(value ->> 3 AS BIGINT), value ->> 4, CAST(value ->> 5 AS BIGINT)
FROM json_each($1) WHERE true
ON CONFLICT (subject, process) DO UPDATE
SET not_before = excluded.not_before, lasts = excluded.lasts, cause = excluded.cause, failures = excluded.failures`

// PutBackoffs writes rows (subject, process, not_before, lasts, cause, failures).
func (q *Queries) PutBackoffs(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, putBackoffs, rows)
}

// The lanes are found by their keys: session <> ” would invite PostgreSQL to go through all lanes
// that are held.
const freeLanes = `UPDATE lane SET session = '', process = '', note = ''
WHERE (subject, lane, epoch, revision) IN (SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), CAST(value ->> 3 AS BIGINT) FROM json_each($1))
  AND length(session) > 0
RETURNING subject`

// FreeLanes frees those of the rows (subject, lane, epoch, revision) that are held, and returns
// their subjects.
func (q *Queries) FreeLanes(ctx context.Context, rows Rows) (freed map[string]bool, err error) {
	freed = make(map[string]bool, len(rows))
	return freed, q.queryWrites(ctx, freeLanes, rows, func(r *sql.Rows) error {
		var subject string
		if err := r.Scan(&subject); err != nil {
			return err
		}
		freed[subject] = true
		return nil
	})
}

const stirLanes = `UPDATE lane SET revision = revision + 1
WHERE (subject, lane) IN (SELECT value ->> 0, value ->> 1 FROM json_each($1)) AND length(session) > 0`

// StirLanes makes the revision of each of the rows (subject, lane) that is held grow.
func (q *Queries) StirLanes(ctx context.Context, rows Rows) error {
	return q.execRows(ctx, stirLanes, rows)
}

const flushAllSeen = `UPDATE agent_last_seen SET last_at = CAST(v.value ->> 2 AS BIGINT) FROM json_each($1) AS v
WHERE machine = v.value ->> 0 AND takeover_generation = CAST(v.value ->> 1 AS BIGINT) AND last_at < CAST(v.value ->> 2 AS BIGINT)`

// FlushAllSeen writes repeated heartbeats, rows (machine, takeover generation, last_at) in the
// order of the machines: only of the generation that has spoken, and never backwards.
func (q *Queries) FlushAllSeen(ctx context.Context, rows Rows) error {
	return q.execTogether(ctx, flushAllSeen, rows)
}

const takeLanes = `INSERT INTO lane (subject, lane, epoch, session, process, since, note)
SELECT value ->> 0, value ->> 1, 1, value ->> 2, value ->> 3, CAST(value ->> 4 AS BIGINT), '' FROM json_each($1) WHERE true
ON CONFLICT (subject, lane) DO UPDATE
SET epoch = lane.epoch + 1, session = excluded.session, process = excluded.process, since = excluded.since, note = ''
RETURNING subject, epoch`

// TakeLanes takes rows (subject, lane, session, process, since) and returns the epoch of each
// subject.
func (q *Queries) TakeLanes(ctx context.Context, rows Rows) (map[string]int64, error) {
	epochs := make(map[string]int64, len(rows))
	taken := func(r *sql.Rows) error {
		var subject string
		var epoch int64
		if err := r.Scan(&subject, &epoch); err != nil {
			return err
		}
		epochs[subject] = epoch
		return nil
	}
	return epochs, q.queryWrites(ctx, takeLanes, rows, taken)
}

// queryWrites is execRows for statements that return something.
func (q *Queries) queryWrites(ctx context.Context, query string, rows Rows, each func(r *sql.Rows) error) error {
	if !q.oneByOne() {
		return q.queryRows(ctx, query, rows, each)
	}
	for _, row := range rows {
		if err := q.queryEach(ctx, single(query), row, each); err != nil {
			return err
		}
	}
	return nil
}

// getMachines is GetMachine for many. The list is where the machines are read, below all joins:
// PostgreSQL orders only eight tables at a time, and with the list in the last line it would join
// the whole fleet first.
var getMachines = strings.NewReplacer("FROM machine m", "FROM (SELECT * FROM machine WHERE id IN (SELECT value ->> 0 FROM json_each($1))) AS m",
	"WHERE m.id = $1", "").Replace(getMachine)

// GetMachines is GetMachine for rows (id); it returns those that there are.
func (q *Queries) GetMachines(ctx context.Context, rows Rows) (list []GetMachineRow, err error) {
	err = q.queryRows(ctx, getMachines, rows, func(r *sql.Rows) error {
		var m GetMachineRow
		if err := r.Scan(fields(&m)...); err != nil {
			return err
		}
		list = append(list, m)
		return nil
	})
	return list, err
}

const getAllBackoffs = `SELECT subject, process, not_before, lasts, cause, failures FROM backoff
WHERE subject IN (SELECT value ->> 0 FROM json_each($1))`

// GetAllBackoffs is GetBackoffs for rows (subject).
func (q *Queries) GetAllBackoffs(ctx context.Context, rows Rows) (list []Backoff, err error) {
	err = q.queryRows(ctx, getAllBackoffs, rows, func(r *sql.Rows) error {
		var b Backoff
		if err := r.Scan(&b.Subject, &b.Process, &b.NotBefore, &b.Lasts, &b.Cause, &b.Failures); err != nil {
			return err
		}
		list = append(list, b)
		return nil
	})
	return list, err
}

const getAllAgenda = `SELECT subject, process, provider, due_at FROM agenda WHERE subject IN (SELECT value ->> 0 FROM json_each($1))`

// GetAllAgenda is GetAgenda for rows (subject).
func (q *Queries) GetAllAgenda(ctx context.Context, rows Rows) (list []Agenda, err error) {
	err = q.queryRows(ctx, getAllAgenda, rows, func(r *sql.Rows) error {
		var a Agenda
		if err := r.Scan(&a.Subject, &a.Process, &a.Provider, &a.DueAt); err != nil {
			return err
		}
		list = append(list, a)
		return nil
	})
	return list, err
}

const checkEdges = `SELECT e.subject, e.lane, e.epoch, e.starts, e.ends FROM (
  SELECT h.subject, h.lane, h.epoch, CAST(sum(CASE WHEN h.edge = 'start' THEN 1 ELSE 0 END) AS BIGINT) AS starts,
    CAST(sum(CASE WHEN h.edge = 'end' THEN 1 ELSE 0 END) AS BIGINT) AS ends
  FROM json_each($1) AS v JOIN history h ON h.subject = v.value ->> 0
  WHERE h.edge <> '' GROUP BY h.subject, h.lane, h.epoch) AS e
LEFT JOIN lane l ON l.subject = e.subject AND l.lane = e.lane AND l.epoch = e.epoch AND l.session <> ''
WHERE e.ends > 1 OR e.starts > 1 OR e.ends = 0 AND l.epoch IS NULL OR e.ends = 1 AND l.epoch IS NOT NULL`

// EdgesOf is work whose starts and ends are not what they must be.
type EdgesOf struct {
	Subject string
	Lane    string
	Epoch   int64
	Starts  int64
	Ends    int64
}

// CheckEdges returns the work of rows (subject) that has not one start and, unless it runs, one
// end.
func (q *Queries) CheckEdges(ctx context.Context, rows Rows) (list []EdgesOf, err error) {
	err = q.queryRows(ctx, checkEdges, rows, func(r *sql.Rows) error {
		var e EdgesOf
		if err := r.Scan(fields(&e)...); err != nil {
			return err
		}
		list = append(list, e)
		return nil
	})
	return list, err
}

func (q *Queries) queryRows(ctx context.Context, query string, rows Rows, each func(r *sql.Rows) error) error {
	query, args, err := q.together(query, rows)
	if err != nil {
		return err
	}
	return q.queryEach(ctx, query, args, each)
}

// together returns a statement on many rows as this database runs it, and its arguments.
func (q *Queries) together(query string, rows Rows) (string, []any, error) {
	if q.oneByOne() {
		text, err := rows.text()
		return query, []any{text}, err
	}
	c := byColumn(query)
	args, err := rows.arrays(c.number)
	return c.query, args, err
}

func (q *Queries) queryEach(ctx context.Context, query string, args []any, each func(r *sql.Rows) error) error {
	found, err := q.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		if err := each(found); err != nil {
			return err
		}
	}
	return found.Err()
}

// fields returns pointers to the fields of a generated row, which are in the order of its columns.
func fields(row any) []any {
	v := reflect.ValueOf(row).Elem()
	pointers := make([]any, v.NumField())
	for i := range pointers {
		pointers[i] = v.Field(i).Addr().Interface()
	}
	return pointers
}
