package sim_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packethost/packngo"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/ironherd/ironherd/internal/sim"
)

// BenchmarkFleet makes machines, and then connects to each and executes something on it. It reports
// the time for each machine of both; run it with -benchtime 2000x.
func BenchmarkFleet(b *testing.B) {
	played := &agents{}
	w, err := sim.Open(b.Context(), sim.Config{
		Dir: b.TempDir(), Seed: 5, Speed: 1000, Machines: b.N, Agent: played.run, Images: []sim.ImageSpec{{Name: "small", Size: 4 << 20}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(context.WithoutCancel(b.Context())) })
	defer running.Wait()
	defer func() { _ = w.Close() }()
	client, err := packngo.NewClientWithBaseURL("bench", w.Token(), &http.Client{}, w.URL()+"/")
	if err != nil {
		b.Fatal(err)
	}
	key := newSigner(b)
	project := w.ProjectID()
	_, _, err = client.SSHKeys.Create(&packngo.SSHKeyCreateRequest{
		Label: "bench", Key: string(ssh.MarshalAuthorizedKey(key.PublicKey())), ProjectID: project,
	})
	if err != nil {
		b.Fatal(err)
	}
	reservations, _, err := client.HardwareReservations.List(project, &packngo.ListOptions{SortBy: "id", PerPage: 1000})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	start := time.Now()
	for i, reservation := range reservations {
		_, _, err := client.Devices.Create(&packngo.DeviceCreateRequest{
			Hostname: fmt.Sprintf("m%d", i), OS: "debian_13", ProjectID: project, HardwareReservationID: reservation.ID,
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for w.Status().DeviceStates["active"] < b.N {
		<-look.C
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N), "µs/device")
	devices, _, err := client.Devices.List(project, &packngo.ListOptions{SortBy: "id", PerPage: 1000})
	if err != nil {
		b.Fatal(err)
	}
	start = time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for _, d := range devices {
		group.Go(func() error {
			shell, err := dialWith(d.GetNetworkInfo().PublicIPv4, w.SSHPort(), key)
			if err != nil {
				return err
			}
			defer func() { _ = shell.Close() }()
			session, err := shell.NewSession()
			if err != nil {
				return err
			}
			session.Stdin = strings.NewReader("input")
			out, err := session.Output("sha256sum")
			if err == nil && !strings.HasPrefix(string(out), "c96c6d5be8d08a12") {
				err = fmt.Errorf("%s says %q", d.Hostname, out)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N), "µs/connection")
}
