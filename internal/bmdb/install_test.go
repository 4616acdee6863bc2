package bmdb_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// again is an engine that undoes one transaction and runs it again, as after a serialization
// failure.
type again struct {
	bmdb.Engine
	// meanwhile is what somebody else does before the second run; nil: the next transaction is run
	// once.
	meanwhile func()
}

func (a *again) Update(ctx context.Context, fn func(ctx context.Context, tx bmdb.Tx) error) error {
	if meanwhile := a.meanwhile; meanwhile != nil {
		a.meanwhile = nil
		err := a.Engine.Update(ctx, func(ctx context.Context, tx bmdb.Tx) error { return errors.Join(fn(ctx, tx), errBroken) })
		if !errors.Is(err, errBroken) {
			return err
		}
		meanwhile()
	}
	return a.Engine.Update(ctx, fn)
}

// TestAnInstallThatIsHandedOutAgain: a transaction that hands out an install is undone and run
// again; meanwhile somebody has asked for another one. What is handed out is that one, as it is to
// be seen up.
func TestAnInstallThatIsHandedOutAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine := &again{Engine: open(t, filepath.Join(t.TempDir(), "bmdb"))}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, db)
	by := func(by fleet.SeenBy) fleet.InstallRequest {
		return fleet.InstallRequest{Image: fleet.Image{URL: "http://x/y"}, SeenUp: fleet.SeenUp{By: by}}
	}
	first := by(fleet.SeenByUnit)
	a := bmdbtest.Manage(t, db, 1, &first)[0]
	engine.meanwhile = func() {
		if _, err := db.RequestInstall(ctx, "op", a.Machine, by(fleet.SeenBySSH), false); err != nil {
			t.Error(err)
		}
	}
	o, err := db.HandOutInstall(ctx, a, 0, 0)
	if err != nil || o == nil || o.Request.SeenUp.By != fleet.SeenBySSH || o.HostKey == nil {
		t.Fatalf("handed out %+v, %v, want the newer request, with a host key", o, err)
	}
}
