package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
	"github.com/ironherd/ironherd/test/process"
)

const (
	before = "previous"
	after  = "new"
	// lease is how long the sessions of workers are.
	lease = 2 * time.Second
	// fleetSize machines, previousWorkers that are there first, newWorkers that join.
	fleetSize       = 24
	previousWorkers = 6
	newWorkers      = 3
	// atOnce is the concurrency limit of the new version, which the previous one does not know.
	atOnce = 4
	// tries bounds how often a migration is begun anew that could not lock a table in time.
	tries = 20
)

// scene is one database that is upgraded with workers at work.
type scene struct {
	u        *upgrade
	url, log string
	random   *rand.Rand
	machines []fleet.MachineID
	// old and young are the workers of the previous and of the new version that are there.
	old, young []*process.Process
	r          report
	// migrated is when the schema was, replaced when the last worker of the previous version was gone.
	begun, migrated, replaced time.Time
	// killed says of processes when they were.
	killed map[int]time.Time
}

// workers upgrades one database and judges what is left.
func (u *upgrade) workers(ctx context.Context, dir string, round uint64) (r report, err error) {
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	name, err := server.Create(ctx, "")
	if err != nil {
		return r, err
	}
	s := &scene{
		u: u, url: server.URL(name), log: filepath.Join(dir, "log"), killed: make(map[int]time.Time), r: newReport(),
		random: rand.New(rand.NewPCG(u.seed, round)), //nolint:gosec // to repeat
		begun:  time.Now(),
	}
	defer func() {
		for _, w := range append(s.old, s.young...) {
			w.Kill()
		}
	}()
	for _, act := range []func(context.Context) error{s.stock, s.work, s.migrate, s.join, s.replace, s.refuse, s.alone, s.stop, s.judge} {
		if err := act(ctx); err != nil {
			return s.r, err
		}
	}
	return s.r, nil
}

// stock lets the previous version make the database.
func (s *scene) stock(ctx context.Context) error {
	for range fleetSize {
		s.machines = append(s.machines, fleet.NewMachineID())
	}
	if err := os.WriteFile(s.log, nil, 0o600); err != nil {
		return err
	}
	if code, _, stderr := process.Run(ctx, s.u.before.worker, append([]string{"make"}, s.args(before)...)...); code != 0 {
		return fmt.Errorf("make the database: exit code %d: %s", code, stderr)
	}
	return nil
}

func (s *scene) args(version string) []string {
	ids := make([]string, len(s.machines))
	for i, id := range s.machines {
		ids[i] = string(id)
	}
	return []string{
		"-database", s.url, "-log", s.log, "-version", version, "-lease", lease.String(), "-machines", strings.Join(ids, ","),
	}
}

func (s *scene) start(ctx context.Context, version string) (*process.Process, error) {
	s.r.processes++
	path := s.u.after.worker
	if version == before {
		path = s.u.before.worker
	}
	return process.Start(ctx, path, append([]string{"work"}, s.args(version)...)...)
}

// work has the previous version at work for a while.
func (s *scene) work(ctx context.Context) error {
	for range previousWorkers {
		w, err := s.start(ctx, before)
		if err != nil {
			return err
		}
		s.old = append(s.old, w)
	}
	return s.pass(ctx, 2*time.Second)
}

