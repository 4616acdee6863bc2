package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "upgrade: %v\n", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	previous := flag.String("previous", "", "the commit or tag to start from; by default, what test/upgrade/PREVIOUS says")
	patch := flag.String("patch", "", "a patch for the tree of the previous version, to see what it does: a planted fault")
	rounds := flag.Int("rounds", 5, "how many databases are upgraded with workers at work")
	planes := flag.Bool("planes", true, "upgrade a fleet of the real programs, too")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "decides the moments")
	timeout := flag.Duration("timeout", 20*time.Minute, "give up after this long")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	u := upgrade{seed: *seed, patch: *patch, progress: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	if err := u.run(ctx, *previous, *rounds, *planes); err != nil {
		return fmt.Errorf("%w\n(seed %d)", err, *seed)
	}
	return nil
}

// upgrade is one run of everything.
type upgrade struct {
	seed     uint64
	patch    string
	progress func(format string, args ...any)
	// before and after are the programs of the previous version and of today's.
	before, after programs
	// migrates says whether today's schema is newer than the previous version's.
	migrates bool
	dir      string
}

func (u *upgrade) run(ctx context.Context, previous string, rounds int, planes bool) (err error) {
	// The path of a socket in it must be short.
	if u.dir, err = os.MkdirTemp("", "ih-up-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(u.dir)) }()
	if err := u.build(ctx, previous); err != nil {
		return err
	}
	total := newReport()
	for n := range rounds {
		dir := filepath.Join(u.dir, fmt.Sprint("round", n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		r, err := u.workers(ctx, dir, uint64(n)) //nolint:gosec // not negative
		if err != nil {
			return fmt.Errorf("round %d: %w", n+1, err)
		}
		u.progress("round %d of %d: %s", n+1, rounds, r.line())
		total.add(r)
	}
	if rounds > 0 {
		if err := total.tested(); err != nil {
			return err
		}
		fmt.Println(total.table(rounds))
	}
	if planes {
		line, err := u.planes(ctx)
		if err != nil {
			return fmt.Errorf("the real programs: %w", err)
		}
		fmt.Println(line)
	}
	return nil
}
