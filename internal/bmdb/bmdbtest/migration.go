package bmdbtest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Migrations is what the test of an engine's migrations needs of it.
type Migrations struct {
	// Versions in their order.
	Versions []int64
	// UpTo and DownTo bring the schema to a version.
	UpTo, DownTo func(ctx context.Context, version int64) error
	DB           *sql.DB
	// Columns is a query for all columns that can be written: table, column, and a type that is BIGINT
	// or INTEGER, TEXT, or bytes.
	Columns string
	// Derived tables are filled by migrations; nothing is put into them.
	Derived []string
}

// KeepRows goes every version up, down to the one before, and up again, each time over rows of the
// version before, in every table and every column of it. No row of a table that the version before
// had may be lost or changed on the way up; nor on the way down, in what the version before had. In
// the end nothing is left.
func (m Migrations) KeepRows(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	must := func(err error, what string, version int64) {
		t.Helper()
		if err != nil {
			t.Fatalf("version %d: %s: %v", version, what, err)
		}
	}
	before := int64(0)
	for _, version := range m.Versions {
		filled, err := m.fill(ctx)
		must(err, "fill the version before", version)
		for _, way := range []struct {
			name string
			do   func() error
		}{
			{"up", func() error { return m.UpTo(ctx, version) }},
			{"down", func() error { return m.DownTo(ctx, before) }},
			{"up again", func() error { return m.UpTo(ctx, version) }},
		} {
			must(way.do(), way.name, version)
			for table, want := range filled {
				got, err := m.rows(ctx, table, want.columns)
				must(err, way.name+": read "+table, version)
				if got != want.text {
					t.Fatalf("version %d: the way %s changed %s:\n%s\nwas\n%s", version, way.name, table, got, want.text)
				}
			}
		}
		before = version
	}
	_, err := m.fill(ctx)
	must(err, "fill the last", before)
	for i := len(m.Versions) - 1; i >= 0; i-- {
		to := int64(0)
		if i > 0 {
			to = m.Versions[i-1]
		}
		must(m.DownTo(ctx, to), "down", m.Versions[i])
	}
	left, err := m.columns(ctx)
	must(err, "look what is left", 0)
	if len(left) > 0 {
		t.Fatalf("left after the way down: %v", left)
	}
}

// filled is what was put into a table.
type filled struct {
	columns []string
	text    string
}

const rowsPerTable = 3

// fill puts rows into every table, as many values as there are columns, all different, and returns
// what each table has then.
func (m Migrations) fill(ctx context.Context) (map[string]filled, error) {
	all, err := m.columns(ctx)
	if err != nil {
		return nil, err
	}
	tables := make(map[string]filled, len(all))
	for table, columns := range all {
		if slices.Contains(m.Derived, table) {
			continue
		}
		names := make([]string, len(columns))
		values := make([]string, len(columns))
		for i, c := range columns {
			names[i], values[i] = c.name, fmt.Sprintf("$%d", i+1)
		}
		if _, err := m.DB.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return nil, fmt.Errorf("empty %s: %w", table, err)
		}
		for n := range rowsPerTable {
			args := make([]any, len(columns))
			for i, c := range columns {
				args[i] = c.value(int64(1000*n + i + 1))
			}
			query := "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")"
			if _, err := m.DB.ExecContext(ctx, query, args...); err != nil {
				return nil, fmt.Errorf("fill %s: %w", table, err)
			}
		}
		text, err := m.rows(ctx, table, names)
		if err != nil {
			return nil, err
		}
		tables[table] = filled{names, text}
	}
	return tables, nil
}

type column struct{ name, kind string }

func (c column) value(n int64) any {
	switch strings.ToUpper(c.kind) {
	case "BIGINT", "INTEGER":
		return n
	case "TEXT":
		return fmt.Sprintf("%s %d", c.name, n)
	}
	return []byte{0, byte(n), 255}
}

func (m Migrations) columns(ctx context.Context) (map[string][]column, error) {
	rows, err := m.DB.QueryContext(ctx, m.Columns)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	all := make(map[string][]column)
	for rows.Next() {
		var table string
		var c column
		if err := rows.Scan(&table, &c.name, &c.kind); err != nil {
			return nil, err
		}
		all[table] = append(all[table], c)
	}
	return all, rows.Err()
}

// rows returns what is in these columns of a table, as text.
func (m Migrations) rows(ctx context.Context, table string, columns []string) (string, error) {
	list := strings.Join(columns, ", ")
	rows, err := m.DB.QueryContext(ctx, "SELECT "+list+" FROM "+table+" ORDER BY "+list)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	var text strings.Builder
	for rows.Next() {
		row, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "%v\n", row)
	}
	return text.String(), rows.Err()
}
