package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/test/pgserver"
	"github.com/ironherd/ironherd/test/process"
)

// planesFleet is how many machines the real programs bring up. There must be work until the last
// plane has been replaced.
const planesFleet = 200

// planesLease is how long the sessions of the planes last. A lock is waited for two fifths of it,
// and a plane that waits in vain logs an error, which fails the run: while three planes and 200
// machines share a few cores, that must be long.
const planesLease = 15 * time.Second

// site is a simulated fleet with three control planes.
type site struct {
	u      *upgrade
	herd   *process.Herd
	front  *process.Balancer
	planes []*plane
	begun  time.Time
	// started and kills count processes. unready counts those of the previous version that gave up at
	// their start.
	started, kills, unready int
	migrating               time.Duration
}

// plane is one control plane, of either version.
type plane struct {
	args    []string
	version string
	process *process.Process
}

// planes upgrades a fleet of the real programs and judges what is left.
func (u *upgrade) planes(ctx context.Context) (line string, err error) {
	server, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	name, err := server.Create(ctx, "")
	if err != nil {
		return "", err
	}
	front, err := process.NewBalancer(ctx)
	if err != nil {
		return "", err
	}
	defer front.Close()
	// The new version's hosts know what either version has them do.
	s := &site{u: u, front: front, begun: time.Now(), herd: &process.Herd{Ironherd: u.after.ironherd, Dir: u.dir, Machines: planesFleet}}
	if err := s.herd.StartWorld(ctx); err != nil {
		return "", err
	}
	defer func() {
		for _, p := range s.planes {
			p.process.Kill()
		}
		err = errors.Join(err, stop(ctx, s.herd.World()))
	}()
	if err := s.prepare(ctx, server.URL(name)); err != nil {
		return "", err
	}
	for _, act := range []func(context.Context) error{s.before, s.migrate, s.replace, s.finish} {
		if err := act(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("real programs: %d control planes started (%d of them in vain), %d killed, %d machines, each installed exactly once; migrated in %s; %s",
		s.started, s.unready, s.kills, planesFleet, s.migrating.Round(time.Millisecond), time.Since(s.begun).Round(time.Second)), nil
}

// prepare creates the database, and the files that the planes of one fleet have in common.
func (s *site) prepare(ctx context.Context, url string) error {
	if err := s.configure(ctx, url); err != nil {
		return err
	}
	if err := s.migrateBy(ctx, s.u.before.ironherd); err != nil {
		return err
	}
	for n := range 3 {
		listen, err := process.FreeAddress(ctx)
		if err != nil {
			return err
		}
		p := &plane{args: []string{
			"serve", "--config", s.herd.Config(), "--log-level", "warn", "--set", "agent_api.listen=" + listen,
			"--set", "agent_api.endpoint=" + s.front.Address(), "--set", "operator_api.listen=",
			"--set", "session.lease=" + planesLease.String(),
		}}
		if n > 0 {
			p.args = append(p.args, "--set", "dir="+filepath.Join(s.u.dir, fmt.Sprint("plane", n)))
		}
		s.front.Forward(listen)
		s.planes = append(s.planes, p)
	}
	return nil
}

// unknownKey is how a version refuses a key of a later one.
var unknownKey = regexp.MustCompile(`(?m):\d+: (\S+): there is no such key`)

// configure leaves in the configuration what the previous version knows.
func (s *site) configure(ctx context.Context, url string) error {
	text, err := os.ReadFile(s.herd.Config())
	if err != nil {
		return err
	}
	_, _, refused := process.Run(ctx, s.u.before.ironherd, "config", "check", "--config", s.herd.Config())
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return err
	}
	for _, match := range unknownKey.FindAllStringSubmatch(refused, -1) {
		remove(config, strings.Split(match[1], "."))
	}
	config["database"] = url
	if providers, ok := config["providers"].([]any); ok {
		// The previous version puts no keys into requests.
		providers[0].(map[string]any)["trust_first_use"] = true
	}
	if text, err = yaml.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(s.herd.Config(), text, 0o600)
}

// remove removes a key from a section. The only list with keys is that of providers, which has one.
func remove(section map[string]any, path []string) {
	name, _, _ := strings.Cut(path[0], "[")
	if len(path) == 1 {
		delete(section, name)
		return
	}
	switch inner := section[name].(type) {
	case map[string]any:
		remove(inner, path[1:])
	case []any:
		if only, ok := inner[0].(map[string]any); ok {
			remove(only, path[1:])
		}
	}
}

// share copies the certificates for agents and the SSH key for machines, which the first plane has
// created, to another plane.
func (s *site) share(n int) error {
	dir := filepath.Join(s.u.dir, fmt.Sprint("plane", n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"agent-ca.pem", "agent-server.pem", "ssh_key"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(s.herd.Socket()), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *site) migrateBy(ctx context.Context, ironherd string) error {
	code, _, stderr := process.Run(ctx, ironherd, "db", "migrate", "--config", s.herd.Config())
	if code != 0 {
		return fmt.Errorf("db migrate: exit code %d: %s", code, stderr)
	}
	return nil
}

// previousTries bounds how often a plane of the previous version is started. That version gives up
// when a provider is locked. The new one waits, and is started once.
const previousTries = 3

// start starts a plane of a version and waits until it is ready.
func (s *site) start(ctx context.Context, p *plane, version string) (err error) {
	path := s.u.after.ironherd
	if version == before {
		path = s.u.before.ironherd
	}
	p.version = version
	tries := 1
	if version == before {
		tries = previousTries
	}
	for range tries {
		s.started++
		if p.process, err = process.Start(ctx, path, p.args...); err != nil {
			return err
		}
		if _, err = p.process.Await(ctx, "ironherd test is ready"); err == nil || ctx.Err() != nil {
			return err
		}
		s.unready++
		s.u.progress("  not ready: %v", err)
	}
	return err
}

// before runs the previous version until it has installed a machine.
func (s *site) before(ctx context.Context) error {
	for n, p := range s.planes {
		if n > 0 {
			if err := s.share(n); err != nil {
				return err
			}
		}
		if err := s.start(ctx, p, before); err != nil {
			return err
		}
	}
	for {
		if err := s.letRun(ctx, time.Second); err != nil {
			return err
		}
		if status, err := s.herd.Status(ctx); err != nil || status.InstallsVerified > 0 {
			return err
		}
	}
}

// migrate runs the new version's `ironherd db migrate`. After it, the previous version is alone on
// the new schema for a while.
func (s *site) migrate(ctx context.Context) error {
	begun := time.Now()
	if err := s.migrateBy(ctx, s.u.after.ironherd); err != nil {
		return err
	}
	s.migrating = time.Since(begun)
	s.herd.Ironherd = s.u.after.ironherd
	return s.letRun(ctx, 3*time.Second)
}

// replace kills or stops the planes one by one, and starts one of the new version for each. It also
// kills planes of the new version while the previous ones still run.
func (s *site) replace(ctx context.Context) error {
	for n, p := range s.planes {
		if n == 1 { // in order; the others as a crash does
			if err := stop(ctx, p.process); err != nil {
				return err
			}
		} else {
			s.kill(p)
		}
		if err := s.again(ctx, p); err != nil {
			return err
		}
		if err := s.start(ctx, p, after); err != nil {
			return err
		}
		if err := s.letRun(ctx, 3*time.Second); err != nil {
			return err
		}
		s.kill(p)
		if err := s.start(ctx, p, after); err != nil {
			return err
		}
		if err := s.letRun(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// again starts a plane of the previous version once more. On a newer schema it must refuse in one
// sentence; on its own it must work, until it is killed.
func (s *site) again(ctx context.Context, p *plane) error {
	if s.u.migrates {
		code, _, stderr := process.Run(ctx, s.u.before.ironherd, p.args...)
		return refused(code, stderr)
	}
	if err := s.start(ctx, p, before); err != nil {
		return err
	}
	s.kill(p)
	return nil
}

func (s *site) kill(p *plane) {
	s.kills++
	p.process.Kill()
}

// finish lets the new version bring up the rest, and checks everything.
func (s *site) finish(ctx context.Context) error {
	s.herd.Attach(s.planes[0].process)
	if err := s.herd.AwaitInstalled(ctx, func(string) {}); err != nil {
		return err
	}
	if err := s.herd.Settle(ctx); err != nil {
		return err
	}
	if err := s.herd.CheckDatabase(ctx); err != nil { // while all are at work
		return err
	}
	for _, p := range s.planes {
		if err := stop(ctx, p.process); err != nil {
			return err
		}
	}
	return s.herd.CheckDatabase(ctx)
}

// letRun waits while the planes run. It returns an error if one ends by itself or logs an error.
func (s *site) letRun(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	status, err := s.herd.Status(ctx)
	if err != nil {
		return err
	}
	var versions []string
	for _, p := range s.planes {
		select {
		case <-p.process.Ended():
			return fmt.Errorf("a control plane of the %s version ended by itself: %s", p.version, p.process.Stderr())
		default:
		}
		for line := range strings.Lines(p.process.Stderr()) {
			// By its own rules the previous version may find that what the new one has judged is wrong.
			otherRules := p.version == before && strings.Contains(line, `"invariant":"agenda"`)
			if !otherRules && (strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, "level=ERROR")) {
				return fleet.Errorf(fleet.KindUnknown, "a control plane of the %s version logged an error: %s", p.version, line)
			}
		}
		versions = append(versions, p.version)
	}
	s.u.progress("%s: %d devices, %d installed systems came up, by %s", time.Since(s.begun).Round(time.Second), status.Devices,
		status.InstallsVerified, strings.Join(versions, ", "))
	return nil
}
