package remote

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/ironherd/ironherd/internal/sim/sshhost"
)

// startSimulated starts a simulated machine that admits the key and executes every program by
// saying its size.
func startSimulated(tb testing.TB, key *Key) (Target, string) {
	tb.Helper()
	root := filepath.Join(tb.TempDir(), "machine")
	if err := os.MkdirAll(filepath.Join(root, "root/.ssh"), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "root/.ssh/authorized_keys"), []byte(key.Public()+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	store, err := sshhost.OpenStore(filepath.Join(tb.TempDir(), "store"))
	if err != nil {
		tb.Fatal(err)
	}
	hostKey, _, err := NewKey("machine")
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.77.1.4:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := sshhost.NewServer(sshhost.Options{
		Root: root, Hostname: "machine", HostKey: hostKey.signer, Store: store, Logger: slog.New(slog.DiscardHandler),
		Execute: func(_ context.Context, program sshhost.Program) sshhost.Status {
			info, err := os.Stat(program.File)
			if err != nil {
				return sshhost.Status{Code: 1}
			}
			input, _ := io.ReadAll(program.Stdin)
			fmt.Fprintf(program.Stdout, "%d bytes, %v, %s", info.Size(), program.Args, input)
			return sshhost.Status{}
		},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(ctx, listener)
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	address := listener.Addr().(*net.TCPAddr).AddrPort()
	return Target{Address: address, User: "root", Trust: Trust{Pinned: []string{hostKey.Public()}}}, root
}

// start does what a takeover does: dial, upload, run.
func start(ctx context.Context, dialer *Dialer, target Target, content *Content) (Uploaded, string, error) {
	host, err := dialer.Dial(ctx, target)
	if err != nil {
		return Uploaded{}, "", err
	}
	defer host.Close()
	uploaded, err := host.Upload(ctx, content, "/root/agent", 0o755)
	if err != nil {
		return Uploaded{}, "", err
	}
	output, err := host.Run(ctx, Command{Args: []string{uploaded.Path, "takeover"}})
	return uploaded, string(output), err
}

func TestASimulatedHostIsLikeARealOne(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	target, root := startSimulated(t, key)
	content := newContent(program(1 << 20))
	for _, sent := range []bool{true, false} {
		uploaded, output, err := start(t.Context(), NewDialer(key, Options{}), target, content)
		if err != nil || output != "1048576 bytes, [takeover], " {
			t.Fatalf("%q, %v", output, err)
		}
		if (uploaded.Sent > 0) != sent || uploaded.Sent >= content.Size() {
			t.Errorf("%d of %d bytes were sent", uploaded.Sent, content.Size())
		}
		checkDir(t, filepath.Join(root, "root/.ssh/x"), filepath.Join(root, "root/.ssh/authorized_keys"))
		if info, err := os.Stat(filepath.Join(root, uploaded.Path)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

// What starting an agent costs, client and simulated host together, which share this process.
func BenchmarkStart(b *testing.B) {
	key := newTestKey(b)
	target, root := startSimulated(b, key)
	dialer := NewDialer(key, Options{})
	content := newContent(program(12 << 20))
	content.gzipped()
	for name, present := range map[string]bool{"sent": false, "present": true} {
		b.Run(name, func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				uploaded, _, err := start(b.Context(), dialer, target, content)
				if err != nil {
					b.Fatal(err)
				}
				if !present {
					if err := os.Remove(filepath.Join(root, uploaded.Path)); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}
