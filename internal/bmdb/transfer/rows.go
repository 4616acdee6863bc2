package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// batch is how many rows are read, and written by one statement.
const batch = 500

// page is a reader of one table, in the order of its key.
type page struct {
	tx      bmdb.Tx
	table   table
	columns []string
	keys    []int // where in columns
	after   []any
}

// read opens the table.
func read(ctx context.Context, tx bmdb.Tx, t table) (*page, error) {
	rows, err := tx.QueryContext(ctx, "SELECT * FROM "+t.name+" WHERE 1 = 0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	p := &page{tx: tx, table: t}
	if p.columns, err = rows.Columns(); err != nil {
		return nil, err
	}
	slices.Sort(p.columns) // engines may have them in another order
	for _, k := range t.key {
		p.keys = append(p.keys, slices.Index(p.columns, k))
	}
	return p, rows.Err()
}

// next returns the next rows; none at the end.
func (p *page) next(ctx context.Context) (list [][]any, err error) {
	key := strings.Join(p.table.key, ", ")
	where := ""
	if p.after != nil {
		where = fmt.Sprintf("WHERE (%s) > (%s)", key, parameters(1, len(p.after)))
	}
	query := fmt.Sprintf("SELECT %s FROM %s %s ORDER BY %s LIMIT %d", strings.Join(p.columns, ", "), p.table.name, where, key, batch)
	rows, err := p.tx.QueryContext(ctx, query, p.after...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		row, into := make([]any, len(p.columns)), make([]any, len(p.columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		for i, v := range row {
			// No column is NULL: nil, typed or not, is how drivers read bytes of which there are none.
			if b, isBytes := v.([]byte); v == nil || isBytes && b == nil {
				row[i] = []byte{}
			}
		}
		list = append(list, row)
	}
	if len(list) > 0 {
		p.after = nil
		for _, k := range p.keys {
			p.after = append(p.after, list[len(list)-1][k])
		}
	}
	return list, rows.Err()
}

// parameters returns "$from, …".
func parameters(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", from+i)
	}
	return b.String()
}

// copyTable copies a table and returns what was read.
func (c *copying) copyTable(ctx context.Context, t table) (Table, error) {
	of, err := count(ctx, c.src, t.name)
	if err != nil {
		return Table{}, err
	}
	p, err := read(ctx, c.src, t)
	if err != nil {
		return Table{}, err
	}
	target, err := read(ctx, c.dst, t)
	if err != nil {
		return Table{}, err
	}
	if !slices.Equal(p.columns, target.columns) {
		return Table{}, fleet.Errorf(fleet.KindConflict, "the source has columns %v, the target %v", p.columns, target.columns)
	}
	copied := int64(0)
	return digest(ctx, p, t, func(rows [][]any) error {
		for _, row := range rows {
			c.report.Replaced += storable(row)
		}
		if err := c.insert(ctx, t.name, p.columns, rows); err != nil {
			return err
		}
		if copied += int64(len(rows)); c.options.Progress != nil {
			c.options.Progress(t.name, copied, of)
		}
		return nil
	})
}

func (c *copying) insert(ctx context.Context, name string, columns []string, rows [][]any) error {
	values := make([]string, len(rows))
	var args []any
	for i, row := range rows {
		values[i] = "(" + parameters(len(args)+1, len(row)) + ")"
		args = append(args, row...)
	}
	_, err := c.dst.ExecContext(ctx, "INSERT INTO "+name+" ("+strings.Join(columns, ", ")+") VALUES "+strings.Join(values, ", "), args...)
	return err
}

// storable replaces what not every engine can store as text, and returns how often.
func storable(row []any) (replaced int64) {
	for i, v := range row {
		if text, ok := v.(string); ok && bmdb.Storable(text) != text {
			row[i] = bmdb.Storable(text)
			replaced++
		}
	}
	return replaced
}

// readBack returns what there is in a table.
func readBack(ctx context.Context, tx bmdb.Tx, t table) (Table, error) {
	p, err := read(ctx, tx, t)
	if err != nil {
		return Table{}, err
	}
	return digest(ctx, p, t, func([][]any) error { return nil })
}

// digest returns what there is on the pages of a table. Each goes to do before.
func digest(ctx context.Context, p *page, t table, do func(rows [][]any) error) (Table, error) {
	for s := newSum(t.name); ; {
		rows, err := p.next(ctx)
		if err != nil {
			return Table{}, err
		}
		if len(rows) == 0 {
			return s.table(), nil
		}
		if err := do(rows); err != nil {
			return Table{}, err
		}
		for _, row := range rows {
			s.add(row)
		}
	}
}

// sum is the digest of rows in their order. Each value is told from its neighbours by its kind and
// length.
type sum struct {
	name string
	rows int64
	hash hash.Hash
}

func newSum(name string) *sum { return &sum{name: name, hash: sha256.New()} }

func (s *sum) add(row []any) {
	s.rows++
	for _, v := range row {
		var b []byte
		switch v := v.(type) {
		case int64:
			b = binary.BigEndian.AppendUint64([]byte{'i'}, uint64(v)) //nolint:gosec // its bits
		case string:
			b = append(binary.BigEndian.AppendUint64([]byte{'t'}, uint64(len(v))), v...)
		case []byte:
			b = append(binary.BigEndian.AppendUint64([]byte{'b'}, uint64(len(v))), v...)
		default:
			b = fmt.Appendf([]byte{'?'}, "%T", v)
		}
		s.hash.Write(b)
	}
}

func (s *sum) table() Table {
	return Table{Name: s.name, Rows: s.rows, Digest: hex.EncodeToString(s.hash.Sum(nil)[:8])}
}
