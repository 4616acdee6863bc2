package provisioner_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// killedAt returns the hook of a process that dies at a point: its context ends there, and it
// records nothing afterwards.
func killedAt(point shepherdtest.Point, n int, kill context.CancelFunc) func(shepherdtest.Point, fleet.CapacityID) error {
	return once(point, n, func(fleet.CapacityID) error {
		kill()
		if point == shepherdtest.Created {
			return nil // the call succeeded; nobody is left to hear it
		}
		return errKilled
	})
}

// TestKilledAnywhere kills the process at every step of the n-th creation (and before the intents
// are opened), starts another, and demands one device for each machine in the end.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, at := range []struct {
		point shepherdtest.Point
		nth   int
	}{
		// The intents are not opened yet.
		{shepherdtest.Listing, 1},
		// They are opened, and no call is made.
		{shepherdtest.Creating, 1},
		{shepherdtest.Creating, 3},
		// The call is recorded, and the request is not sent.
		{shepherdtest.Sending, 1},
		{shepherdtest.Sending, 3},
		// The device exists, and the reply is lost.
		{shepherdtest.Sent, 1},
		{shepherdtest.Sent, 3},
		// The reply is here, and the machine is not recorded.
		{shepherdtest.Created, 1},
		{shepherdtest.Created, 3},
	} {
		t.Run(fmt.Sprintf("%s-%d", at.point, at.nth), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 4)
				task := b.claim()
				ctx, kill := context.WithCancel(t.Context())
				b.fake.Hook = killedAt(at.point, at.nth, kill)
				task.Act(ctx) // and no commit
				if ctx.Err() == nil {
					t.Fatal("the process was not killed")
				}
				b.fake.Hook = nil
				b.restart()
				b.passes(3)
				b.agree(4)
			})
		})
	}
}

// TestRepliesLost: every reply of a first try is lost, the process lives on.
func TestRepliesLost(t *testing.T) {
	t.Parallel()
	for _, point := range []shepherdtest.Point{shepherdtest.Sending, shepherdtest.Sent} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 6)
				b.fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					if at == point {
						return errReplyLost
					}
					return nil
				}
				b.pass()
				if open := b.view().Intents; len(open) != 6 || open[0].Calls != 1 || open[0].Rejected != 0 {
					t.Fatalf("after the lost replies: %+v", open)
				}
				b.fake.Hook = nil
				b.passes(2)
				b.agree(6)
			})
		})
	}
}

// TestARequestLandsLate: the first request is delayed. The second is refused, because the first has
// reached the provider by then.
func TestARequestLandsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		intent := b.view().Intents[0]
		b.fake.Hook = once(shepherdtest.Sending, 1, func(capacity fleet.CapacityID) error {
			_, err := b.fake.Land(capacity, intent.Token) // between our look and our call
			return err
		})
		b.pass()
		if open := b.view().Intents; len(open) != 1 || open[0].Calls != 2 || open[0].Rejected != 1 {
			t.Fatalf("after the refused second try: %+v", open)
		}
		b.pass()
		b.agree(1)
		if got := b.view().Machines[0].ID; got != intent.Machine {
			t.Errorf("the machine is %s, the intent was for %s", got, intent.Machine)
		}
	})
}

// TestAnotherOwner: an unanswered intent whose capacity went to somebody else is closed only after
// the settling time, on two lists, and not while a machine with the token can be found.
func TestAnotherOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		other, err := b.fake.Land("capacity-000")
		if err != nil {
			t.Fatal(err)
		}
		called := *b.view().Intents[0].CalledAt
		looks := 0
		for len(b.view().Intents) > 0 {
			if time.Since(called) > 30*time.Minute {
				t.Fatal("the intent is never closed")
			}
			b.pass()
			if time.Since(called) >= b.config.SettlingTime {
				looks++
			}
			if open := len(b.view().Intents); open == 0 && looks < 2 {
				t.Fatalf("closed after %d looks, %s after the call", looks, time.Since(called))
			}
		}
		if time.Since(called) < b.config.SettlingTime {
			t.Errorf("closed %s after the call", time.Since(called))
		}
		if len(b.view().Machines) != 0 {
			t.Errorf("machines: %+v", b.view().Machines)
		}
		b.pass()
		if kinds := b.kinds(); kinds != string(fleet.DiscrepancyUnknownMachine) {
			t.Errorf("the other owner's machine: discrepancies %q", kinds)
		}
		b.fake.Change(other.ID, func(*provider.Entry) bool { return false })
		b.passes(2)
		b.agree(1)
	})
}

// TestAnOrphanIsAdopted: an intent was closed because another owner had its capacity, and its
// device turns up later.
func TestAnOrphanIsAdopted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fake.Hook = once(shepherdtest.Sending, 1, func(fleet.CapacityID) error { return errReplyLost })
		b.pass()
		intent := b.view().Intents[0]
		other, err := b.fake.Land("capacity-000")
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; len(b.view().Intents) > 0 && i < 40; i++ {
			b.pass()
		}
		b.fake.Change(other.ID, func(*provider.Entry) bool { return false })
		if _, err := b.fake.Land("capacity-000", intent.Token); err != nil {
			t.Fatal(err)
		}
		b.passes(2)
		b.agree(1)
		if got := b.view().Machines[0].ID; got != intent.Machine {
			t.Errorf("adopted as %s, not as %s", got, intent.Machine)
		}
	})
}
