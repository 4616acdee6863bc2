package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/postgres"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/fleet"
)

// slots is how many works a worker has at a time.
const slots = 4

// worker is one process.
type worker struct {
	url, log, name string
	lease          time.Duration
	stubborn       bool

	db    *bmdb.DB
	lines *os.File
}

// openEngine opens a database by its URL.
func openEngine(ctx context.Context, url string, lease time.Duration) (bmdb.Engine, error) {
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		return sqlite.Open(ctx, path, sqlite.Options{})
	}
	return postgres.Open(ctx, url, postgres.Options{Lease: lease})
}

func (w *worker) run(ctx context.Context) (err error) {
	if w.lines, err = os.OpenFile(w.log, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return err
	}
	// A worker that is stopped while it opens finds its transaction ended by the server.
	for w.db, err = w.open(ctx); err != nil; w.db, err = w.open(ctx) {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end before it had begun
		}
		if fleet.KindOf(err) != fleet.KindTemporary || wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
	w.write("open", &bmdb.Work{Subject: fleet.Subject{Machine: "-"}}, "")
	var janitor sync.WaitGroup
	janitor.Go(func() { w.collect(ctx) })
	for ctx.Err() == nil {
		if err := w.live(ctx); err != nil && ctx.Err() == nil && fleet.KindOf(err) != fleet.KindLeaseLost {
			fmt.Fprintf(os.Stderr, "%s: %v\n", w.name, err)
		}
	}
	janitor.Wait()
	return w.db.Close()
}

func (w *worker) open(ctx context.Context) (*bmdb.DB, error) {
	engine, err := openEngine(ctx, w.url, w.lease)
	if err != nil {
		return nil, err
	}
	db, err := bmdb.Open(ctx, engine, bmdb.Options{})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	return db, nil
}

// collect is the janitor's part: it ends sessions that are overdue.
func (w *worker) collect(ctx context.Context) {
	for wait(ctx, w.lease/4) == nil {
		if _, err := w.db.CollectSessions(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", w.name, err)
		}
	}
}

// live is the life of one session: it works until the session is lost.
func (w *worker) live(ctx context.Context) error {
	s, err := w.db.StartSession(ctx, bmdb.SessionOptions{Component: w.name, Host: "here", PID: os.Getpid(), Lease: w.lease})
	if err != nil {
		return err
	}
	guarded, release := s.Guard(ctx)
	defer release()
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(guarded) }) // its end ends guarded
	free := make(chan struct{}, slots)
	for range slots {
		free <- struct{}{}
	}
	err = w.claim(guarded, s, free, &running)
	if ctx.Err() == nil {
		release()
	}
	running.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.lease)
	defer cancel()
	return errors.Join(err, s.Close(closing, "done"))
}

// claim fills the free slots, again and again.
func (w *worker) claim(ctx context.Context, s *bmdb.Session, free chan struct{}, running *sync.WaitGroup) error {
	wake := w.db.Wake(fleet.ProcessAgentStart)
	for {
		if n := len(free); n > 0 {
			c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: n})
			if fleet.KindOf(err) == fleet.KindLeaseLost || ctx.Err() != nil {
				return err
			}
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", w.name, err)
			}
			for _, work := range c.Works {
				<-free
				running.Go(func() {
					w.work(ctx, s, work)
					free <- struct{}{}
				})
			}
		}
		timer := time.NewTimer(30 * time.Millisecond)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// work acts on one machine, and commits.
func (w *worker) work(ctx context.Context, s *bmdb.Session, work *bmdb.Work) {
	guarded, release := work.Guard(ctx)
	defer release()
	w.write("claim", work, "")
	if wait(guarded, time.Duration(5+rand.IntN(60))*time.Millisecond) == nil && s.Trusted() { //nolint:gosec // not a secret
		w.write("act", work, "") // the line's time is that of the last look at the lease
		_ = wait(guarded, time.Duration(rand.IntN(30))*time.Millisecond)
	}
	if guarded.Err() != nil && !w.stubborn {
		w.write("left", work, "")
		return
	}
	how, commit := "finished", func(ctx context.Context) error { return work.Finish(ctx) }
	switch rand.IntN(4) { //nolint:gosec // not a secret
	case 0:
		how, commit = "cancelled", func(ctx context.Context) error { return work.Cancel(ctx, "handed back") }
	case 1:
		how, commit = "failed", func(ctx context.Context) error {
			return work.Fail(ctx, bmdb.Failure{Cause: "drawn", Backoff: fleet.Backoff{Initial: time.Second}})
		}
	}
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*w.lease)
	defer cancel()
	for {
		err := commit(trying)
		switch {
		case err == nil:
			w.write("done", work, how)
			return
		case fleet.KindOf(err) == fleet.KindLeaseLost:
			w.write("lost", work, how)
			return
		case wait(trying, 10*time.Millisecond) != nil:
			w.write("unsure", work, how)
			return
		}
	}
}

// write appends one line. It may be torn where the process is killed: the kernel looks for that
// after each page. So a line has a beginning and an end of its own.
func (w *worker) write(event string, work *bmdb.Work, how string) {
	line := fmt.Sprintf("\n%d %d %s %s %d %s"+endOfLine, time.Now().UnixMicro(), os.Getpid(), event, work.Subject.Machine, work.Epoch, how)
	if _, err := w.lines.WriteString(line); err != nil {
		panic(err) // without its log the test is worth nothing
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
