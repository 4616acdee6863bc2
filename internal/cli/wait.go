package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

// A command that waits asks every pollInterval, of at most perTurn machines.
const (
	pollInterval = 500 * time.Millisecond
	perTurn      = 20
)

// awaited is a machine that a command waits for.
type awaited struct {
	// id is what it is asked for by, name what it is called.
	id, name string
	// look says what an answer means: how far it is, and whether that is the end, or a failure.
	look func(*fleetv1.GetMachineResponse) (now string, done bool, err error)
	// ended says what comes of it that there is no answer, or that the waiting ends. last is what was
	// told last.
	ended func(last string, err error) error
	told  string
}

// await waits until each of the machines is done or has failed. It asks for them in turn, so that
// what becomes of one is told when it happens, however long the others take. It prints failures
// under the names of the machines, unless the command was for one alone. Its failure is that of
// many, or that of the first machine that is left where ctx ends, or nothing is answered any more.
func (a *app) await(ctx context.Context, client fleetClient, pending []*awaited, machines int) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var failures []error
	for len(pending) > 0 {
		for range min(perTurn, len(pending)) {
			m := pending[0]
			pending = pending[1:]
			done, err := a.lookAt(ctx, client, ticker, m)
			switch {
			case err != nil && (ctx.Err() != nil || a.unansweredTooLong()):
				a.noteLeft(pending)
				return err
			case err != nil:
				failures = append(failures, err)
				if machines > 1 {
					a.note("%s: %s", m.name, message(err))
				}
			case !done:
				pending = append(pending, m)
			}
		}
		if len(pending) == 0 {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			a.noteLeft(pending[1:])
			return pending[0].ended(pending[0].told, context.Cause(ctx))
		}
	}
	return ofMany(failures, machines)
}

// noteLeft names the first of the machines that were waited for, too, when the waiting ended.
func (a *app) noteLeft(pending []*awaited) {
	if len(pending) == 0 {
		return
	}
	first := min(len(pending), perTurn)
	names := make([]string, first)
	for i, m := range pending[:first] {
		names[i] = m.name
	}
	if more := len(pending) - first; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	a.note("Waiting also ends for %s: %s", plural(len(pending), "other machine"), strings.Join(names, ", "))
}

// lookAt asks for the machine once, and tells how far it is when that has changed. The question is
// bounded, so that one which gets no answer at all is asked again.
func (a *app) lookAt(ctx context.Context, client fleetClient, ticker *time.Ticker, m *awaited) (bool, error) {
	for {
		bounded, cancel := withTimeout(ctx, defaultTimeout)
		response, err := client.GetMachine(bounded, &fleetv1.GetMachineRequest{Machine: m.id})
		cancel()
		if a.askAgain(ctx, ticker, err) {
			continue
		}
		if err != nil {
			return true, m.ended(m.told, err)
		}
		now, done, err := m.look(response)
		if now != "" && now != m.told {
			a.note("%s: %s", m.name, now)
			m.told = now
		}
		return done, err
	}
}
