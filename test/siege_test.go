package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/test/process"
)

var siegeConnections = flag.Int("siege", 0, "hostile connections at one time, for a minute; 0: a few, as long as the fleet takes")

// TestSiege brings a fleet up while hostile connections, from many addresses, do nothing, say
// little, or send as much as they can, on the agent API and on the operator API. They hold few
// descriptors of the control plane and little of its memory, and agents get through.
func TestSiege(t *testing.T) {
	t.Parallel()
	connections, least := 300, 5*time.Second
	if *siegeConnections > 0 {
		connections, least = *siegeConnections, time.Minute
	}
	ctx := bounded(t, 10*time.Minute)
	operators := freeAddress(t)
	herd := &process.Herd{
		Ironherd: ironherd, Dir: shortDir(t), Machines: 5, PlaneArgs: []string{"--set", "operator_api.listen=" + operators},
	}
	if err := herd.StartWorld(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(t, herd); err != nil {
			t.Error(err)
		}
	})
	startPlane(ctx, t, herd)
	pid := herd.Plane().Pid()
	before := heldBy(t, pid)
	siege, lift := context.WithCancel(ctx)
	army := &army{agents: herd.Endpoint(), operators: operators}
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() { army.attack(siege, i) })
	}
	most := before
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for siege.Err() == nil {
			now := heldBy(t, pid)
			most.descriptors, most.memory = max(most.descriptors, now.descriptors), max(most.memory, now.memory)
			<-tick.C
		}
	}()
	begun := time.Now()
	if err := herd.AwaitInstalled(ctx, func(line string) { t.Log(line) }); err != nil {
		t.Errorf("agents do not get through: %v", err)
	}
	t.Logf("the fleet was installed after %s", time.Since(begun).Round(time.Second))
	letRun(ctx, least-time.Since(begun))
	lift()
	all.Wait()
	<-watched
	t.Logf("%d connections at a time, %d in all: descriptors %d, at most %d; memory %d MiB, at most %d MiB",
		connections, army.tried.Load(), before.descriptors, most.descriptors, before.memory>>20, most.memory>>20)
	// 512 and 128 connections may be unadmitted; a fifth of that for those that are being closed.
	if n := most.descriptors - before.descriptors; n > 800 {
		t.Errorf("they hold %d descriptors", n)
	}
	if n := most.memory - before.memory; n > 160<<20 {
		t.Errorf("they hold %d MiB", n>>20)
	}
	t.Logf("the operator API: %d headers without an end, %d requests refused", army.headers.Load(), army.refused.Load())
	if army.headers.Load() == 0 || army.refused.Load() == 0 {
		t.Error("the siege does not reach HTTP on the operator API")
	}
	if n := army.answered.Load(); n > 0 {
		t.Errorf("%d requests of strangers got another answer than 401", n)
	}
	if army.tried.Load() < int64(connections) {
		t.Errorf("only %d connections were made", army.tried.Load())
	}
}

type held struct {
	descriptors int
	memory      int64
}

// heldBy returns what a process holds now.
func heldBy(t *testing.T, pid int) (h held) {
	t.Helper()
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Error(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	size, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kib, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		t.Error(err)
	}
	return held{descriptors: len(descriptors), memory: kib << 10}
}

// army are hostile connections.
type army struct {
	agents, operators string
	tried             atomic.Int64
	headers           atomic.Int64 // that were begun behind a TLS handshake with the operator API
	refused, answered atomic.Int64 // requests that the operator API answered 401, and otherwise
}

// attack connects again and again, each time as soon as it is turned away.
func (a *army) attack(ctx context.Context, i int) {
	// Linux has all of 127.0.0.0/8; agents come from 127.0.0.1.
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%200))}, Timeout: 20 * time.Second}
	ways := []func(ctx context.Context, dialer *net.Dialer){a.halfOpen, a.idle, a.messages, a.slowHeader, a.bodies}
	for ctx.Err() == nil {
		ways[i%len(ways)](ctx, &dialer)
		letRun(ctx, time.Second+rand.N(time.Second)) //nolint:gosec // any will do
	}
}

// hold keeps the connection until the other side, or ctx, ends it.
func hold(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

func (a *army) dial(ctx context.Context, dialer *net.Dialer, address string) net.Conn {
	a.tried.Add(1)
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	return conn
}

// halfOpen says nothing.
func (a *army) halfOpen(ctx context.Context, dialer *net.Dialer) {
	if conn := a.dial(ctx, dialer, a.agents); conn != nil {
		hold(ctx, conn)
	}
}

// secure is a connection without a certificate that speaks the protocol behind TLS.
func (a *army) secure(ctx context.Context, dialer *net.Dialer, address, protocol string) net.Conn {
	conn := a.dial(ctx, dialer, address)
	if conn == nil {
		return nil
	}
	//nolint:gosec // whom a stranger trusts does not matter
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}})
	if secure.HandshakeContext(ctx) != nil {
		_ = conn.Close()
		return nil
	}
	return secure
}

// idle says nothing after the handshake.
func (a *army) idle(ctx context.Context, dialer *net.Dialer) {
	if conn := a.secure(ctx, dialer, a.agents, "h2"); conn != nil {
		hold(ctx, conn)
	}
}

// messages sends four messages of 1 MiB but for their last bytes.
func (a *army) messages(ctx context.Context, dialer *net.Dialer) {
	if conn := a.secure(ctx, dialer, a.agents, "h2"); conn != nil {
		post(ctx, conn, 4, "https://x"+agentv1.AgentCallback_Heartbeat_FullMethodName, "application/grpc",
			append([]byte{0, 0, 16, 0, 0}, make([]byte, 1<<20-1)...), func(int) {})
	}
}

// slowHeader begins a request and does not end it.
func (a *army) slowHeader(ctx context.Context, dialer *net.Dialer) {
	if conn := a.secure(ctx, dialer, a.operators, "http/1.1"); conn != nil {
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Long: "); err == nil {
			a.headers.Add(1)
		}
		hold(ctx, conn)
	}
}

// bodies sends a hundred bodies of 250 KiB but for their last bytes.
func (a *army) bodies(ctx context.Context, dialer *net.Dialer) {
	if conn := a.secure(ctx, dialer, a.operators, "h2"); conn != nil {
		url := "https://x" + fleetv1connect.FleetServiceInstallMachineProcedure
		post(ctx, conn, 100, url, "application/proto", make([]byte, 250<<10), func(status int) {
			if status == http.StatusUnauthorized {
				a.refused.Add(1)
			} else {
				a.answered.Add(1)
			}
		})
	}
}

// post sends requests at once over HTTP/2, without ending them, until the other side or ctx ends
// the connection. It tells answered the HTTP status of each answer.
func post(ctx context.Context, conn net.Conn, calls int, url, kind string, body []byte, answered func(status int)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer conn.Close()
	dial := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{DialContext: dial, DialTLSContext: dial, Protocols: &protocols}
	client, err := transport.NewClientConn(ctx, "https", "x:1")
	if err != nil {
		return
	}
	defer client.Close()
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, io.MultiReader(bytes.NewReader(body), endless{ctx}))
			if err != nil {
				return
			}
			request.Header.Set("Content-Type", kind)
			answer, err := client.RoundTrip(request)
			if err != nil {
				return
			}
			answered(answer.StatusCode)
			_ = answer.Body.Close()
		})
	}
	all.Wait()
}

// endless is a body of which nothing more comes until ctx ends.
type endless struct{ ctx context.Context }

func (e endless) Read([]byte) (int, error) {
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}
