package remote

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// place is where agents are started: base is where the host keeps them, root is where its files are
// here.
type place struct {
	key        *Key
	target     Target
	base, root string
}

// bareStart is the least that starts an agent: dial a host whose key is known, upload, execute. It
// neither compresses nor asks whether the agent arrived whole.
func bareStart(p place, data []byte) (output string, err error) {
	known, _, _, _, err := ssh.ParseAuthorizedKey([]byte(p.target.Trust.Pinned[0]))
	if err != nil {
		return "", err
	}
	client, err := ssh.Dial("tcp", p.target.Address.String(), &ssh.ClientConfig{
		User: p.target.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(p.key.signer)}, HostKeyCallback: ssh.FixedHostKey(known),
		HostKeyAlgorithms: []string{known.Type()},
	})
	if err != nil {
		return "", err
	}
	defer client.Close()
	path := p.base + "-bare"
	if err := bareUpload(client, path, data); err != nil {
		return "", err
	}
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	said, err := session.Output(path + " takeover")
	return string(said), err
}

func bareUpload(client *ssh.Client, path string, data []byte) error {
	files, err := sftp.NewClient(client)
	if err != nil {
		return err
	}
	defer files.Close()
	file, err := files.Create(path)
	if err != nil {
		return err
	}
	if _, err := file.ReadFrom(bytes.NewReader(data)); err != nil {
		return err
	}
	if err := file.Chmod(0o755); err != nil {
		return err
	}
	return file.Close()
}

// ourStart is the same by this package, on a host that does not have the agent.
func ourStart(ctx context.Context, p place, content *Content) (output string, err error) {
	host, err := NewDialer(p.key, Options{}).Dial(ctx, p.target)
	if err != nil {
		return "", err
	}
	defer host.Close()
	uploaded, err := host.Upload(ctx, content, p.base, 0o755)
	if err != nil {
		return "", err
	}
	said, err := host.Run(ctx, Command{Args: []string{uploaded.Path, "takeover"}})
	return string(said), err
}

// What starting an agent costs beside a bare loop of x/crypto/ssh, by turns on the same host. The
// rate is the median of the ratios, pair by pair: a machine with other work slows both sides of a
// pair. Processor time is that of this process, which the simulated host shares and sshd does not.
// Below the goal it fails.
func BenchmarkStartBesideBare(b *testing.B) {
	data := append([]byte("#!/bin/sh\necho started\nexit 0\n"), program(12<<20)...)
	content := newContent(data)
	content.gzipped()
	for name, open := range map[string]func(*testing.B) place{
		"simulated": func(b *testing.B) place {
			b.Helper()
			key := newTestKey(b)
			target, root := startSimulated(b, key)
			return place{key, target, "/root/agent", root}
		},
		"sshd": func(b *testing.B) place {
			b.Helper()
			s := startSSHD(b)
			return place{s.key, s.target(), filepath.Join(b.TempDir(), "agent"), ""}
		},
	} {
		b.Run(name, func(b *testing.B) {
			p := open(b)
			type took struct{ wall, cpu []float64 }
			var ours, bare took
			run := func(to *took, path string, start func() (string, error)) {
				began, before := time.Now(), cpu(b)
				said, err := start()
				to.wall, to.cpu = append(to.wall, time.Since(began).Seconds()), append(to.cpu, float64(cpu(b)-before)/1e6)
				if err == nil && said == "" {
					err = fmt.Errorf("the agent said nothing")
				}
				if err == nil {
					err = os.Remove(filepath.Join(p.root, path))
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				run(&bare, p.base+"-bare", func() (string, error) { return bareStart(p, data) })
				run(&ours, content.Path(p.base), func() (string, error) { return ourStart(b.Context(), p, content) })
			}
			ratios := make([]float64, len(ours.wall))
			for i := range ratios {
				ratios[i] = bare.wall[i] / ours.wall[i]
			}
			b.ReportMetric(median(ratios), "×bare-rate")
			if said, missed := verdict(ratios); missed {
				b.Error(said)
			} else {
				b.Log(said)
			}
			b.ReportMetric(1000*median(ours.wall), "ours-ms")
			b.ReportMetric(1000*median(bare.wall), "bare-ms")
			b.ReportMetric(median(ours.cpu), "ours-cpu-ms")
			b.ReportMetric(median(bare.cpu), "bare-cpu-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// goal is the least rate beside a bare loop, and pairs is how many starts of each show it.
const (
	goal  = 0.8
	pairs = 5
)

// verdict says whether the goal was met, and reports whether it was missed.
func verdict(ratios []float64) (said string, missed bool) {
	rate := median(ratios)
	switch {
	case len(ratios) < pairs:
		return fmt.Sprintf("%.2f× the rate of a bare loop; %d starts of each are too few to say whether the goal of ≥ %.1f× is met, use -benchtime %dx",
			rate, len(ratios), goal, pairs), false
	case rate < goal:
		return fmt.Sprintf("goal MISSED: %.2f× the rate of a bare loop, want ≥ %.1f×", rate, goal), true
	}
	return fmt.Sprintf("goal met: %.2f× the rate of a bare loop, want ≥ %.1f×", rate, goal), false
}

// TestVerdictOnTheBenchmark: a benchmark that misses its goal says so and fails, and two slow
// starts are no verdict.
func TestVerdictOnTheBenchmark(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ratios []float64
		said   string
		missed bool
	}{
		{[]float64{1.2, 0.1, 1.3, 0.9, 0.8}, "goal met: 0.90×", false},
		{[]float64{0.8, 0.8, 0.8, 0.8, 0.8}, "goal met: 0.80×", false},
		{[]float64{0.7, 0.1, 1.3, 0.9, 0.75}, "goal MISSED: 0.75×", true},
		{[]float64{0.2, 0.3}, "0.30× the rate of a bare loop; 2 starts of each are too few", false},
	} {
		if said, missed := verdict(c.ratios); !strings.HasPrefix(said, c.said) || missed != c.missed {
			t.Errorf("%v: %q, missed is %t", c.ratios, said, missed)
		}
	}
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
