package rehearsal

import (
	"context"
	"errors"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// errDead ends whatever a process does that has been killed.
var errDead = errors.New("the process is dead")

// errBroken is what a caller learns of a connection that broke: not whether its transaction was
// committed.
var errBroken = errors.New("the connection to the database broke")

// connection is the database as one controller reaches it: other processes have it open as well,
// and the connection may break. It is the engine of that controller's BMDB.
type connection struct {
	bmdb.Engine
	owner *controller
	told  func(map[bmdb.Entry]time.Time)
}

// Properties says that there are other processes, which tell each other what is due.
func (c *connection) Properties() bmdb.Properties { return bmdb.Properties{} }

// Schema is current: the world has made the database.
func (c *connection) Schema(context.Context) (have, want int64, err error) { return 1, 1, nil }

// Restored says that the database is none that was restored.
func (c *connection) Restored(context.Context) (string, error) { return "", nil }

// Close leaves the database open for the others.
func (c *connection) Close() error { return nil }

// Subscribe implements bmdb.Engine.
func (c *connection) Subscribe(receive func(map[bmdb.Entry]time.Time)) { c.told = receive }

// Notify reaches the other controllers a moment later.
func (c *connection) Notify(due map[bmdb.Entry]time.Time) {
	w := c.owner.world
	for _, other := range w.controllers {
		if other == c.owner || other.dead || other.connection.told == nil {
			continue
		}
		w.after(w.between("notify", time.Millisecond, 50*time.Millisecond), func() {
			if !other.dead {
				other.connection.told(due)
			}
		})
	}
}

// Update implements bmdb.Engine.
func (c *connection) Update(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return c.write(ctx, func() error { return c.Engine.Update(ctx, fn) })
}

// Extend implements bmdb.Engine.
func (c *connection) Extend(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return c.write(ctx, func() error { return c.Engine.Extend(ctx, fn) })
}

// View implements bmdb.Engine.
func (c *connection) View(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	return c.Engine.View(ctx, fn)
}

// Peek implements bmdb.Engine.
func (c *connection) Peek(ctx context.Context, fn func(context.Context, bmdb.Tx) error) error {
	return c.View(ctx, fn)
}

// usable takes a step, and returns why the connection cannot be used.
func (c *connection) usable(ctx context.Context) error {
	w := c.owner.world
	c.owner.step()
	switch {
	case c.owner.dead:
		return errDead
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.on(DatabaseOutage):
		return errBroken
	}
	return nil
}

// write runs a transaction. In the middle of an act it takes time, before and after: whoever else
// works then may be first, and the process may end between the commit and the answer.
func (c *connection) write(ctx context.Context, run func() error) error {
	w := c.owner.world
	c.pass()
	if err := c.usable(ctx); err != nil {
		return err
	}
	lost := w.hits(LostCommits, "transaction")
	if lost && w.chance("commit", 50) {
		return errBroken
	}
	err := run()
	c.pass()
	c.owner.step()
	switch {
	case c.owner.dead:
		return errDead
	case lost && err == nil:
		return errBroken
	}
	return err
}

// pass lets the time of half a round trip pass in an act. Claims, ends and extensions are one step:
// they hold locks of this process, for which another strand of it would wait.
func (c *connection) pass() {
	w := c.owner.world
	if st := w.current; st != nil && st.task != nil && st.task.acting {
		w.park(w.between("database", time.Millisecond, 20*time.Millisecond))
	}
}

var _ bmdb.Engine = (*connection)(nil)

// temporary is an error of a provider or a host that is expected to pass.
func temporary(format string, args ...any) error {
	return fleet.Errorf(fleet.KindTemporary, format, args...)
}
