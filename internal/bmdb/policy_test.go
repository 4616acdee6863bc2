package bmdb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// outrun is an engine in which somebody else has always taken the next number of the policy.
type outrun struct {
	bmdb.Engine
	on    bool
	tries int
}

func (o *outrun) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	return o.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return fn(ctx, outrunTx{tx, o}) })
}

type outrunTx struct {
	bmdb.Tx
	engine *outrun
}

func (x outrunTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if x.engine.on && strings.Contains(query, "INSERT INTO policy ") {
		x.engine.tries++
		return driver.RowsAffected(0), nil
	}
	return x.Tx.ExecContext(ctx, query, args...)
}

// TestAPolicyThatOthersKeepChanging fails for the moment: whoever writes it again may succeed, as a
// control plane that is started again.
func TestAPolicyThatOthersKeepChanging(t *testing.T) {
	t.Parallel()
	engine := &outrun{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
	db, err := bmdb.Open(t.Context(), engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, db)
	policy := fleet.DefaultPolicy()
	policy.SuspectLeast++
	engine.on = true
	if _, err := db.SetPolicy(t.Context(), policy); fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "try again") || engine.tries != 10 {
		t.Errorf("after %d tries: %v", engine.tries, err)
	}
	engine.on = false
	if set, err := db.SetPolicy(t.Context(), policy); err != nil || set.SuspectLeast != policy.SuspectLeast {
		t.Errorf("when they have stopped: %+v, %v", set, err)
	}
}
