package provisioner_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/equinix"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// creates is how many machines TestManyCreates wants; the figure of 10,000 takes five minutes.
var creates = flag.Int("creates", 500, "machines of TestManyCreates")

// TestOnTheWire runs the real provider against the simulated API while requests fail, replies are
// lost and the process dies at random requests, until all capacity is taken: exactly one device for
// each machine, whatever happened.
func TestOnTheWire(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { onTheWire(t, seed, 10, 4) })
		})
	}
}

// TestManyCreates is the same with many machines at one provider.
func TestManyCreates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { onTheWire(t, 6, *creates, 1000) })
}

func onTheWire(t *testing.T, seed uint64, machines, perPage int) {
	t.Helper()
	b := newBench(t, 0)
	b.config.MaxMachines, b.config.ChunkSize = machines, max(b.config.ChunkSize, machines/5)
	b.config.CreateRate = fleet.Rate{Every: 10 * time.Millisecond, Burst: 1}
	b.config.SettlingTime, b.config.Penalty = 2*time.Minute, 5*time.Minute
	w := newWire(t, seed, machines, perPage, nil)
	b.provider = w.provider(t, w)
	b.restart()
	for pass := 0; w.faulty || len(b.view().Machines) < machines || len(b.view().Intents) > 0; pass++ {
		if pass > 100 {
			t.Fatalf("%d machines, intents %+v: %s", len(b.view().Machines), b.view().Intents, b.result())
		}
		w.faulty = pass < 12
		task := b.claim()
		ctx, kill := context.WithCancel(t.Context())
		w.kill, w.killIn = kill, -1
		if w.faulty && pass%2 == 0 {
			w.killIn = w.random.IntN(machines * 3 / 2)
		}
		stop := b.keep()
		task.Act(ctx)
		stop()
		if ctx.Err() != nil {
			b.restart()
			continue
		}
		if err := task.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		kill()
	}
	summary := w.api.Summary()
	if summary.Made != machines || summary.Duplicates > 0 {
		t.Errorf("%d devices were made, %d duplicates: %v", summary.Made, summary.Duplicates, summary.DuplicateTags)
	}
	if d := b.view().Discrepancies; len(d) > 0 {
		t.Errorf("discrepancies: %+v", d)
	}
	findings, err := b.db.Check(t.Context())
	if err != nil || len(findings) > 0 {
		t.Errorf("check: %+v, %v", findings, err)
	}
	for _, m := range b.view().Machines {
		device, err := b.provider.Get(t.Context(), m.ProviderID)
		if err != nil || len(device.Tokens) != 1 {
			t.Fatalf("%+v, %v", device, err)
		}
		b.mustKnow(m.ID, device.Tokens[0])
		if sent := w.userData(t, m.ProviderID); !strings.Contains(sent, "the private half of "+string(device.Tokens[0])) {
			t.Errorf("machine %s got the user data %q", m.ID, sent)
		}
	}
	if w.lost == 0 || w.disturbed == 0 || w.killed == 0 {
		t.Errorf("%d replies were lost, %d requests disturbed, %d processes killed", w.lost, w.disturbed, w.killed)
	}
	t.Logf("%d machines; %d replies were lost, %d requests disturbed, %d processes killed", machines, w.lost, w.disturbed, w.killed)
}

// wire is the simulated API with everything that can go wrong before it. It is used by one
// goroutine at a time, but for the two lists of a provider.
type wire struct {
	api    *equinixapi.API
	random *rand.Rand
	faulty bool

	lost, disturbed, killed int
	// kill is called at the request after killIn others.
	kill   context.CancelFunc
	killIn int
}

