package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	// lease is how long the leases of the workers' sessions last.
	lease = 2 * time.Second
	// There are fleetSize machines, previousWorkers workers from the beginning, and newWorkers that
	// join later.
	fleetSize       = 24
	previousWorkers = 6
	newWorkers      = 3
	// atOnce is the concurrency limit of the new version, which the previous one does not know.
	atOnce = 4
	// visitedOfEach is how many machines of each provider people and agents visit. The others' leases
	// are ended by their holders alone, or by the holders' deaths.
	visitedOfEach = 4
	// tries bounds how often a migration or a check starts anew because of a lock that it did not get
	// in time.
	tries = 20
)

// scene is one database that is upgraded while workers use it.
type scene struct {
	u        *upgrade
	url, log string
	random   *rand.Rand
	machines []fleet.MachineID
	// previous and current are the workers of the previous and of the new version that run now.
	previous, current []*process.Process
	r                 report
	// begun is when the run began, migrated when the schema was migrated (or had been looked at),
	// replaced when the last worker of the previous version was gone.
	begun, migrated, replaced time.Time
	// killed is when each killed process was killed, by process ID.
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
		for _, w := range append(s.previous, s.current...) {
			w.Kill()
		}
	}()
	for _, act := range []func(context.Context) error{s.createDatabase, s.work, s.migrate, s.join, s.replace, s.again, s.workAlone, s.stop, s.judge} {
		if err := act(ctx); err != nil {
			return s.r, err
		}
	}
	return s.r, nil
}

// createDatabase has the previous version create the database.
func (s *scene) createDatabase(ctx context.Context) error {
	for range fleetSize {
		s.machines = append(s.machines, fleet.NewMachineID())
	}
	if err := os.WriteFile(s.log, nil, 0o600); err != nil {
		return err
	}
	if code, _, stderr := process.Run(ctx, s.u.before.worker, append([]string{"make"}, s.args(before, s.machines)...)...); code != 0 {
		return fmt.Errorf("make the database: exit code %d: %s", code, stderr)
	}
	return nil
}

// args are the arguments of a worker that is told of those machines. It claims all that are due, of
// these or not.
func (s *scene) args(version string, machines []fleet.MachineID) []string {
	ids := make([]string, len(machines))
	for i, id := range machines {
		ids[i] = string(id)
	}
	return []string{
		"-database", s.url, "-log", s.log, "-version", version, "-lease", lease.String(), "-machines", strings.Join(ids, ","),
	}
}

// visited are the machines that people and agents visit: as many of those that are always due for
// an agent as of those whose agents fall silent.
func (s *scene) visited() []fleet.MachineID {
	half := len(s.machines) / 2
	return slices.Concat(s.machines[:visitedOfEach], s.machines[half:half+visitedOfEach])
}

func (s *scene) start(ctx context.Context, version string) (*process.Process, error) {
	s.r.processes++
	path := s.u.after.worker
	if version == before {
		path = s.u.before.worker
	}
	return process.Start(ctx, path, append([]string{"work"}, s.args(version, s.visited())...)...)
}

// work lets the previous version work for a while.
func (s *scene) work(ctx context.Context) error {
	for range previousWorkers {
		w, err := s.start(ctx, before)
		if err != nil {
			return err
		}
		s.previous = append(s.previous, w)
	}
	return s.letRun(ctx, 2*time.Second)
}

