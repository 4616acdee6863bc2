package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
)

// pools are what one worker has hands for: together more than there are machines, even with few
// workers.
var pools = []struct {
	process fleet.Process
	hands   int
}{
	{fleet.ProcessAgentStart, 5}, {fleet.ProcessRecovery, 3},
}

// live is the life of one session: it works until the session is lost.
func (w *worker) live(ctx context.Context) error {
	s, err := w.db.StartSession(ctx, bmdb.SessionOptions{Component: w.version, Host: "here", PID: os.Getpid(), Lease: w.lease})
	if err != nil {
		return err
	}
	guarded, release := s.Guard(ctx)
	defer release()
	var running, claiming sync.WaitGroup
	running.Go(func() { _ = s.Run(guarded) }) // its end ends guarded
	for _, p := range pools {
		claiming.Go(func() { w.claim(guarded, s, p.process, p.hands, &running) })
	}
	claiming.Wait() // the session has ended, or the program is to
	release()
	running.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.lease)
	defer cancel()
	if err := s.Close(closing, "done"); closing.Err() == nil {
		return err
	}
	return nil // there was no time for it: the session is collected
}

// claim fills the free hands, again and again.
func (w *worker) claim(ctx context.Context, s *bmdb.Session, process fleet.Process, hands int, running *sync.WaitGroup) {
	free := make(chan struct{}, hands)
	for range hands {
		free <- struct{}{}
	}
	wake := w.db.Wake(process)
	for {
		if n := len(free); n > 0 {
			c, err := s.Claim(ctx, bmdb.ClaimRequest{Process: process, Limit: n})
			if fleet.KindOf(err) == fleet.KindLeaseLost {
				return
			}
			w.failed(ctx, "claim", err)
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
			return
		}
		timer.Stop()
	}
}

// work acts on one machine, and commits.
func (w *worker) work(ctx context.Context, s *bmdb.Session, work *bmdb.Work) {
	guarded, release := work.Guard(ctx)
	defer release()
	w.write("claim", work, "")
	changes, err := w.prepare(guarded, work)
	if err != nil && fleet.KindOf(err) != fleet.KindLeaseLost {
		w.failed(guarded, "note", err)
	}
	if err == nil && wait(guarded, time.Duration(20+rand.IntN(150))*time.Millisecond) == nil && s.Trusted() {
		w.write("act", work, "") // the line's time is that of the last look at the lease
		_ = wait(guarded, time.Duration(rand.IntN(30))*time.Millisecond)
	}
	if guarded.Err() != nil {
		w.write("left", work, "")
		return
	}
	how, commit := ending(work, changes)
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
		}
		w.failed(trying, "commit", err)
		if wait(trying, 10*time.Millisecond) != nil {
			w.write("unsure", work, how)
			return
		}
	}
}

// prepare takes a machine over where its provider is that of machines whose agents come and go, and
// returns what its end is to write.
func (w *worker) prepare(ctx context.Context, work *bmdb.Work) ([]bmdb.Change, error) {
	var g fleet.TakeoverGeneration
	if rand.IntN(3) > 0 { //nolint:gosec // not a secret
		return nil, nil
	}
	if err := work.Note(ctx, bmdb.MintTakeover(0, &g)); err != nil || !w.silences(work.Subject.Machine) {
		return nil, err
	}
	return []bmdb.Change{bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: g, PublicKey: []byte("key of " + work.Subject.Machine), AgentVersion: w.version, BootID: fmt.Sprint("boot", g),
	})}, nil
}

// ending draws how a work ends. What an agent was started for is finished.
func ending(work *bmdb.Work, changes []bmdb.Change) (how string, commit func(context.Context) error) {
	n := rand.IntN(4) //nolint:gosec // not a secret
	switch {
	case len(changes) > 0 || n > 1:
		return "finished", func(ctx context.Context) error { return work.Finish(ctx, changes...) }
	case n == 0:
		return "cancelled", func(ctx context.Context) error { return work.Cancel(ctx, "handed back") }
	}
	return "failed", func(ctx context.Context) error {
		return work.Fail(ctx, bmdb.Failure{Cause: "drawn", Backoff: fleet.Backoff{Initial: time.Second, Maximum: time.Second}})
	}
}

// silences says whether the machine is one of those whose agents fall silent.
func (w *worker) silences(machine fleet.MachineID) bool {
	for _, id := range w.machines[len(w.machines)/2:] {
		if id == machine {
			return true
		}
	}
	return false
}

// keep is the janitor's part, and the listener's.
func (w *worker) keep(ctx context.Context) {
	for wait(ctx, w.lease/4) == nil {
		_, ended := w.db.CollectSessions(ctx)
		_, judged := w.db.RecomputeAgenda(ctx, 100)
		w.failed(ctx, "janitor", errors.Join(ended, judged, w.db.ListenerAlive(ctx, w.lease, 100*time.Millisecond)))
	}
}

// hear is what agents say: those of machines that are held by this worker or by another, or by
// nobody.
func (w *worker) hear(ctx context.Context) {
	heard := w.machines[len(w.machines)/2:]
	for wait(ctx, 400*time.Millisecond) == nil { // seldom enough that agents do fall silent
		machine := heard[rand.IntN(len(heard))] //nolint:gosec // not a secret
		agent, err := w.db.Agent(ctx, machine)
		if fleet.KindOf(err) == fleet.KindNotFound {
			continue
		}
		if err == nil {
			err = w.db.RecordSpoken(ctx, agent, fmt.Sprint("boot", rand.IntN(3)))
		}
		if err == nil {
			err = w.db.RecordHardware(ctx, agent, []byte(fmt.Sprint("report ", rand.IntN(3))), nil)
		}
		if err == nil {
			err = w.db.FlushSeen(ctx, []bmdb.Seen{{Machine: machine, TakeoverGeneration: agent.TakeoverGeneration}})
		}
		if fleet.KindOf(err) != fleet.KindForbidden { // another agent is in charge by now
			w.failed(ctx, "agent", err)
		}
	}
}

// operate is what people do, to machines that somebody may be at work on.
func (w *worker) operate(ctx context.Context) {
	for wait(ctx, 150*time.Millisecond) == nil {
		machine, actor := w.machines[rand.IntN(len(w.machines))], "people of "+w.version
		var err error
		switch rand.IntN(3) { //nolint:gosec // not a secret
		case 0:
			_, err = w.db.Retry(ctx, actor, machine, "")
		case 1:
			err = bmdbtest.Quarantine(ctx, w.db, actor, machine, "for a moment")
		case 2:
			_, err = w.db.ListMachines(ctx, bmdb.MachineFilter{})
		}
		// nothing to retry, or quarantined already
		if kind := fleet.KindOf(err); kind != fleet.KindConflict && kind != fleet.KindInvalid {
			w.failed(ctx, "operator", err)
		}
		if err := bmdbtest.Unquarantine(ctx, w.db, actor, machine, "over"); fleet.KindOf(err) != fleet.KindConflict {
			w.failed(ctx, "operator", err)
		}
	}
}
