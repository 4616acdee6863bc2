package postgres

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestRowsAsArrays: each field is a column of its name, with an array of its type.
func TestRowsAsArrays(t *testing.T) {
	t.Parallel()
	type row struct {
		ID, ProviderID string
		LastAt         int64
		StartedBootID  string
	}
	if got, want := names[row](), "id, provider_id, last_at, started_boot_id"; got != want {
		t.Errorf("names are %s, want %s", got, want)
	}
	want := "unnest(CAST($4 AS TEXT[]), CAST($5 AS TEXT[]), CAST($6 AS BIGINT[]), CAST($7 AS TEXT[])) AS v (id, provider_id, last_at, started_boot_id)"
	if got := table[row](4); got != want {
		t.Errorf("the table is %s, want %s", got, want)
	}
	got := arrays([]row{{"a", "b", 1, "c"}, {"d", "e", 2, "f"}})
	if want := []any{[]string{"a", "d"}, []string{"b", "e"}, []int64{1, 2}, []string{"c", "f"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the arrays are %v, want %v", got, want)
	}
}

func migrateAt(ctx context.Context, url string) error {
	e, err := Open(ctx, url, Options{Silent: true, Lease: 2 * time.Minute})
	if err != nil {
		return err
	}
	return errors.Join(e.Migrate(ctx), e.Close())
}

// TestFieldsAreColumns: what statements on many rows read has a field for each column that there
// is, so that nobody changes a view and forgets them.
func TestFieldsAreColumns(t *testing.T) {
	t.Parallel()
	server := pgserver.Shared(t)
	e, err := Open(t.Context(), server.URL(server.Borrow(t, "migrated", migrateAt)), Options{Silent: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	for relation, want := range map[string]string{
		"machine_record": names[statement.MachineRecord](),
		"machine_line":   names[statement.MachineLine](),
		"backoff":        names[statement.Backoff](),
	} {
		var got string
		err := e.transactions.QueryRow(t.Context(), `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
			WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, relation).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s has the columns %s, want %s (%v)", relation, got, want, err)
		}
	}
}

// BenchmarkArrays encodes a hundred rows of the widest statement.
func BenchmarkArrays(b *testing.B) {
	rows := make([]statement.UpdateMachineParams, 100)
	for i := range rows {
		rows[i] = statement.UpdateMachineParams{ID: fmt.Sprint(i), Epoch: int64(i)}
	}
	for b.Loop() {
		arrays(rows)
	}
}
