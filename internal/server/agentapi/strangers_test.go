package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/agentapi"
)

// stranger is a connection to the agent API without a certificate, after its TLS handshake; nil
// when it is refused.
func (h *fixture) stranger() net.Conn {
	h.t.Helper()
	//nolint:gosec // whom a stranger trusts does not matter
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	conn, err := (&tls.Dialer{Config: config}).DialContext(h.t.Context(), "tcp", h.address)
	if err != nil {
		return nil
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// unfinished starts that many calls on a connection, each with a message of which the last byte is
// missing. It returns when everything is sent, or when the server has had enough.
func unfinished(conn net.Conn, calls, size int) {
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil {
		return
	}
	window := newWindows(calls)
	go window.read(framer)
	for i := range calls {
		stream := uint32(2*i + 1)
		if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: heartbeatHeaders(), EndHeaders: true}) != nil {
			return
		}
		message := make([]byte, 5)
		binary.BigEndian.PutUint32(message[1:], uint32(size))
		if framer.WriteData(stream, false, message) != nil {
			return
		}
		window.take(stream, 5)
		for left, chunk := size-1, make([]byte, 4096); left > 0; {
			n := min(left, len(chunk))
			if !window.take(stream, n) || framer.WriteData(stream, false, chunk[:n]) != nil {
				return
			}
			left -= n
		}
	}
}

// heartbeatHeaders are those of a call, for the first time on a connection or again.
func heartbeatHeaders() []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":path", agentv1.AgentCallback_Heartbeat_FullMethodName},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return block.Bytes()
}

// windows is HTTP/2's flow control, as a client sees it: of the connection (0) and of each stream.
type windows struct {
	mu     sync.Mutex
	more   *sync.Cond
	free   map[uint32]int
	closed bool
}

func newWindows(streams int) *windows {
	w := &windows{free: map[uint32]int{0: 65535}}
	w.more = sync.NewCond(&w.mu)
	for i := range streams {
		w.free[uint32(2*i+1)] = 65535
	}
	return w
}

// read takes in what the server allows, until the connection ends.
func (w *windows) read(framer *http2.Framer) {
	for {
		frame, err := framer.ReadFrame()
		w.mu.Lock()
		if update, ok := frame.(*http2.WindowUpdateFrame); ok {
			w.free[update.StreamID] += int(update.Increment)
		}
		w.closed = err != nil
		w.more.Broadcast()
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take waits until so many bytes may be sent; false when the connection has ended.
func (w *windows) take(stream uint32, n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.closed && (w.free[0] < n || w.free[stream] < n) {
		w.more.Wait()
	}
	w.free[0] -= n
	w.free[stream] -= n
	return !w.closed
}

// TestStrangersHoldNextToNothing: whoever is not admitted does not make this process keep what it
// sends.
func TestStrangersHoldNextToNothing(t *testing.T) { // not parallel: it measures the process
	h := newFixture(t, nil)
	held := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc) //nolint:gosec // far below
	}
	const strangers, calls, size, bound = 20, 4, 1 << 20, 256 << 10
	before := held()
	var all sync.WaitGroup
	for range strangers {
		conn := h.stranger()
		all.Go(func() { unfinished(conn, calls, size) })
	}
	sent := make(chan struct{})
	go func() { all.Wait(); close(sent) }()
	select {
	case <-sent:
	case <-time.After(30 * time.Second): //nolint:forbidigo // nobody is to wait so long
		t.Error("the strangers are still at it")
	}
	if each := (held() - before) / strangers; each > bound {
		t.Errorf("each stranger holds %d KiB, want at most %d", each>>10, bound>>10)
	}
}