// migrate is `ironherd db migrate` of the new version, and what its first process does when it
// starts: it sets its policy.
func (s *scene) migrate(ctx context.Context) error {
	begun := time.Now()
	for {
		s.r.migrations++
		err := s.with(ctx, true, func(*bmdb.DB) error { return nil })
		if err == nil {
			break
		}
		if fleet.KindOf(err) != fleet.KindTemporary || s.r.migrations >= tries {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	s.migrated = time.Now()
	s.r.migrating = s.migrated.Sub(begun)
	// the previous version is alone on the new schema
	if err := s.pass(ctx, 2*time.Second); err != nil {
		return err
	}
	return s.with(ctx, false, func(db *bmdb.DB) error {
		env, err := db.Environment(ctx)
		if err != nil {
			return err
		}
		p := env.Policy
		p.RecoveryAtOnce = atOnce
		_, err = db.SetPolicy(ctx, p)
		return err
	})
}

// with opens the database for a moment, by the new version.
func (s *scene) with(ctx context.Context, migrate bool, do func(db *bmdb.DB) error) (err error) {
	engine, err := postgres.Open(ctx, s.url, postgres.Options{Lease: lease})
	if err != nil {
		return err
	}
	if migrate {
		if err := engine.Migrate(ctx); err != nil {
			return errors.Join(err, engine.Close())
		}
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(db)
}

// join lets the new version work beside the previous one.
func (s *scene) join(ctx context.Context) error {
	for range newWorkers {
		w, err := s.start(ctx, after)
		if err != nil {
			return err
		}
		s.young = append(s.young, w)
	}
	return s.pass(ctx, time.Second)
}

// replace kills one of each version by turns, and starts a new one for it. The last two of the
// previous version are stopped in order.
func (s *scene) replace(ctx context.Context) error {
	for len(s.old) > 0 {
		if err := s.killNew(ctx); err != nil {
			return err
		}
		i := s.random.IntN(len(s.old))
		w := s.old[i]
		s.old = append(s.old[:i:i], s.old[i+1:]...)
		if len(s.old) >= 2 {
			s.kill(w)
		} else if err := stop(ctx, w); err != nil {
			return err
		}
		if len(s.old) == 0 {
			s.replaced = time.Now()
		}
		n, err := s.start(ctx, after)
		if err != nil {
			return err
		}
		s.young = append(s.young, n)
		if err := s.pass(ctx, lease/2+time.Duration(s.random.Int64N(int64(lease/2)))); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) killNew(ctx context.Context) (err error) {
	i := s.random.IntN(len(s.young))
	s.kill(s.young[i])
	if s.young[i], err = s.start(ctx, after); err != nil {
		return err
	}
	return s.pass(ctx, lease/2+time.Duration(s.random.Int64N(int64(lease/2))))
}

func (s *scene) kill(w *process.Process) {
	s.killed[w.Pid()] = time.Now()
	s.r.kills++
	w.Kill()
}

// refuse starts the previous version once more: it must refuse, in one sentence.
func (s *scene) refuse(ctx context.Context) error {
	code, _, stderr := process.Run(ctx, s.u.before.worker, append([]string{"work"}, s.args(before)...)...)
	return refused(code, stderr)
}

// refused judges how a program of the previous version ended that was started on the newer schema.
func refused(code int, stderr string) error {
	if code == 0 || !strings.Contains(stderr, "is newer than this binary knows") || strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
		return fmt.Errorf("the previous version was started on the new schema: exit code %d: %q", code, stderr)
	}
	return nil
}

// alone has the new version at work alone, until each machine has been claimed again, and then
// looks for findings while it is at work.
func (s *scene) alone(ctx context.Context) error {
	for range 60 {
		if err := s.pass(ctx, lease/4); err != nil {
			return err
		}
		lines, err := readLog(s.log)
		if err != nil {
			return err
		}
		if len(s.unclaimed(lines)) == 0 {
			break
		}
	}
	return s.with(ctx, false, func(db *bmdb.DB) error { return s.check(ctx, db) })
}

func (s *scene) check(ctx context.Context, db *bmdb.DB) error {
	findings, err := db.Check(ctx)
	for _, f := range findings {
		s.r.fault("the database is not sound: %s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
	return err
}

// pass lets time pass. Nobody may end by itself meanwhile.
func (s *scene) pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, w := range append(append([]*process.Process(nil), s.old...), s.young...) {
		select {
		case <-w.Ended():
			return fmt.Errorf("a worker ended by itself: %s", w.Stderr())
		default:
		}
	}
	return nil
}

// stop ends all workers in order.
func (s *scene) stop(ctx context.Context) error {
	for _, w := range s.young {
		if err := stop(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func stop(ctx context.Context, p *process.Process) error {
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return p.Stop(stopping)
}
