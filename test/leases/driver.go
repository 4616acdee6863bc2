package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
	"github.com/ironherd/ironherd/test/process"
)

// torture says what is done to the workers.
type torture struct {
	kills, stops int
	seed         uint64
	lease        time.Duration
	told         func(string)

	url, log string
	alone    bool // the engine allows one process at a time
	random   *rand.Rand
	begun    time.Time
	workers  []*process.Process
	started  int
	blows    []blow
	machines []fleet.MachineID
	gaps     []gap
}

// blow is what was done to one process.
type blow struct {
	pid int
	// at is when it was killed or stopped; until, when it went on. Zero: never.
	at, until time.Time
}

// gap is a time in which the driver, and so perhaps everybody, was kept from running.
type gap struct{ from, to time.Time }

// watch notes the gaps until ctx ends.
func (t *torture) watch(ctx context.Context) {
	const every = 10 * time.Millisecond
	last := time.Now().Round(0) // by the clock of the log
	for wait(ctx, every) == nil {
		now := time.Now().Round(0)
		if now.Sub(last) > 5*every {
			t.gaps = append(t.gaps, gap{last, now})
		}
		last = now
	}
}

const (
	// fleetSize is below what the workers have slots for, so that whatever is due is claimed at once.
	fleetSize = 12
	processes = 4
	provider  = fleet.ProviderName("p1")
)

// on runs everything on a new database of the engine.
func (t *torture) on(ctx context.Context, engine string) (r report, err error) {
	dir, err := os.MkdirTemp("", "ironherd-leases-")
	if err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w; the log is %s", err, t.log)
			return
		}
		err = os.RemoveAll(dir)
	}()
	switch engine {
	case "sqlite":
		t.url, t.alone = "sqlite:"+filepath.Join(dir, "bmdb"), true
	case "postgres":
		server, err := pgserver.Start(ctx, pgserver.Options{})
		if err != nil {
			return r, err
		}
		defer func() { _ = server.Close() }()
		name, err := server.Create(ctx, "")
		if err != nil {
			return r, err
		}
		t.url = server.URL(name)
	default:
		return r, fmt.Errorf("there is no engine %q", engine)
	}
	return t.run(ctx, dir)
}

// run is the whole of it, on an empty database.
func (t *torture) run(ctx context.Context, dir string) (r report, err error) {
	t.log, t.random, t.begun = filepath.Join(dir, "log"), rand.New(rand.NewPCG(t.seed, 3)), time.Now() //nolint:gosec // to repeat
	if err := os.WriteFile(t.log, nil, 0o600); err != nil {
		return r, err
	}
	if err := t.stock(ctx); err != nil {
		return r, err
	}
	watching, unwatch := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { t.watch(watching) })
	defer watcher.Wait()
	defer unwatch()
	n := processes
	if t.alone {
		n = 1
	}
	defer func() {
		for _, w := range t.workers {
			w.Kill()
		}
	}()
	for range n {
		w, err := t.start(ctx)
		if err != nil {
			return r, err
		}
		t.workers = append(t.workers, w)
	}
	if err := t.strike(ctx); err != nil {
		return r, err
	}
	// what was held is to be seen claimed again
	if err := t.awaitOpen(ctx); err != nil {
		return r, err
	}
	if err := wait(ctx, t.lease+2*time.Second); err != nil {
		return r, err
	}
	stopping, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, w := range t.workers {
		if err := w.Stop(stopping); err != nil {
			return r, err
		}
	}
	unwatch()
	watcher.Wait()
	return t.judge(ctx)
}

// stock makes the machines.
func (t *torture) stock(ctx context.Context) (err error) {
	db, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for range fleetSize {
		t.machines = append(t.machines, fleet.NewMachineID())
	}
	return bmdbtest.Stock(ctx, db, provider, t.machines, nil)
}

func (t *torture) open(ctx context.Context) (*bmdb.DB, error) {
	engine, err := openEngine(ctx, t.url, t.lease)
	if err != nil {
		return nil, err
	}
	if err := engine.Migrate(ctx); err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return bmdb.Open(ctx, engine, bmdb.Options{})
}

func (t *torture) start(ctx context.Context) (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t.started++
	args := []string{"work", "-database", t.url, "-log", t.log, "-name", fmt.Sprint("w", t.started), "-lease", t.lease.String()}
	// then others have ended its session when it comes back, and the database must refuse what it
	// commits
	if !t.alone {
		args = append(args, "-stubborn")
	}
	return process.Start(ctx, self, args...)
}

// awaitOpen returns when all workers have opened the database, which takes a busy host a while.
func (t *torture) awaitOpen(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a worker does not open the database"))
	defer cancel()
	for {
		lines, err := readLog(t.log)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(t.workers, func(w *process.Process) bool {
			return !slices.ContainsFunc(lines, func(l line) bool { return l.event == "open" && l.pid == w.Pid() })
		}) {
			return nil
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitClaim returns which worker claims next; -1 when none does within a lease.
func (t *torture) awaitClaim(ctx context.Context) (int, error) {
	file, err := os.Open(t.log)
	if err != nil {
		return -1, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return -1, err
	}
	for late := time.Now().Add(t.lease); time.Now().Before(late); {
		lines, err := io.ReadAll(file) // each line is written in one piece
		if err != nil {
			return -1, err
		}
		for line := range strings.Lines(string(lines)) {
			var at int64
			var pid int
			var event string
			if n, _ := fmt.Sscanf(line, "%d %d %s", &at, &pid, &event); n < 3 || event != "claim" {
				continue
			}
			if i := slices.IndexFunc(t.workers, func(w *process.Process) bool { return w.Pid() == pid }); i >= 0 {
				return i, nil
			}
		}
		if err := wait(ctx, 2*time.Millisecond); err != nil {
			return -1, err
		}
	}
	return -1, nil
}

// strike kills and stops, in a random order.
func (t *torture) strike(ctx context.Context) error {
	kills, stops := t.kills, t.stops
	for kills+stops > 0 {
		if err := wait(ctx, t.lease/40+time.Duration(t.random.Int64N(int64(t.lease/2)))); err != nil {
			return err
		}
		i := t.random.IntN(len(t.workers))
		if (kills+stops)%3 == 0 { // at a random moment, a busy host may hold nothing
			if holder, err := t.awaitClaim(ctx); err != nil {
				return err
			} else if holder >= 0 {
				i = holder
			}
		}
		w := t.workers[i]
		select {
		case <-w.Ended():
			return fmt.Errorf("a worker ended by itself: %s", w.Stderr())
		default:
		}
		b := blow{pid: w.Pid(), at: time.Now()}
		if t.random.IntN(kills+stops) < kills {
			kills--
			w.Kill()
			replacement, err := t.start(ctx)
			if err != nil {
				return err
			}
			t.workers[i] = replacement
		} else {
			stops--
			if err := t.stop(ctx, w, &b); err != nil {
				return err
			}
		}
		t.blows = append(t.blows, b)
		if n := len(t.blows); n%20 == 0 || kills+stops == 0 {
			t.told(fmt.Sprintf("%d of %d blows after %s", n, t.kills+t.stops, time.Since(t.begun).Round(time.Second)))
		}
	}
	return nil
}

// stop holds a process still until its session has ended, and lets it go on.
func (t *torture) stop(ctx context.Context, w *process.Process, b *blow) error {
	if err := w.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	b.at = time.Now()
	err := wait(ctx, t.lease+t.lease*3/4+time.Duration(t.random.Int64N(int64(t.lease/2))))
	b.until = time.Now()
	return errors.Join(err, w.Signal(syscall.SIGCONT))
}
