package provider

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// slow is a database that takes long to answer, as takes says for each question: before and after
// it does what was asked.
type slow struct {
	Turns
	takes func(fleet.TurnRequest) (before, after time.Duration)
}

func (s slow) ReserveTurns(ctx context.Context, r fleet.TurnRequest) (fleet.TurnGrant, error) {
	before, after := s.takes(r)
	time.Sleep(before)
	grant, err := s.Turns.ReserveTurns(ctx, r)
	time.Sleep(after)
	return grant, err
}

// crawls are the ways in which a database is slow, by their names.
func crawls() map[string]func(fleet.TurnRequest) (before, after time.Duration) {
	all := make(map[string]func(fleet.TurnRequest) (before, after time.Duration))
	for _, milliseconds := range []int{500, 800, 1000, 1500, 1900, 2100, 3000, 5000} {
		takes := time.Duration(milliseconds) * time.Millisecond
		all[fmt.Sprintf("each answer takes %s", takes)] = func(fleet.TurnRequest) (before, after time.Duration) { return takes / 2, takes / 2 }
		all[fmt.Sprintf("each commit takes %s", takes)] = func(r fleet.TurnRequest) (before, after time.Duration) {
			if r.Count == 0 {
				return 0, 0
			}
			return 0, takes
		}
	}
	all["answers take between half a second and three"] = func(fleet.TurnRequest) (before, after time.Duration) {
		return 250*time.Millisecond + rand.N(1250*time.Millisecond), 250*time.Millisecond + rand.N(1250*time.Millisecond)
	}
	return all
}

// I10: a database that takes seconds to answer stops no calls, and they keep the limit all the
// same. Where it hands out turns no faster than the limit allows, or none, people are told.
func TestTheDatabaseTakesSeconds(t *testing.T) {
	t.Parallel()
	for name, takes := range crawls() {
		for _, processes := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, processes: %d", name, processes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const spacing, lasts = 2 * time.Second, 10 * time.Minute
					l := newLimited(t, spacing)
					ctx, stop := context.WithTimeout(t.Context(), lasts)
					defer stop()
					var callers sync.WaitGroup
					var all []*Pacer
					for range processes {
						p := l.process(slow{l.db, takes})
						all = append(all, p)
						for range 3 {
							callers.Go(func() {
								for p.Wait(ctx) == nil {
									l.started()
								}
							})
						}
					}
					time.Sleep(lasts - time.Second)
					for _, p := range all {
						said := p.pacing()
						if !strings.Contains(said, "the database took up to ") && !strings.Contains(said, "the database hands out no turns") {
							t.Errorf("calls are said to be paced with %q", said)
						}
					}
					callers.Wait()
					time.Sleep(2 * turnsPatience) // until what was asked of the database is answered
					l.kept(1 + max(1, l.alone))
					if want := int(lasts / spacing / turnsShare * 9 / 10 * time.Duration(processes) / 4); len(l.starts) < want {
						t.Errorf("%d calls in %s, want %d", len(l.starts), lasts, want)
					}
				})
			})
		}
	}
}
