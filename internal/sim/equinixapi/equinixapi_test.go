package equinixapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packethost/packngo"
	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "test-token"

// hardware plays machines that do what they are told.
type hardware struct {
	mu       sync.Mutex
	deployed map[string]equinixapi.Deployment
	calls    []string
}

func (h *hardware) call(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
}

// did returns what the machines were told, in order.
func (h *hardware) did() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *hardware) Deploy(ctx context.Context, d equinixapi.Deployment, notBefore time.Time) error {
	timer := time.NewTimer(time.Until(notBefore))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deployed[d.Device] = d
	h.calls = append(h.calls, fmt.Sprintf("deploy %d", d.Generation))
	return nil
}

func (h *hardware) Reset(_ string, rescue bool) error      { h.call("reset %v", rescue); return nil }
func (h *hardware) PowerOff(context.Context, string) error { h.call("off"); return nil }
func (h *hardware) PowerOn(context.Context, string) error  { h.call("on"); return nil }
func (h *hardware) Remove(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.deployed, id)
	return nil
}

// rig is a provider and its durable state.
type rig struct {
	t        testing.TB
	api      *equinixapi.API
	hardware *hardware
	state    map[string][]byte
	config   equinixapi.Config
	stop     func()
}

func newRig(tb testing.TB, change func(*equinixapi.Config)) *rig {
	tb.Helper()
	r := &rig{t: tb, hardware: &hardware{deployed: map[string]equinixapi.Deployment{}}, state: map[string][]byte{}}
	r.config = equinixapi.Config{
		Seed: 1, Token: token, Reservations: 5, OnDemand: 40, Hardware: r.hardware, Logger: slog.New(slog.DiscardHandler),
		Plans: []equinixapi.Plan{
			{Slug: "c3.small.x86", CPUs: 1, CPU: "Xeon", MemoryGB: 32, Drives: []equinixapi.Drive{{Count: 2, Size: "480GB", Type: "SSD"}}, NICs: 2, NIC: "10Gbps"},
			{Slug: "m3.large.x86", CPUs: 1, CPU: "EPYC", MemoryGB: 256, ReservedOnly: true},
		},
		Slot: func(slot int) equinixapi.Slot {
			return equinixapi.Slot{
				Plan: []string{"c3.small.x86", "m3.large.x86"}[slot%2], Metro: equinixapi.Metros()[slot%3],
				PublicV4: netip.AddrFrom4([4]byte{127, 16, 0, byte(slot + 2)}), PrivateV4: netip.AddrFrom4([4]byte{10, 0, 0, byte(slot + 2)}),
				PublicV6: netip.MustParseAddr("2001:db8::2"), MACs: [2]string{fmt.Sprintf("aa:00:00:00:00:%02x", slot), fmt.Sprintf("aa:00:00:00:01:%02x", slot)},
			}
		},
		Commit: func(changes ...equinixapi.Change) error {
			for _, c := range changes {
				if c.Value == nil {
					delete(r.state, c.Key)
				} else {
					r.state[c.Key] = c.Value
				}
			}
			return nil
		},
	}
	if change != nil {
		change(&r.config)
	}
	r.start()
	return r
}

// start starts a provider from the durable state; what ran before is to be stopped first.
func (r *rig) start() {
	r.t.Helper()
	r.config.State = maps.Clone(r.state)
	var err error
	if r.api, err = equinixapi.New(r.config); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	r.stop = func() { cancel(); r.api.Wait() }
	r.api.Start(ctx)
}

// client is packngo, in front of the provider.
func (r *rig) client() *packngo.Client {
	r.t.Helper()
	server := httptest.NewServer(r.api)
	r.t.Cleanup(func() { server.Close(); r.stop() })
	client, err := packngo.NewClientWithBaseURL("test", token, server.Client(), server.URL+"/metal/v1/")
	if err != nil {
		r.t.Fatal(err)
	}
	return client
}

func request(plan, metro, reservation string) *packngo.DeviceCreateRequest {
	return &packngo.DeviceCreateRequest{Hostname: "m1", Plan: plan, Metro: metro, OS: "debian_13", HardwareReservationID: reservation}
}

func publicKey(tb testing.TB, seed byte) string {
	tb.Helper()
	private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	public, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		tb.Fatal(err)
	}
	return string(ssh.MarshalAuthorizedKey(public))
}

func statusOf(err error) int {
	if e, ok := errors.AsType[*packngo.ErrorResponse](err); ok {
		return e.Response.StatusCode
	}
	return 0
}