// migrate runs `ironherd db migrate` of the new version, and sets the policy as the first process
// of that version does.
func (s *scene) migrate(ctx context.Context) error {
	begun := time.Now()
	for {
		s.r.migrations++
		err := s.withDatabase(ctx, true, func(*bmdb.DB) error { return nil })
		if err == nil {
			break
		}
		if fleet.KindOf(err) != fleet.KindTemporary || s.r.migrations >= tries {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	s.migrated = time.Now()
	s.r.migrating = s.migrated.Sub(begun)
	// The previous version is alone on what is the new schema now.
	if err := s.letRun(ctx, 2*time.Second); err != nil {
		return err
	}
	return s.setPolicy(ctx)
}

// setPolicy sets what the previous version does not know, and forgets when it writes the policy.
func (s *scene) setPolicy(ctx context.Context) error {
	return s.withDatabase(ctx, false, func(db *bmdb.DB) error {
		env, err := db.Environment(ctx)
		if err != nil {
			return err
		}
		p := env.Policy
		// What the previous version did at once waits for the latter in the new one.
		p.RecoveryAtOnce, p.RecoveryStepTimeout = atOnce, 100*time.Millisecond
		if p == env.Policy {
			return nil
		}
		_, err = db.SetPolicy(ctx, p)
		return err
	})
}

// withDatabase opens the database with the new version's code, and calls do with it.
func (s *scene) withDatabase(ctx context.Context, migrate bool, do func(db *bmdb.DB) error) (err error) {
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

// join starts workers of the new version beside those of the previous one, and kills some of both
// while there are many of both.
func (s *scene) join(ctx context.Context) error {
	for range newWorkers {
		w, err := s.start(ctx, after)
		if err != nil {
			return err
		}
		s.current = append(s.current, w)
	}
	for range 2 {
		if err := s.killPrevious(ctx); err != nil {
			return err
		}
		if err := s.killOne(ctx, s.current, after); err != nil {
			return err
		}
	}
	return nil
}

// killPrevious kills a worker of the previous version. That version refuses to start on a newer
// schema: what restarts it there has the new version already.
func (s *scene) killPrevious(ctx context.Context) error {
	if !s.u.migrates {
		return s.killOne(ctx, s.previous, before)
	}
	i, err := s.busiest(ctx, s.previous)
	if err != nil {
		return err
	}
	s.kill(s.previous[i])
	s.previous = slices.Delete(s.previous, i, i+1)
	w, err := s.start(ctx, after)
	if err != nil {
		return err
	}
	s.current = append(s.current, w)
	return s.pause(ctx)
}

// replace kills workers of both versions in turn, and starts a new one for each. It stops the last
// two of the previous version in order.
func (s *scene) replace(ctx context.Context) error {
	for len(s.previous) > 0 {
		if err := s.killOne(ctx, s.current, after); err != nil {
			return err
		}
		i, err := s.busiest(ctx, s.previous)
		if err != nil {
			return err
		}
		w := s.previous[i]
		s.previous = slices.Delete(s.previous, i, i+1)
		if len(s.previous) >= 2 {
			s.kill(w)
		} else if err := stop(ctx, w); err != nil {
			return err
		}
		if len(s.previous) == 0 {
			s.replaced = time.Now()
		}
		n, err := s.start(ctx, after)
		if err != nil {
			return err
		}
		s.current = append(s.current, n)
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// killOne kills a worker and starts another of its version in its place.
func (s *scene) killOne(ctx context.Context, workers []*process.Process, version string) error {
	i, err := s.busiest(ctx, workers)
	if err != nil {
		return err
	}
	s.kill(workers[i])
	if workers[i], err = s.start(ctx, version); err != nil {
		return err
	}
	return s.pause(ctx)
}

func (s *scene) kill(w *process.Process) {
	s.killed[w.Pid()] = time.Now()
	s.r.kills++
	w.Kill()
}

// pause is from one death to the next.
func (s *scene) pause(ctx context.Context) error {
	if err := s.setPolicy(ctx); err != nil {
		return err
	}
	return s.letRun(ctx, lease/2+time.Duration(s.random.Int64N(int64(lease/2))))
}

// busiest waits, but not for long, until one of the workers has two machines that people leave
// alone, so that its death leaves something to be taken over, and returns which.
func (s *scene) busiest(ctx context.Context, workers []*process.Process) (busiest int, err error) {
	visited := s.visited()
	for range 40 {
		if err := s.letRun(ctx, 20*time.Millisecond); err != nil {
			return 0, err
		}
		lines, err := readLog(s.log)
		if err != nil {
			return 0, err
		}
		has := make(map[int]int)
		for k, pid := range holders(lines) {
			if !slices.Contains(visited, k.machine) {
				has[pid]++
			}
		}
		busiest = s.random.IntN(len(workers))
		for i, w := range workers {
			if has[w.Pid()] > has[workers[busiest].Pid()] {
				busiest = i
			}
		}
		if has[workers[busiest].Pid()] >= 2 {
			break
		}
	}
	return busiest, nil
}

// again starts the previous version once more. On a newer schema it must refuse in one sentence. On
// its own it must work, as when a release is taken back.
func (s *scene) again(ctx context.Context) error {
	if s.u.migrates {
		code, _, stderr := process.Run(ctx, s.u.before.worker, append([]string{"work"}, s.args(before, s.visited())...)...)
		return refused(code, stderr)
	}
	w, err := s.start(ctx, before)
	if err != nil {
		return err
	}
	s.previous = append(s.previous, w)
	if err := s.letRun(ctx, lease); err != nil {
		return err
	}
	s.previous = nil
	err = stop(ctx, w)
	s.replaced = time.Now()
	return err
}

// refused checks how a program of the previous version ended that was started on the newer schema.
func refused(code int, stderr string) error {
	if code == 0 || !strings.Contains(stderr, "is newer than this binary knows") || strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
		return fmt.Errorf("the previous version was started on the new schema: exit code %d: %q", code, stderr)
	}
	return nil
}

// workAlone lets the new version work alone until each machine has been claimed again. Then it
// checks the database while the workers go on.
func (s *scene) workAlone(ctx context.Context) error {
	for range 60 {
		if err := s.letRun(ctx, lease/4); err != nil {
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
	return s.withDatabase(ctx, false, func(db *bmdb.DB) error { return s.check(ctx, db) })
}

func (s *scene) check(ctx context.Context, db *bmdb.DB) error {
	findings, err := db.Check(ctx)
	// A worker may have a machine locked for longer than is waited.
	for n := 1; n < tries && fleet.KindOf(err) == fleet.KindTemporary; n++ {
		findings, err = db.Check(ctx)
	}
	for _, f := range findings {
		s.r.fault("the database is not sound: %s %s: %s", f.Invariant, f.Subject, f.Detail)
	}
	return err
}

// letRun waits while the workers run. It returns an error if one ends by itself.
func (s *scene) letRun(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, w := range append(append([]*process.Process(nil), s.previous...), s.current...) {
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
	for _, w := range s.current {
		if err := stop(ctx, w); err != nil {
			return err
		}
	}
	s.current = nil
	return s.letRun(ctx, 2*lease) // a session that had no time to be closed ends with its lease
}

func stop(ctx context.Context, p *process.Process) error {
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return p.Stop(stopping)
}
