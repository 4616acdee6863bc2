package provisioner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// late is a provider that keeps its first answer back, whatever ends meanwhile.
type late struct {
	*shepherdtest.FakeProvider
	asked  chan struct{}
	answer chan struct{}
}

func (l *late) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if l.asked == nil {
		return l.FakeProvider.Get(ctx, id)
	}
	close(l.asked)
	l.asked = nil
	<-l.answer
	return provider.Entry{}, fleet.Errorf(fleet.KindTimeout, "given up after 5 attempts")
}

// TestAPassThatReturnsLate does so beside the next pass of its process, which has the lease by
// then. Both use what the process remembers of the provider. The race detector judges.
func TestAPassThatReturnsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 10)
		l := &late{FakeProvider: b.fake, answer: make(chan struct{})}
		b.provider = l
		b.restart()
		b.passes(2)
		time.Sleep(b.config.SettlingTime)
		b.restart()
		lost := b.view().Machines[0].ProviderID
		b.fake.Change(lost, func(*provider.Entry) bool { return false })

		asked := make(chan struct{})
		l.asked = asked
		first, returned := b.claim(), make(chan struct{})
		go func() {
			defer close(returned)
			first.Act(t.Context())
		}()
		<-asked
		b.reopen()
		next := b.claim()
		close(l.answer)
		next.Act(t.Context())
		<-returned
		if err := next.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