func must[T any](tb testing.TB) func(T, *packngo.Response, error) T {
	tb.Helper()
	return func(value T, _ *packngo.Response, err error) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

func TestADeviceOnAReservation(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.client()
	project := r.api.ProjectID()
	k, _, err := c.SSHKeys.Create(&packngo.SSHKeyCreateRequest{Label: "mine", Key: publicKey(t, 1), ProjectID: project})
	if err != nil || k.Owner.Href == "" || k.Key != publicKey(t, 1) || k.FingerPrint == "" {
		t.Fatalf("key %+v, %v", k, err)
	}
	reservations := must[[]packngo.HardwareReservation](t)(c.HardwareReservations.List(project, &packngo.ListOptions{SortBy: "id"}))
	if len(reservations) != 5 || !reservations[0].Provisionable || reservations[0].Device != nil || reservations[0].Plan.Slug == "" {
		t.Fatalf("reservations %+v", reservations)
	}
	res := reservations[0]
	q := request(res.Plan.Slug, "", res.ID)
	q.ProjectID, q.Tags = project, []string{"tag-1"}
	d := must[*packngo.Device](t)(c.Devices.Create(q))
	if d.State != "queued" || d.ShortID != d.ID[:8] || len(d.Network) != 0 || len(d.ProvisionEvents) != 10 {
		t.Fatalf("created %+v", d)
	}
	d = waitFor(t, c, d.ID, "active")
	info := d.GetNetworkInfo()
	if !strings.HasPrefix(info.PublicIPv4, "127.16.0.") || info.PrivateIPv4 == "" || info.PublicIPv6 == "" || d.GetNetworkType() != packngo.NetworkTypeL3 {
		t.Errorf("network %+v, type %s", info, d.GetNetworkType())
	}
	if d.RootPassword == "" || d.Plan.Slug != res.Plan.Slug || d.OS.Slug != "debian_13" || d.Facility.Code == "" || d.CreatedBy == nil {
		t.Errorf("active %+v", d)
	}
	if got := r.hardware.deployed[d.ID]; !slices.Equal(got.AuthorizedKeys, []string{publicKey(t, 1)}) {
		t.Errorf("deployed with keys %q", got.AuthorizedKeys)
	}
	bare := must[*packngo.HardwareReservation](t)(c.HardwareReservations.Get(res.ID, nil))
	if bare.Provisionable || bare.Device == nil || bare.Device.ID != "" || !strings.HasSuffix(bare.Device.Href, d.ID) {
		t.Errorf("without include: %+v", bare.Device)
	}
	full := must[*packngo.HardwareReservation](t)(c.HardwareReservations.Get(res.ID, &packngo.GetOptions{Includes: []string{"device"}}))
	if full.Device == nil || full.Device.ID != d.ID || !slices.Equal(full.Device.Tags, []string{"tag-1"}) {
		t.Errorf("with include: %+v", full.Device)
	}
	if _, _, err := c.Devices.Create(q); statusOf(err) != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), "Server is not provisionable") {
		t.Errorf("second device on a reservation: %v", err)
	}
	if _, err := c.Devices.Delete(d.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Devices.Get(d.ID, nil); statusOf(err) != http.StatusNotFound {
		t.Errorf("after the delete: %v", err)
	}
}

func waitFor(t *testing.T, c *packngo.Client, id, state string) *packngo.Device {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		d := must[*packngo.Device](t)(c.Devices.Get(id, nil))
		if d.State == state {
			return d
		}
	}
	t.Fatalf("device %s does not become %s", id, state)
	return nil
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.client()
	project := r.api.ProjectID()
	create := func(q *packngo.DeviceCreateRequest) error {
		q.ProjectID = project
		_, _, err := c.Devices.Create(q)
		return err
	}
	const nobody = "00000000-0000-4000-8000-000000000000"
	for name, f := range map[string]struct {
		err    error
		status int
		text   string
	}{
		"no plan":            {create(request("", "am", "")), 422, "Plan can't be blank"},
		"bad plan":           {create(request("x9", "am", "")), 422, "x9 is not a valid plan"},
		"no location":        {create(request("c3.small.x86", "", "")), 422, "Facility can't be blank"},
		"bad metro":          {create(request("c3.small.x86", "xx", "")), 422, "xx is not a valid metro"},
		"nothing there":      {create(request("c3.small.x86", "ty", "")), 422, "There aren't available servers in that metro"},
		"no reservation":     {create(request("c3.small.x86", "", nobody)), 404, "Not found"},
		"nothing free":       {create(request("c3.small.x86", "ty", "next-available")), 503, " no available hardware reservations "},
		"underscore in name": {create(&packngo.DeviceCreateRequest{Hostname: "a_b", Plan: "c3.small.x86", Metro: "am", OS: "debian_13"}), 422, "Hostname"},
	} {
		if statusOf(f.err) != f.status || !strings.Contains(f.err.Error(), f.text) {
			t.Errorf("%s: %v, want %d with %q", name, f.err, f.status, f.text)
		}
	}
	if _, _, err := c.Projects.Get(nobody, nil); statusOf(err) != 404 {
		t.Errorf("unknown project: %v", err)
	}
	c.APIKey = "wrong"
	_, _, err := c.Projects.List(nil)
	e, ok := errors.AsType[*packngo.ErrorResponse](err)
	if !ok || e.Response.StatusCode != 401 || !strings.HasPrefix(e.SingleError, "Invalid") || len(e.Errors) != 0 {
		t.Errorf("wrong token: %#v", err)
	}
}

