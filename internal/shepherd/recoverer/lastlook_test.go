package recoverer_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// pausing is a provider's API that answers the next request with a pause, if it is told to.
type pausing struct {
	pause bool
	acted []string
}

func (a *pausing) RoundTrip(r *http.Request) (*http.Response, error) {
	response := &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}
	if a.pause {
		a.pause = false
		response.StatusCode = http.StatusTooManyRequests
		response.Header.Set("Retry-After", "55")
		return response, nil
	}
	a.acted = append(a.acted, r.URL.Path)
	return response, nil
}

// paced is a provider whose levers are pulled through a transport that keeps its pauses.
type paced struct {
	*shepherdtest.FakeProvider
	transport *provider.Transport
	// before is called when a lever is pulled, before it waits; between in the middle of a cycle, and
	// on when a machine is switched on.
	before, between, on func()
}

func (p paced) post(ctx context.Context, path string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.localhost"+path, nil)
	if err != nil {
		return err
	}
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (p paced) Reboot(ctx context.Context, _ fleet.ProviderID) error {
	p.before()
	return p.post(ctx, "/reboot")
}

func (p paced) PowerCycle(ctx context.Context, id fleet.ProviderID) error {
	if err := p.post(ctx, "/off"); err != nil {
		return err
	}
	p.between()
	if err := p.post(ctx, "/on"); err != nil {
		return err
	}
	return p.FakeProvider.PowerCycle(ctx, id)
}

func (p paced) PowerOn(ctx context.Context, id fleet.ProviderID) error {
	p.on()
	if err := p.post(ctx, "/on"); err != nil {
		return err
	}
	return p.FakeProvider.PowerOn(ctx, id)
}

func newPaced(t *testing.T) (*shepherdtest.Herd, *pausing, *paced) {
	t.Helper()
	herd, _ := newHerd(t, 3, nil)
	api, p := pacedOf(herd)
	return herd, api, p
}

// pacedOf is newPaced of machines that are there.
func pacedOf(herd *shepherdtest.Herd) (*pausing, *paced) {
	api := &pausing{}
	return api, &paced{
		FakeProvider: herd.Fake,
		transport: provider.NewTransport(provider.Limits{Spacing: 2 * time.Second}, func(*http.Request) string { return "an action" },
			provider.Options{HTTP: api}),
		before: func() {}, between: func() {}, on: func() {},
	}
}

// TestReportsAgainWhileTheCallWaits: a reboot waits because the provider wants a pause, and the
// machine reports meanwhile. Nothing is sent, and no step is counted.
func TestReportsAgainWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, api, p := newPaced(t)
		id := herd.Machines()[0]
		p.before = func() {
			api.pause = true
			check(t, p.post(t.Context(), "/of-another"))
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false })
		}
		observer := &told{}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: p}}, recoverer.DefaultConfig(),
			recoverer.Options{Observed: observer.RecoveryStep})
		check(t, err)
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(30 * time.Minute)
		if len(api.acted) > 0 {
			t.Errorf("sent %q", api.acted)
		}
		if got := strings.Join(observer.all, ", "); got != "reboot not-needed" {
			t.Errorf("told %q", got)
		}
		r := herd.Record(id)
		if r.Repair != nil || !r.Backoffs[fleet.ProcessRecovery].Since.IsZero() {
			t.Errorf("repair %+v, backoffs %+v", r.Repair, r.Backoffs)
		}
		if state, why := herd.State(id); state != fleet.StateAvailable {
			t.Errorf("the machine is %s: %s", state, why)
		}
	})
}

// TestACycleThatHasBegunGoesOn: a machine whose agent is heard after it was told to turn off, and
// before it does, is turned on again.
func TestACycleThatHasBegunGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, api, p := newPaced(t)
		id := herd.Machines()[0]
		p.between = func() {
			herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = false })
			time.Sleep(2 * time.Minute)
		}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: p}}, recoverer.DefaultConfig(), recoverer.Options{})
		check(t, err)
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(3 * time.Hour)
		if got := strings.Join(api.acted, " "); !strings.HasSuffix(got, "/off /on") {
			t.Errorf("sent %s", got)
		}
	})
}

// TestIsStoppedWhileTheCallWaits: recovery is paused while a reboot waits because the provider
// wants a pause. Nothing is sent, and no step is counted.
func TestIsStoppedWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		herd, api, p := newPaced(t)
		id := herd.Machines()[0]
		p.before = func() {
			api.pause = true
			check(t, p.post(t.Context(), "/of-another"))
			check(t, herd.DB.HoldRecovery(t.Context(), "alice", nil, "the network is worked at"))
		}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: p}}, recoverer.DefaultConfig(), recoverer.Options{})
		check(t, err)
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(30 * time.Minute)
		if len(api.acted) > 0 {
			t.Errorf("sent %q", api.acted)
		}
		if r := herd.Record(id); r.Repair != nil || !r.Backoffs[fleet.ProcessRecovery].Since.IsZero() {
			t.Errorf("repair %+v, backoffs %+v", r.Repair, r.Backoffs)
		}
	})
}