// TestStrangersHaveFewCalls at a time on a connection, also when they ignore what the server says.
func TestStrangersHaveFewCalls(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	conn := h.stranger()
	h.must(conn.SetDeadline(time.Now().Add(30 * time.Second)))
	_, err := conn.Write([]byte(http2.ClientPreface))
	h.must(err)
	framer := http2.NewFramer(conn, conn)
	h.must(framer.WriteSettings())
	const calls = 4
	for i := range calls + 1 {
		h.must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: heartbeatHeaders(), EndHeaders: true}))
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("a fifth call at a time is not refused: %v", err)
		}
		if refused, ok := frame.(*http2.RSTStreamFrame); ok {
			if refused.StreamID != 2*calls+1 || refused.ErrCode != http2.ErrCodeRefusedStream {
				t.Errorf("call %d is refused as %s", refused.StreamID/2+1, refused.ErrCode)
			}
			return
		}
	}
}

// TestIdleStrangersMakeRoom: connections that nobody is admitted on do not keep agents out.
func TestIdleStrangersMakeRoom(t *testing.T) {
	t.Parallel()
	h := newFixture(t, func(c *agentapi.Config, _ *fleet.Policy) { c.MaxConnections = 50 })
	hosts := h.machines(8, nil)
	for range 50 {
		if conn := h.stranger(); conn != nil {
			unfinished(conn, 0, 0)
		}
	}
	for range 10 { // half open
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", h.address); err == nil {
			t.Cleanup(func() { conn.Close() })
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, m := range hosts {
		if _, err := h.dial(m.key).Heartbeat(ctx, m.beat(), grpc.WaitForReady(true)); err != nil {
			t.Errorf("agent %d: %v", i, err)
		}
	}
}

// TestAgentsAreRecognizedByTheirCertificate: the first message of an agent may be a large report. A
// stranger's may not, whatever name the certificate has, nor that of an agent that was replaced.
func TestAgentsAreRecognizedByTheirCertificate(t *testing.T) {
	t.Parallel()
	h := newFixture(t, impatient)
	m := h.machines(1, nil)[0]
	_, strange, err := ed25519.GenerateKey(rand.Reader)
	h.must(err)
	large := m.beat()
	large.HardwareReport = report()
	for i := range 300 {
		disk := &agentv1.BlockDevice{Name: fmt.Sprintf("sd%d", i), Model: strings.Repeat("x", 200)}
		large.HardwareReport.BlockDevices = append(large.HardwareReport.BlockDevices, disk)
	}
	h.heartbeat(h.dialNamed(string(m.id), m.key), large)
	if h.record(m).Hardware == nil {
		t.Error("the report was not stored")
	}
	h.restart() // it remembers nobody
	own := h.dialNamed(string(m.id), m.key)
	h.heartbeat(own, large)
	if _, err := h.dialNamed(string(m.id), strange).Heartbeat(t.Context(), large); status.Code(err) != codes.Unavailable {
		t.Errorf("a stranger sends a large message: %v", err)
	}
	h.takeoverAgain(m)
	if _, err := own.Heartbeat(t.Context(), large); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a replaced agent: %v", err)
	}
	for _, client := range []agentv1.AgentCallbackClient{own, h.dialNamed(string(m.id), m.key)} {
		if _, err := client.Heartbeat(t.Context(), large); status.Code(err) != codes.Unavailable {
			t.Errorf("a replaced agent sends a large message: %v", err)
		}
	}
}

// restart replaces the server by one that remembers nothing.
func (h *fixture) restart() {
	h.t.Helper()
	h.must(h.stop())
	h.api = agentapi.New(h.db, h.config, agentapi.Options{Logger: discard, Certificates: h.certificates})
	h.start()
}

// TestARequestThatWouldGrowIsRefused sends one over the wire. The agent's next one is served.
func TestARequestThatWouldGrowIsRefused(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	m := h.machines(1, nil)[0]
	client := h.dial(m.key)
	req := m.beat()
	req.HardwareReport = &agentv1.HardwareReport{NetworkInterfaces: make([]*agentv1.NetworkInterface, 10_000)}
	for i := range req.HardwareReport.NetworkInterfaces {
		req.HardwareReport.NetworkInterfaces[i] = &agentv1.NetworkInterface{}
	}
	if _, err := client.Heartbeat(t.Context(), req); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "messages inside") {
		t.Errorf("answered with %v", err)
	}
	h.heartbeat(client, m.beat())
}
