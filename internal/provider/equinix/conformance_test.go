package equinix

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/providertest"
	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// hardware is machines that do what they are told when they are told to, and remember it.
type hardware struct {
	mu   sync.Mutex
	seen map[string]providertest.Seen
}

func (h *hardware) see(device string, change func(*providertest.Seen)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen[device]
	change(&seen)
	h.seen[device] = seen
	return nil
}

func start(seen *providertest.Seen) { seen.On, seen.Starts = true, seen.Starts+1 }

func (h *hardware) Deploy(ctx context.Context, d equinixapi.Deployment, notBefore time.Time) error {
	select {
	case <-time.After(time.Until(notBefore)):
	case <-ctx.Done():
		return ctx.Err()
	}
	return h.see(d.Device, func(seen *providertest.Seen) {
		start(seen)
		seen.Installs++
	})
}

func (h *hardware) Reset(device string, _ bool) error { return h.see(device, start) }

func (h *hardware) PowerOff(_ context.Context, device string) error {
	return h.see(device, func(seen *providertest.Seen) { seen.On = false })
}

func (h *hardware) PowerOn(_ context.Context, device string) error { return h.see(device, start) }

func (h *hardware) Remove(_ context.Context, device string) error {
	return h.see(device, func(seen *providertest.Seen) { *seen = providertest.Seen{} })
}

// simulated is a provider on the simulated API, with what the suite needs to change it.
type simulated struct {
	t        *testing.T
	api      *equinixapi.API
	hardware hardware
	provider *Provider

	mu        sync.Mutex
	disturb   equinixapi.Disturbance
	loseReply bool
}

// free is how many reservations there are. The API gives two rows a page, in another order each
// time that nobody asks for one.
const free = 5

func newSimulated(t *testing.T) *simulated {
	t.Helper()
	s := simulate(t, func(*equinixapi.Config) {})
	server := httptest.NewServer(s.api)
	t.Cleanup(server.Close)
	s.provide(server.URL, provider.Options{})
	return s
}

// simulate starts a simulated API that is as change says.
func simulate(t *testing.T, change func(*equinixapi.Config)) *simulated {
	t.Helper()
	s := &simulated{t: t, hardware: hardware{seen: make(map[string]providertest.Seen)}}
	config := equinixapi.Config{
		Seed: 1, Token: apiToken, Reservations: free, Hardware: &s.hardware, MaxPerPage: 2, Logger: slog.New(slog.DiscardHandler),
		Plans:  []equinixapi.Plan{{Slug: "c3.small.x86", CPUs: 1, CPU: "Xeon", MemoryGB: 32}},
		Commit: func(...equinixapi.Change) error { return nil },
		Slot: func(slot int) equinixapi.Slot {
			return equinixapi.Slot{
				Plan: "c3.small.x86", Metro: equinixapi.Metros()[0],
				PublicV4: netip.AddrFrom4([4]byte{192, 0, 2, byte(slot + 2)}), PrivateV4: netip.AddrFrom4([4]byte{10, 0, 0, byte(slot + 2)}),
				PublicV6: netip.MustParseAddr("2001:db8::2"), MACs: [2]string{"aa:00:00:00:00:01", "aa:00:00:00:00:02"},
			}
		},
		Shuffle: func() bool { return true },
		Disturb: func() equinixapi.Disturbance {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.disturb
		},
		LoseReply: func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			lose := s.loseReply
			s.loseReply = false
			return lose
		},
	}
	change(&config)
	var err error
	if s.api, err = equinixapi.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	s.api.Start(ctx)
	t.Cleanup(func() {
		cancel()
		s.api.Wait()
	})
	return s
}

// provide makes the provider, which finds the API there.
func (s *simulated) provide(url string, options provider.Options) {
	s.t.Helper()
	config := testConfig(s.t, url+equinixapi.Prefix)
	config.Project, config.OperatingSystem = s.api.ProjectID(), "debian_13"
	var err error
	if s.provider, err = New(config, options); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.provider.CloseIdleConnections)
}

// ask asks the API beneath the provider.
func (s *simulated) ask(method, path, body string, answer any) int {
	s.t.Helper()
	request := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	request.Header.Set("X-Auth-Token", apiToken)
	recorder := httptest.NewRecorder()
	s.api.ServeHTTP(recorder, request)
	if answer != nil {
		if err := json.Unmarshal(recorder.Body.Bytes(), answer); err != nil {
			s.t.Errorf("%s %s: %v", method, path, err)
		}
	}
	return recorder.Code
}

