package provisioner_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/bmdbtest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/equinix"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// straight carries requests to the API without a socket.
type straight struct{ api *equinixapi.API }

func (s straight) RoundTrip(request *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	s.api.ServeHTTP(recorder, request)
	return recorder.Result(), nil
}

func always() bool { return true }

// quirky runs a test beside the loops that make machines, watch them and give them back, in front
// of an API with so many reservations that answers 403 for what is gone, and whose reservations
// linger. It begins when there are as many machines as are wanted.
func quirky(
	t *testing.T, reservations, wanted int, change func(*equinixapi.Config), test func(*testing.T, *bench, *wire, *equinix.Provider),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t, 1, reservations, 100, func(c *equinixapi.Config) {
			c.Durations = equinixapi.Durations{
				Provisioning: equinixapi.Span{Min: 3 * time.Minute}, Deprovisioning: equinixapi.Span{Min: 10 * time.Minute},
			}
			c.Forbid, c.NameLate, c.Early = always, always, func() time.Duration { return 5 * time.Minute }
			change(c)
		})
		b := newBench(t, 0)
		b.config.MaxMachines, b.config.CreateRate = wanted, fleet.Rate{Every: time.Second, Burst: 1}
		metal := w.provider(t, straight{w.api})
		if err := b.db.SetLevers(t.Context(), source, provider.Levers(metal)); err != nil {
			t.Fatal(err)
		}
		defer b.run(b.handlers(metal)...)()
		time.Sleep(10 * time.Minute)
		b.whole(w, wanted)
		test(t, b, w, metal)
	})
}

// run runs loops, beside a listener that nobody speaks to, until the returned function is called.
func (b *bench) run(handlers ...shepherd.Handler) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var loops sync.WaitGroup
	for _, handler := range handlers {
		loop, err := shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
		if err != nil {
			b.t.Fatal(err)
		}
		loops.Go(func() { _ = loop.Run(ctx) })
	}
	loops.Go(func() {
		for ctx.Err() == nil {
			_ = b.db.ListenerAlive(ctx, 30*time.Second, 30*time.Second) // a listener that fails is missed
			select {
			case <-time.After(30 * time.Second):
			case <-ctx.Done():
			}
		}
	})
	return func() { cancel(); loops.Wait() }
}

