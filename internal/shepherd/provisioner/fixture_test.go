package provisioner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source fleet.ProviderName = "metal"

// bench is one provider and one database, and a provisioner process that can be killed and started
// again.
type bench struct {
	t      *testing.T
	db     *bmdb.DB
	fake   *shepherdtest.FakeProvider
	config provisioner.Config
	loop   *shepherd.Loop
	holder *shepherd.Holder
	// provider is what the process talks to; the fake one where nothing else is set.
	provider provider.Provider
	logger   *slog.Logger
	// more are other providers.
	more []provisioner.Source
}

func newBench(t *testing.T, reservations int) *bench {
	t.Helper()
	return newBenchWith(t, reservations, nil)
}

// newBenchWith returns one whose transactions are told to the observer; nil: to nobody.
func newBenchWith(t *testing.T, reservations int, observer bmdb.Observer) *bench {
	t.Helper()
	db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{Observer: observer})
	if err := db.RegisterProvider(t.Context(), source, "fake", 0); err != nil {
		t.Fatal(err)
	}
	config := provisioner.DefaultConfig()
	config.CreateRate = fleet.Rate{Every: time.Second, Burst: 1}
	b := &bench{t: t, db: db, fake: shepherdtest.NewFakeProvider(reservations), config: config}
	b.fake.Inject = true
	b.restart()
	return b
}

// hostKeyOf stands for what derives host keys.
func hostKeyOf(token fleet.Token) (provider.HostKey, error) {
	return provider.NewHostKey("ssh-ed25519 "+string(token), "SHA256:"+string(token), "the private half of "+string(token)+"\n"), nil
}

// mustKnow fails the test unless the machine is known by the host key that was made for a token.
func (b *bench) mustKnow(machine fleet.MachineID, token fleet.Token) {
	b.t.Helper()
	keys, err := b.db.HostKeys(b.t.Context(), machine)
	made, _ := hostKeyOf(token)
	if err != nil || keys.Source != fleet.HostKeyInjected || !slices.Equal(keys.Known, []string{made.Public}) {
		b.t.Errorf("machine %s, made with %s, is known by %+v, %v", machine, token, keys, err)
	}
}

// restart starts a new process; the old one's lease runs out.
func (b *bench) restart() {
	b.t.Helper()
	if b.provider == nil {
		b.provider = b.fake
	}
	sources := append([]provisioner.Source{{Name: source, Provider: b.provider, Config: b.config}}, b.more...)
	handler, err := provisioner.New(b.db, sources, provisioner.Options{HostKey: hostKeyOf, Logger: b.logger})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.loop, err = shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{}); err != nil {
		b.t.Fatal(err)
	}
	b.reopen()
}

// reopen starts a new session of the process; the old one's lease runs out.
func (b *bench) reopen() {
	b.t.Helper()
	var err error
	if b.holder, err = b.loop.Open(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// claim claims the next pass, as soon as it is due.
func (b *bench) claim() *shepherd.Task {
	b.t.Helper()
	for range 1000 {
		if err := b.holder.Extend(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.db.CollectSessions(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
		tasks, next, err := b.holder.Claim(b.t.Context(), 1)
		if err != nil {
			b.t.Fatal(err)
		}
		if len(tasks) == 1 {
			return tasks[0]
		}
		synctest.Wait()                                                    // only in a bubble
		time.Sleep(min(max(time.Until(next), time.Second), 3*time.Second)) // less than a lease
	}
	b.t.Fatal("no pass became due")
	return nil
}

// keep extends the session until the returned function is called.
func (b *bench) keep() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	holder, kept := b.holder, make(chan struct{})
	go func() {
		defer close(kept)
		for ctx.Err() == nil {
			_ = holder.Extend(ctx)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return func() { cancel(); <-kept }
}

// pass runs one whole pass, with the session kept, and returns its outcome.
func (b *bench) pass() shepherd.Outcome {
	b.t.Helper()
	task := b.claim()
	defer b.keep()()
	task.Act(b.t.Context())
	if err := task.Commit(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return task.Outcome()
}

// passes runs passes until one more would change nothing, or so many.
func (b *bench) passes(n int) {
	b.t.Helper()
	for range n {
		b.pass()
	}
}

func (b *bench) view() bmdb.ProviderView {
	b.t.Helper()
	view, err := b.db.ViewProvider(b.t.Context(), source)
	if err != nil {
		b.t.Fatal(err)
	}
	return view
}

func (b *bench) result() string {
	b.t.Helper()
	rows, err := b.db.Providers(b.t.Context())
	if err != nil || len(rows) != 1 {
		b.t.Fatalf("got %d providers, %v", len(rows), err)
	}
	return rows[0].PassResult
}

// kinds returns the kinds of the discrepancies.
func (b *bench) kinds() string {
	b.t.Helper()
	var kinds []string
	for _, d := range b.view().Discrepancies {
		kinds = append(kinds, string(d.Kind))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// agree is I7: provider and BMDB agree, one device for each machine, each token once, no intent
// open.
func (b *bench) agree(machines int) {
	b.t.Helper()
	view := b.view()
	if len(view.Intents) != 0 {
		b.t.Errorf("open intents: %+v", view.Intents)
	}
	known := make(map[fleet.ProviderID]fleet.MachineID)
	for _, m := range view.Machines {
		if other, twice := known[m.ProviderID]; twice || m.ProviderID == "" {
			b.t.Errorf("machines %s and %s are both %q", m.ID, other, m.ProviderID)
		}
		known[m.ProviderID] = m.ID
	}
	tokens := make(map[fleet.Token]bool)
	for _, device := range b.fake.Devices() {
		if _, ok := known[device.ID]; !ok {
			b.t.Errorf("device %s is an orphan", device.ID)
		}
		for _, token := range device.Tokens {
			if tokens[token] {
				b.t.Errorf("token %s is on two devices", token)
			}
			tokens[token] = true
			b.mustKnow(known[device.ID], token)
		}
	}
	if len(view.Machines) != machines || len(b.fake.Devices()) != machines {
		b.t.Errorf("%d machines and %d devices, want %d of both", len(view.Machines), len(b.fake.Devices()), machines)
	}
	if len(view.Discrepancies) != 0 {
		b.t.Errorf("discrepancies: %+v", view.Discrepancies)
	}
	findings, err := b.db.Check(b.t.Context())
	if err != nil || len(findings) != 0 {
		b.t.Errorf("check: %+v, %v", findings, err)
	}
}

// once returns a hook that fires at the n-th passing of a point.
func once(at shepherdtest.Point, n int, fire func(capacity fleet.CapacityID) error) func(shepherdtest.Point, fleet.CapacityID) error {
	var reached atomic.Int64 // several creations are on their way at once
	return func(point shepherdtest.Point, capacity fleet.CapacityID) error {
		if point == at && reached.Add(1) == int64(n) {
			return fire(capacity)
		}
		return nil
	}
}

var errReplyLost = fleet.Errorf(fleet.KindTimeout, "the reply was lost")

var errKilled = errors.New("killed")

func text(outcome shepherd.Outcome) string { return fmt.Sprintf("%T %+v", outcome, outcome) }
