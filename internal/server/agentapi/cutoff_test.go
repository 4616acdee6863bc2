package agentapi_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// distant is an engine that this process cannot reach while it is away, that does not answer it
// while it hangs, or of which no standby confirms what was written.
type distant struct {
	bmdb.Engine
	alone                    bool
	away, hangs, unconfirmed atomic.Bool
}

func (d *distant) Properties() bmdb.Properties { return bmdb.Properties{SingleProcess: d.alone} }

// reach fails while the database is out of reach.
func (d *distant) reach(ctx context.Context) error {
	if d.hangs.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if d.away.Load() {
		return fleet.Errorf(fleet.KindTemporary, "the database server cannot be reached")
	}
	return nil
}

func (d *distant) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if err := d.reach(ctx); err != nil {
		return err
	}
	return d.Engine.View(ctx, fn)
}

func (d *distant) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	err := d.reach(ctx)
	if err == nil {
		err = d.Engine.Update(ctx, fn)
	}
	if err == nil && d.unconfirmed.Load() {
		return fleet.Errorf(fleet.KindTemporary, "no standby has confirmed the commit")
	}
	return err
}

// TestAgentsOfAProcessThatIsCutOffCallAnother: a load balancer leads them back for as long as the
// port is open, and the process that the database hears takes them for silent.
func TestAgentsOfAProcessThatIsCutOffCallAnother(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		alone, hangs, unconfirmed bool
		lasts                     time.Duration
		closes                    bool
	}{
		"a failover":                {lasts: 50 * time.Second},
		"cut off":                   {lasts: 30 * time.Minute, closes: true},
		"it does not answer":        {lasts: 30 * time.Minute, hangs: true, closes: true},
		"no standby":                {lasts: 30 * time.Minute, unconfirmed: true, closes: true},
		"nobody else can serve":     {lasts: 30 * time.Minute, alone: true},
		"nobody else, and it hangs": {lasts: 30 * time.Minute, alone: true, hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := &distant{Engine: sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard}), alone: c.alone}
				h := newIdleFixture(t, engine, nil)
				log := &lines{}
				api := agentapi.New(h.db, h.config, agentapi.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Certificates: h.certificates})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var ended chan error
				var listener deserted
				serve := func() {
					ended, listener = make(chan error, 1), deserted{make(chan struct{})}
					go func() { ended <- api.Serve(ctx, listener) }()
				}
				open := func() bool {
					select {
					case <-listener.closed:
						return false
					default:
						return true
					}
				}
				serve()
				time.Sleep(10 * time.Minute)
				engine.away.Store(!c.hangs && !c.unconfirmed)
				engine.unconfirmed.Store(c.unconfirmed)
				engine.hangs.Store(c.hangs)
				time.Sleep(c.lasts)
				if len(ended) > 0 || open() == c.closes {
					t.Fatalf("after %s the port is open: %t, and %d have ended", c.lasts, open(), len(ended))
				}
				if n := log.with("cannot record that the agent API is up"); n > 40 {
					t.Errorf("%d lines of the log about an outage of %s", n, c.lasts)
				}
				if c.unconfirmed {
					if env, err := h.db.Environment(t.Context()); err != nil || !env.ListenerUpSince.IsZero() {
						t.Errorf("while the port is closed a listener is up since %s (%v)", env.ListenerUpSince, err)
					}
				}
				engine.away.Store(false)
				engine.hangs.Store(false)
				engine.unconfirmed.Store(false)
				time.Sleep(30 * time.Second) // what hangs is given up soon
				if c.closes {
					if err := <-ended; err == nil || !strings.Contains(err.Error(), "the database is within reach again") {
						t.Fatalf("it ended with %v", err)
					}
					serve()
					time.Sleep(time.Minute)
				}
				env, err := h.db.Environment(t.Context())
				h.must(err)
				if env.ListenerUpSince.IsZero() || !open() {
					t.Errorf("the port is open: %t, up since %s", open(), env.ListenerUpSince)
				}
				cancel()
				h.must(<-ended)
			})
		})
	}
}
