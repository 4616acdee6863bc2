package equinixapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

// benchRig has 1,000 devices; they are active if provisioning takes no time.
func benchRig(b *testing.B, change func(*equinixapi.Config)) *rig {
	b.Helper()
	r := newRig(b, func(cfg *equinixapi.Config) {
		cfg.Reservations = 1000
		if change != nil {
			change(cfg)
		}
	})
	b.Cleanup(func() { r.stop() })
	for range 500 {
		for _, plan := range []string{"c3.small.x86", "m3.large.x86"} {
			body := `{"plan":"` + plan + `","operating_system":"debian_13","metro":"any","hardware_reservation_id":"next-available"}`
			if code := r.ask("POST", "/projects/"+r.api.ProjectID()+"/devices", body, nil); code != http.StatusCreated {
				b.Fatal(code)
			}
		}
	}
	return r
}

// BenchmarkListProvisioning lists devices to which something is happening.
func BenchmarkListProvisioning(b *testing.B) {
	r := benchRig(b, func(cfg *equinixapi.Config) { cfg.Durations.Queued = equinixapi.Span{Min: time.Hour} })
	path := "/projects/" + r.api.ProjectID() + "/devices?per_page=1000&include=facility,hardware_reservation"
	for b.Loop() {
		r.ask("GET", path, "", nil)
	}
}

// BenchmarkListActive lists devices to which nothing happens.
func BenchmarkListActive(b *testing.B) {
	r := benchRig(b, nil)
	for r.api.Summary().States["active"] < 1000 {
	}
	path := "/projects/" + r.api.ProjectID() + "/devices?per_page=1000&include=facility,hardware_reservation"
	for b.Loop() {
		r.ask("GET", path, "", nil)
	}
}

func BenchmarkListReservations(b *testing.B) {
	r := benchRig(b, nil)
	path := "/projects/" + r.api.ProjectID() + "/hardware-reservations?per_page=1000&include=device"
	for b.Loop() {
		r.ask("GET", path, "", nil)
	}
}

func BenchmarkCreate(b *testing.B) {
	r := newRig(b, func(cfg *equinixapi.Config) { cfg.Reservations = 100_000 })
	b.Cleanup(func() { r.stop() })
	var list struct {
		Reservations []struct{ ID string } `json:"hardware_reservations"`
	}
	r.ask("GET", "/projects/"+r.api.ProjectID()+"/hardware-reservations?per_page=1000&sort_by=id", "", &list)
	for i := 0; b.Loop(); i++ {
		if i == len(list.Reservations) {
			b.StopTimer()
			r.stop()
			clear(r.state)
			r.start()
			i = 0
			b.StartTimer()
		}
		body := `{"operating_system":"debian_13","hardware_reservation_id":"` + list.Reservations[i].ID + `"}`
		if code := r.ask("POST", "/projects/"+r.api.ProjectID()+"/devices", body, nil); code != http.StatusCreated {
			b.Fatal(code)
		}
	}
}