func TestListsHaveEverythingOnce(t *testing.T) {
	t.Parallel()
	for _, stable := range []bool{false, true} {
		t.Run(fmt.Sprint("stable ", stable), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(cfg *equinixapi.Config) {
				cfg.Reservations, cfg.Shuffle = 37, func() bool { return !stable }
			})
			c := r.client()
			project := r.api.ProjectID()
			for i := range 37 {
				q := request("c3.small.x86", "any", "next-available")
				if i%2 == 1 {
					q.Plan = "m3.large.x86"
				}
				q.ProjectID, q.Hostname = project, fmt.Sprintf("m%02d", i)
				if _, _, err := c.Devices.Create(q); err != nil && i < 36 {
					t.Fatal(err)
				}
			}
			devices := must[[]packngo.Device](t)(c.Devices.List(project, &packngo.ListOptions{SortBy: "hostname"}))
			names := map[string]bool{}
			for i, d := range devices {
				names[d.Hostname] = true
				if i > 0 && devices[i-1].Hostname > d.Hostname {
					t.Errorf("%s comes before %s", devices[i-1].Hostname, d.Hostname)
				}
			}
			if len(devices) < 36 || len(names) != len(devices) {
				t.Errorf("%d devices, %d names", len(devices), len(names))
			}
			unsorted := must[[]packngo.Device](t)(c.Devices.List(project, nil))
			seen := map[string]bool{}
			for _, d := range unsorted {
				seen[d.ID] = true
			}
			if whole := len(seen) == len(devices); whole != stable {
				t.Errorf("an unsorted list of several pages has %d of %d", len(seen), len(devices))
			}
			var two struct {
				Devices []any
				Meta    struct {
					Total       int
					CurrentPage int `json:"current_page"`
					LastPage    int `json:"last_page"`
					Next        *packngo.Href
				}
			}
			r.ask("GET", "/metal/v1/projects/"+project+"/devices?page=2&per_page=7", "", &two)
			if len(two.Devices) != 7 || two.Meta.Total != len(devices) || two.Meta.CurrentPage != 2 || two.Meta.Next == nil ||
				strings.HasPrefix(two.Meta.Next.Href, "/metal") || two.Meta.LastPage != (len(devices)+6)/7 {
				t.Errorf("page 2 has %d, meta %+v", len(two.Devices), two.Meta)
			}
			found := must[[]packngo.Device](t)(c.Devices.List(project, &packngo.ListOptions{Search: "m03"}))
			if len(found) != 1 || found[0].Hostname != "m03" {
				t.Errorf("search found %v", found)
			}
			empty := must[[]packngo.Device](t)(c.Devices.List(project, (&packngo.ListOptions{}).Filter("tag", "none")))
			if len(empty) != 0 {
				t.Errorf("filter by tag found %v", empty)
			}
		})
	}
}

func TestPowerAndReinstall(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.client()
	project := r.api.ProjectID()
	q := request("c3.small.x86", "any", "")
	q.ProjectID = project
	id := must[*packngo.Device](t)(c.Devices.Create(q)).ID
	waitFor(t, c, id, "active")
	for _, do := range []struct {
		act   func(string) (*packngo.Response, error)
		state string
	}{
		{c.Devices.Reboot, "active"},
		{c.Devices.Rescue, "active"},
		{c.Devices.PowerOff, "inactive"},
		{c.Devices.PowerOn, "active"},
		{func(id string) (*packngo.Response, error) {
			return c.Devices.Reinstall(id, &packngo.DeviceReinstallFields{OperatingSystem: "debian_12"})
		}, "active"},
	} {
		if response, err := do.act(id); err != nil || response.StatusCode != http.StatusAccepted {
			t.Fatalf("%v, %v", response, err)
		}
		waitFor(t, c, id, do.state)
	}
	if want := []string{"deploy 1", "reset false", "reset true", "off", "on", "deploy 2"}; !slices.Equal(r.hardware.calls, want) {
		t.Errorf("hardware was told %q, want %q", r.hardware.calls, want)
	}
	if d := waitFor(t, c, id, "active"); d.OS.Slug != "debian_12" {
		t.Errorf("reinstalled with %s", d.OS.Slug)
	}
	events := must[[]packngo.Event](t)(c.Devices.ListEvents(id, nil))
	kinds := map[string]int{}
	for i, e := range events {
		kinds[e.Type]++
		if i > 0 && events[i-1].CreatedAt.Before(e.CreatedAt.Time) {
			t.Errorf("event %d is older than event %d", i-1, i)
		}
	}
	for kind, n := range map[string]int{"provisioning.110": 2, "power.200": 4, "power.202": 1, "power.203": 2, "power.204": 1} {
		if kinds[kind] != n {
			t.Errorf("%d events %s, want %d", kinds[kind], kind, n)
		}
	}
	event := must[*packngo.Event](t)(c.Events.Get(events[0].ID, nil))
	if event.ID != events[0].ID {
		t.Errorf("event %+v", event)
	}
	if _, err := c.Devices.PowerOn(id); statusOf(err) != 422 {
		t.Errorf("power on of what is on: %v", err)
	}
	if _, err := c.Devices.Lock(id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Devices.Delete(id, true); statusOf(err) != 422 {
		t.Errorf("delete of a locked device: %v", err)
	}
}