// newWire starts an API that is as change says; nil: one that takes no time.
func newWire(t *testing.T, seed uint64, machines, perPage int, change func(*equinixapi.Config)) *wire {
	t.Helper()
	w := &wire{random: rand.New(rand.NewPCG(seed, 0)), faulty: change == nil, killIn: -1}
	config := equinixapi.Config{
		Seed: seed, Token: "a-long-token", Reservations: machines, Hardware: hardware{}, Logger: slog.New(slog.DiscardHandler), MaxPerPage: perPage,
		Plans:  []equinixapi.Plan{{Slug: "c3.small.x86", CPUs: 1, CPU: "Xeon", MemoryGB: 32}},
		Commit: func(...equinixapi.Change) error { return nil },
		Slot: func(slot int) equinixapi.Slot {
			return equinixapi.Slot{
				Plan: "c3.small.x86", Metro: equinixapi.Metros()[0],
				PublicV4: netip.AddrFrom4([4]byte{198, 18, byte(slot >> 8), byte(slot)}), PrivateV4: netip.AddrFrom4([4]byte{10, 0, byte(slot >> 8), byte(slot)}),
				PublicV6: netip.MustParseAddr("2001:db8::2"), MACs: [2]string{"aa:00:00:00:00:01", "aa:00:00:00:00:02"},
			}
		},
		Disturb:   w.disturb,
		Shuffle:   func() bool { return true },
		LoseReply: func() bool { return w.count(25, &w.lost) },
	}
	if change != nil {
		change(&config)
	}
	var err error
	if w.api, err = equinixapi.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.api.Start(ctx)
	t.Cleanup(func() {
		cancel()
		w.api.Wait()
	})
	return w
}

func (w *wire) count(percent int, counter *int) bool {
	if !w.faulty || w.random.IntN(100) >= percent {
		return false
	}
	*counter++
	return true
}

func (w *wire) disturb() equinixapi.Disturbance {
	if !w.count(10, &w.disturbed) {
		return equinixapi.Disturbance{}
	}
	return []equinixapi.Disturbance{{Status: 500}, {Status: 429, RetryAfter: time.Second}, {Cut: true}}[w.random.IntN(3)]
}

// RoundTrip carries a request to the API without a socket, which would keep fake time from passing.
func (w *wire) RoundTrip(request *http.Request) (response *http.Response, err error) {
	if w.killIn--; w.killIn == -1 {
		w.killed++
		// Half of the requests still arrive: what is sent is not taken back by the sender's death.
		defer w.kill()
		if w.random.IntN(2) == 0 {
			return nil, io.ErrUnexpectedEOF
		}
	}
	defer func() {
		if recover() != nil { // how a handler cuts the connection
			response, err = nil, io.ErrUnexpectedEOF
		}
	}()
	recorder := httptest.NewRecorder()
	w.api.ServeHTTP(recorder, request.WithContext(context.WithoutCancel(request.Context())))
	return recorder.Result(), nil
}

// provider returns one that reaches the API through a transport.
func (w *wire) provider(t *testing.T, transport http.RoundTripper) *equinix.Provider {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-long-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := equinix.DefaultConfig()
	config.APIURL, config.TokenFile, config.Project = "http://api.localhost"+equinixapi.Prefix, token, w.api.ProjectID()
	config.SSHKeyLabel, config.SSHPublicKey = "ironherd", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJoeVyVxbaMmrJKsZLEzWh9YgbGbwnoGNdwbmE/Z3MKc"
	config.DevicePrefix, config.OperatingSystem, config.Spacing = "fleet-", "debian_13", 10*time.Millisecond
	p, err := equinix.New(config, provider.Options{HTTP: transport})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// userData returns what the API says that a device was given.
func (w *wire) userData(t *testing.T, device fleet.ProviderID) string {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, equinixapi.Prefix+"/devices/"+string(device)+"/userdata", nil)
	request.Header.Set("X-Auth-Token", "a-long-token")
	recorder := httptest.NewRecorder()
	w.api.ServeHTTP(recorder, request)
	return recorder.Body.String()
}

// hardware is machines that do at once what they are told.
type hardware struct{}

func (hardware) Deploy(context.Context, equinixapi.Deployment, time.Time) error { return nil }
func (hardware) Reset(string, bool) error                                       { return nil }
func (hardware) PowerOff(context.Context, string) error                         { return nil }

func (hardware) PowerOn(context.Context, string) error { return nil }

func (hardware) Remove(context.Context, string) error { return nil }