// TestLooksRestoredWhileTheCallWaits: the evidence that the database was restored turns up, as in a
// failover, while a reboot waits because the provider wants a pause. Nothing is sent, and no step
// is counted (rule 11).
func TestLooksRestoredWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := shepherdtest.OpenEngine(t)
		herd := shepherdtest.NewHerd(t, shepherdtest.OpenDB(t, engine, bmdb.Options{}), 3)
		api, p := pacedOf(herd)
		id := herd.Machines()[0]
		p.before = func() {
			api.pause = true
			check(t, p.post(t.Context(), "/of-another"))
			shepherdtest.PutBack(t, engine)
		}
		observer := &told{}
		handler, err := recoverer.New(herd.DB, []recoverer.Source{{Name: herd.Name, Provider: p}}, recoverer.DefaultConfig(),
			recoverer.Options{Observed: observer.RecoveryStep})
		check(t, err)
		defer herd.Start(handler)()
		time.Sleep(5 * time.Minute)
		herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
		time.Sleep(30 * time.Minute)
		if got := strings.Join(observer.all, ", "); len(api.acted) > 0 || got != "reboot not-needed" {
			t.Errorf("sent %q, told %q", api.acted, got)
		}
		if r := herd.Record(id); r.Repair != nil || !r.Backoffs[fleet.ProcessRecovery].Since.IsZero() {
			t.Errorf("repair %+v, backoffs %+v", r.Repair, r.Backoffs)
		}
	})
}

// TestSwitchingOnIsStopped: a power cycle has left a machine off, and recovery is paused, or the
// database begins to look restored (rule 11), before it is switched on, or while that waits for its
// turn. The machine stays off, and that is told. Once recovery goes on, it is switched on.
func TestSwitchingOnIsStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waits, restored bool
		told            string
	}{
		"paused before":                 {told: "and has left the machine off; recovery is stopped by alice (the network is worked at)"},
		"paused while it waits":         {waits: true, told: "and has left the machine off; recovery is stopped by alice (the network is worked at)"},
		"looks restored before":         {restored: true, told: "and has left the machine off; the database looks restored"},
		"looks restored while it waits": {waits: true, restored: true, told: "and has left the machine off; the database looks restored"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				engine := shepherdtest.OpenEngine(t)
				db := shepherdtest.OpenDB(t, engine, bmdb.Options{})
				policy := fleet.DefaultPolicy()
				policy.SuspectShare = 0
				_, err := db.SetPolicy(t.Context(), policy)
				check(t, err)
				herd := shepherdtest.NewHerd(t, db, 3)
				api, p := pacedOf(herd)
				id := herd.Machines()[0]
				stops := 0
				stop := func() {
					if stops++; stops > 1 {
						return
					}
					if c.restored {
						shepherdtest.PutBack(t, engine)
						return
					}
					check(t, db.HoldRecovery(t.Context(), "alice", nil, "the network is worked at"))
				}
				if c.waits {
					p.on = stop
				}
				cut := false
				herd.Fake.Hook = func(at shepherdtest.Point, _ fleet.CapacityID) error {
					switch off := cut && herd.Record(id).Provided.Status == fleet.ProviderStatusOff; {
					case at == shepherdtest.Pulled && !cut:
						cut = true
						return fleet.Errorf(fleet.KindTimeout, "no answer")
					case at == shepherdtest.Asking && off && !c.waits:
						stop()
					}
					return nil
				}
				observer := &told{}
				handler, err := recoverer.New(db, []recoverer.Source{{Name: herd.Name, Provider: p}}, recoverer.DefaultConfig(),
					recoverer.Options{Observed: observer.RecoveryStep})
				check(t, err)
				defer herd.Start(handler)()
				time.Sleep(5 * time.Minute)
				herd.Change(id, func(h *shepherdtest.Host) { h.Hangs = true })
				time.Sleep(5 * time.Hour)
				if stops == 0 {
					t.Fatal("nothing was stopped: the test tests nothing")
				}
				if sent := strings.Join(api.acted, " "); !strings.HasSuffix(sent, "/off /on") || levers(herd, id) != "power-cycle" {
					t.Errorf("sent %s, pulled %q", sent, levers(herd, id))
				}
				if got := strings.Join(observer.all, ", "); !strings.HasSuffix(got, "power-cycle failed, quarantine not-needed, power-cycle not-needed") &&
					!strings.HasSuffix(got, "power-cycle failed, reinstall not-needed, power-cycle not-needed") {
					t.Errorf("told %q", got)
				}
				r := herd.Record(id)
				if state, why := herd.State(id); state != fleet.StateSilent || !strings.Contains(why, c.told) || r.Repair == nil || r.Repair.Rung != fleet.RungPowerCycle {
					t.Errorf("the machine is %s: %s; step %+v", state, why, r.Repair)
				}
				if c.restored {
					check(t, db.AcceptRestore(t.Context(), "ada"))
				} else {
					check(t, db.ResumeRecovery(t.Context(), "alice", "done"))
				}
				time.Sleep(5 * time.Minute)
				if got := levers(herd, id); got != "power-cycle power-on" {
					t.Errorf("recovery goes on: pulled %q", got)
				}
			})
		})
	}
}
