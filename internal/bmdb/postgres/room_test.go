package postgres_test

import (
	"errors"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/test/pgserver"
)

// TestAFullDisk: a server without room takes what needs none. Whoever has found none is told that
// nothing can be written until a table can grow.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	// in a database that no other test has had: what those leave dead is room
	s := pgserver.Shared(t)
	url := s.URL(s.Borrow(t, "room", migrate))
	p := join(t, url, postgres.Options{Silent: true})
	p.must(p.RegisterProvider(t.Context(), provider, "test", 0))
	run := func(statement string) {
		t.Helper()
		_, err := bmdb.Exec(t.Context(), p.shift, statement)
		p.must(err)
	}
	size := func() int {
		t.Helper()
		return query[int](t, url, "SELECT CAST(sum(pg_total_relation_size(relid)) AS BIGINT) FROM pg_partition_tree('history')")
	}
	run(`CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$`)
	run("CREATE TRIGGER no_space BEFORE INSERT ON history EXECUTE FUNCTION no_space()")
	p.must(p.CheckWritable(t.Context())) // nobody knows yet
	if err := p.HoldRecovery(t.Context(), "ada", nil, "a switch"); !errors.Is(err, bmdb.ErrFull) {
		t.Fatalf("stopped recovery without room for its history: %v", err)
	}
	for range 2 {
		if err := p.CheckWritable(t.Context()); !errors.Is(err, bmdb.ErrFull) || !errors.Is(err, bmdb.ErrUnavailable) {
			t.Errorf("a full disk: %v", err)
		}
	}
	run("DROP TRIGGER no_space ON history")
	run("DROP FUNCTION no_space()")
	before := size()
	p.must(p.CheckWritable(t.Context()))
	if grown := size() - before; grown < 16<<10 {
		t.Errorf("what needs room has made history grow by %d bytes", grown)
	}
	before = size()
	p.must(p.CheckWritable(t.Context()))
	if grown := size() - before; grown != 0 {
		t.Errorf("with room, the question for it has made history grow by %d bytes", grown)
	}
	if n := query[int](t, url, "SELECT count(*) FROM history WHERE subject = 'probe'"); n != 0 {
		t.Errorf("looking for room has left %d rows", n)
	}
}