// handlers are those of a process that works at one provider.
func (b *bench) handlers(metal *equinix.Provider) []shepherd.Handler {
	b.t.Helper()
	provisions, err := provisioner.New(b.db, []provisioner.Source{{Name: source, Provider: metal, Config: b.config}}, provisioner.Options{HostKey: hostKeyOf})
	if err != nil {
		b.t.Fatal(err)
	}
	updates, err := updater.New(b.db, []updater.Source{{Name: source, Provider: metal, Config: updater.DefaultConfig()}}, updater.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	operates, err := operations.New(b.db, []operations.Source{{
		Name: source, Provider: metal, Config: operations.ProviderConfig{Penalty: b.config.Penalty},
	}}, operations.DefaultConfig(), operations.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return []shepherd.Handler{provisions, updates, operates}
}

// whole checks that there are so many machines, all of them active, that the provider has no
// others, and that nothing has ever been a discrepancy.
func (b *bench) whole(w *wire, machines int) (all map[fleet.MachineID]bmdb.ProviderMachine) {
	b.t.Helper()
	all = make(map[fleet.MachineID]bmdb.ProviderMachine)
	for _, m := range b.view().Machines {
		all[m.ID] = m
		if m.Provided == nil || m.Provided.Status != fleet.ProviderStatusActive {
			b.t.Errorf("machine %+v is %+v", m, m.Provided)
		}
	}
	if summary := w.api.Summary(); len(all) != machines || summary.States["active"] != machines || len(summary.States) != 1 || summary.Duplicates > 0 {
		b.t.Errorf("%d machines, devices %+v", len(all), summary)
	}
	rows, err := b.db.ProviderHistory(b.t.Context(), source, 1000, false)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, row := range rows {
		if row.Event == fleet.EventDiscrepancy {
			b.t.Errorf("a discrepancy: %s", row.Detail)
		}
	}
	return all
}

// TestReplacedWhereWhatIsGoneLingers: machines are given back, and others are made on the same
// hardware as soon as it can be used, although reservations name what is gone, a list has them free
// too early, and what is gone is answered with 403.
func TestReplacedWhereWhatIsGoneLingers(t *testing.T) {
	t.Parallel()
	quirky(t, 3, 3, func(*equinixapi.Config) {}, func(t *testing.T, b *bench, w *wire, _ *equinix.Provider) {
		t.Helper()
		before := b.whole(w, 3)
		for id := range before {
			if _, err := bmdbtest.Operate(t.Context(), b.db, "ada", id, fleet.OperationReplace, "anew"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(4 * time.Minute)
		if left := len(b.view().Machines); left > 0 {
			t.Errorf("%d machines that were given back are there after 4 minutes", left)
		}
		time.Sleep(26 * time.Minute)
		for id := range b.whole(w, 3) {
			if _, same := before[id]; same {
				t.Errorf("machine %s was not replaced", id)
			}
		}
	})
}

// silent is the loop that starts agents where no host ever answers.
type silent struct{}

// Scope implements shepherd.Handler.
func (silent) Scope() shepherd.Scope {
	return shepherd.Scope{
		Process: fleet.ProcessAgentStart, Providers: []fleet.ProviderName{source}, Backoff: fleet.Backoff{Initial: time.Minute},
	}
}

// Act implements shepherd.Handler.
func (silent) Act(context.Context, *bmdb.Work) shepherd.Outcome {
	return shepherd.Fail{Err: fleet.Errorf(fleet.KindTimeout, "the host does not answer"), Answer: fleet.AnswerNone}
}

// TestAFailedReinstallIsReplaced, where the policy says so, on other hardware. Each step of
// recovery is taken once before, although the provider takes its time for it.
func TestAFailedReinstallIsReplaced(t *testing.T) {
	t.Parallel()
	quirky(t, 2, 1, func(c *equinixapi.Config) {
		c.FailReinstall = always
		c.Durations.Reboot, c.Durations.PowerOff = equinixapi.Span{Min: 30 * time.Second}, equinixapi.Span{Min: 40 * time.Second}
		c.Durations.PowerOn = equinixapi.Span{Min: 11 * time.Second}
	}, func(t *testing.T, b *bench, w *wire, metal *equinix.Provider) {
		t.Helper()
		policy := fleet.DefaultPolicy()
		policy.ReplaceFailed, policy.RecoveryReboots, policy.RecoveryPowerCycles, policy.RecoveryReinstalls = true, 1, 1, 1
		if _, err := b.db.SetPolicy(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		recovers, err := recoverer.New(b.db, []recoverer.Source{{Name: source, Provider: metal}}, recoverer.DefaultConfig(), recoverer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.run(recovers, silent{})()
		old := b.view().Machines[0]
		for left := 300; left > 0 && len(b.view().Machines) > 0 && b.view().Machines[0].ID == old.ID; left-- {
			time.Sleep(time.Minute)
		}
		time.Sleep(5 * time.Minute)
		for _, m := range b.whole(w, 1) {
			if m.ID == old.ID || m.Provided.Capacity == old.Provided.Capacity {
				t.Errorf("machine %s on %s was replaced by %s on %s", old.ID, old.Provided.Capacity, m.ID, m.Provided.Capacity)
			}
		}
		want := []string{"Reboot operation queued", "Power off operation queued", "Power on operation queued", "Reinstall operation queued", "Provisioning failed"}
		if got := w.events(t, old.ProviderID, want); !slices.Equal(got, want) {
			t.Errorf("at the provider: %q", got)
		}
	})
}

// events returns those events of a device that are among some, oldest first.
func (w *wire) events(t *testing.T, device fleet.ProviderID, some []string) (bodies []string) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, equinixapi.Prefix+"/devices/"+string(device)+"/events?per_page=100", nil)
	request.Header.Set("X-Auth-Token", "a-long-token")
	recorder := httptest.NewRecorder()
	w.api.ServeHTTP(recorder, request)
	var page struct{ Events []struct{ Body string } }
	if err := json.Unmarshal(recorder.Body.Bytes(), &page); err != nil {
		t.Error(err)
	}
	for _, event := range slices.Backward(page.Events) {
		if slices.Contains(some, event.Body) {
			bodies = append(bodies, event.Body)
		}
	}
	return bodies
}