func (s *simulated) machines() int {
	var list struct {
		Meta struct{ Total int }
	}
	s.ask(http.MethodGet, "/projects/"+s.api.ProjectID()+"/devices", "", &list)
	return list.Meta.Total
}

func (s *simulated) occupy(capacity fleet.CapacityID) {
	body := fmt.Sprintf(`{"operating_system":"debian_13","hardware_reservation_id":%q,"tags":["theirs"]}`, capacity)
	if code := s.ask(http.MethodPost, "/projects/"+s.api.ProjectID()+"/devices", body, nil); code != http.StatusCreated {
		s.t.Errorf("occupy: %d", code)
	}
}

// remove deletes a device, as soon as that is allowed.
func (s *simulated) remove(id fleet.ProviderID) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.ask(http.MethodDelete, "/devices/"+string(id), "", nil) != http.StatusNoContent {
		select {
		case <-tick.C:
		case <-s.t.Context().Done():
			s.t.Error("the device cannot be removed")
			return
		}
	}
}

func (s *simulated) set(disturbance equinixapi.Disturbance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disturb = disturbance
}

func (s *simulated) reservations() []fleet.CapacityID {
	var list struct {
		Reservations []struct{ ID fleet.CapacityID } `json:"hardware_reservations"`
	}
	ids := make([]fleet.CapacityID, 0, free)
	for page := range 3 {
		s.ask(http.MethodGet, fmt.Sprintf("/projects/%s/hardware-reservations?sort_by=id&per_page=2&page=%d", s.api.ProjectID(), page+1), "", &list)
		for _, reservation := range list.Reservations {
			ids = append(ids, reservation.ID)
		}
	}
	return ids
}

func TestConformanceOnTheSimulatedAPI(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		t.Helper()
		s := newSimulated(t)
		return providertest.Harness{
			Provider: s.provider, Free: s.reservations(), Absent: device1, AbsentCapacity: reservation1, NotAnID: "web-3",
			Machines: s.machines, Occupy: s.occupy, Remove: s.remove,
			Seen: func(id fleet.ProviderID) (seen providertest.Seen) {
				_ = s.hardware.see(string(id), func(now *providertest.Seen) { seen = *now })
				return seen
			},
			LoseCreateReply: func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.loseReply = true
			},
			// Not for ever: a handler that has not read its body does not notice that its caller left.
			Stall: func() { s.set(equinixapi.Disturbance{Delay: 3 * time.Second}) },
			Break: map[fleet.Kind]func(){
				fleet.KindUnauthenticated: func() {
					if err := os.WriteFile(s.provider.config.TokenFile, []byte("revoked"), 0o600); err != nil {
						t.Error(err)
					}
				},
				fleet.KindThrottled: func() {
					s.set(equinixapi.Disturbance{Status: http.StatusTooManyRequests, RetryAfter: 10 * time.Minute})
				},
			},
		}
	})
}

// A machine's way: free, created, active, rebooted, released, free again.
func TestLifeOfAMachine(t *testing.T) {
	t.Parallel()
	s := newSimulated(t)
	capacity := s.reservations()[0]
	made, err := s.provider.Create(t.Context(), provider.CreateRequest{
		Capacity: capacity, Token: fleet.NewToken(), Machine: fleet.NewMachineID(), HostKey: hostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for entry := made; entry.Status != fleet.ProviderStatusActive; <-tick.C {
		if entry, err = s.provider.Get(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		made = entry
	}
	if made.InjectedKey != hostKey().Public {
		t.Errorf("it was created with the host key %q", made.InjectedKey)
	}
	if made.Capacity != capacity || !made.Address.Is4() || made.Location == "" || !strings.HasPrefix(made.Hostname, "fleet-") || made.CreatedAt.IsZero() {
		t.Errorf("%+v", made)
	}
	if err := s.provider.Reboot(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := s.provider.Release(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.provider.Get(t.Context(), made.ID); fleet.KindOf(err) != fleet.KindNotFound {
		t.Error(err)
	}
	entries, err := s.provider.List(t.Context())
	if err != nil || len(entries) != free {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}
