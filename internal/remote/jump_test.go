package remote

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAFaultOfTheJumpHostSaysNothingOfTheHost: only what comes once it leads there does.
func TestAFaultOfTheJumpHostSaysNothingOfTheHost(t *testing.T) {
	t.Parallel()
	s, closed := startSSHD(t), startSSHD(t, configured("AllowTcpForwarding no"))
	down := Target{Address: freeAddress(t), User: "root", Trust: Trust{FirstUse: true}}
	another := s.target()
	another.Trust = Trust{Attested: []string{newTestKey(t).Public()}}
	hung := startSilent(t)
	for name, test := range map[string]struct {
		target, via Target
		key         *Key
		want        fleet.Answer
		words       string
	}{
		"it is down":                     {s.target(), down, s.key, fleet.AnswerUnknown, "jump host: " + down.Address.String() + ": connection refused"},
		"it hangs":                       {s.target(), Target{Address: hung, User: "root", Trust: Trust{FirstUse: true}}, s.key, fleet.AnswerUnknown, "jump host: " + hung.String()},
		"it is another":                  {s.target(), another, s.key, fleet.AnswerUnknown, "put it into the list of hosts"},
		"it refuses us":                  {s.target(), s.target(), newTestKey(t), fleet.AnswerUnknown, "refuses the key"},
		"it forwards nothing":            {s.target(), closed.target(), closed.key, fleet.AnswerUnknown, "AllowTcpForwarding"},
		"nobody listens behind it":       {down, s.target(), s.key, fleet.AnswerGiven, "connect from jump host"},
		"what is behind it says nothing": {Target{Address: hung, User: "root", Trust: Trust{FirstUse: true}}, s.target(), s.key, fleet.AnswerNone, "key exchange within"},
		"all is well":                    {s.target(), s.target(), s.key, fleet.AnswerGiven, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := test.target
			target.Via = &test.via
			options := Options{ConnectTimeout: time.Minute, HandshakeTimeout: time.Minute, StepTimeout: time.Minute}
			if strings.Contains(name, "hangs") || strings.Contains(name, "says nothing") {
				options.HandshakeTimeout = 5 * time.Second
			}
			_, err := NewDialer(test.key, options).Probe(t.Context(), target)
			// A busy host may be silent, too.
			for tries := 1; options.HandshakeTimeout < time.Minute && Answered(err) != test.want && tries < 5; tries++ {
				_, err = NewDialer(test.key, options).Probe(t.Context(), target)
			}
			if got := Answered(err); got != test.want || (err == nil) != (test.words == "") || err != nil && !strings.Contains(err.Error(), test.words) {
				t.Errorf("%d, want %d: %v", got, test.want, err)
			}
			_, before := errors.AsType[*JumpHostError](err)
			if _, wrong := errors.AsType[*HostKeyError](err); wrong || before != (test.want == fleet.AnswerUnknown) {
				t.Errorf("of the jump host: %t; of the host's key: %t", before, wrong)
			}
		})
	}
}

// startSilent returns the address of a host that accepts connections, and says nothing.
func startSilent(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.77.1.5:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// TestFewLoginsToOneJumpHostAtOnce: OpenSSH would turn some of many away, whichever dialer they are
// from. Who waits for too long says so, and why the last login failed; nobody waits for another
// jump host.
func TestFewLoginsToOneJumpHostAtOnce(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	synctest.Test(t, func(t *testing.T) {
		busy, other := netip.MustParseAddrPort("192.0.2.1:22"), netip.MustParseAddrPort("192.0.2.2:22")
		var under, most atomic.Int32
		jumpHosts, next := new(JumpHosts), new(atomic.Int32)
		options := Options{JumpHosts: jumpHosts, ConnectTimeout: 6 * time.Second, HandshakeTimeout: time.Second, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			if address == other.String() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		dialers := []*Dialer{NewDialer(key, options), NewDialer(key, options)}
		probe := func(ctx context.Context, via netip.AddrPort) error {
			_, err := dialers[next.Add(1)%2].Reach(ctx, Target{Address: netip.MustParseAddrPort("10.0.0.1:22"), Via: &Target{Address: via, User: "root", Trust: Trust{FirstUse: true}}})
			return err
		}
		const machines = 5 * loginsAtOnce
		start, ended := time.Now(), make(chan error, machines)
		for range machines {
			go func() { ended <- probe(t.Context(), busy) }()
		}
		synctest.Wait()
		if n := under.Load(); n != loginsAtOnce {
			t.Errorf("%d logins at once, want %d", n, loginsAtOnce)
		}
		if err := probe(t.Context(), other); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(start) != 0 {
			t.Errorf("another jump host, after %s: %v", time.Since(start), err)
		}
		leaving, leave := context.WithCancel(t.Context())
		leave()
		if err := probe(leaving, busy); fleet.KindOf(err) != fleet.KindTimeout || time.Since(start) != 0 {
			t.Errorf("who was called off, after %s: %v", time.Since(start), err)
		}
		waited, causes := 0, make(map[string]bool)
		for range machines {
			err := <-ended
			if Answered(err) != fleet.AnswerUnknown {
				t.Errorf("it says something of the machine: %v", err)
			}
			cause := err.Error()
			if missed, ok := errors.AsType[*TurnMissedError](err); ok {
				waited++
				cause = (&JumpHostError{missed.Last}).Error()
				if !strings.Contains(err.Error(), "the last login to 192.0.2.1:22 failed: 192.0.2.1:22 did not accept a connection") {
					t.Errorf("it does not say why: %v", err)
				}
			}
			causes[cause] = true
		}
		if len(causes) != 1 {
			t.Errorf("one fault of the jump host is told as %v", causes)
		}
		// Twice four are tried, each for 6 s. The others leave after 7 s.
		if took := time.Since(start); took != 12*time.Second || waited != machines-2*loginsAtOnce || most.Load() != loginsAtOnce {
			t.Errorf("it took %s; %d waited in vain; %d at once", took, waited, most.Load())
		}
	})
}

// TestABusyJumpHost: where the last login did not fail, whose turn does not come knows no cause.
func TestABusyJumpHost(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	synctest.Test(t, func(t *testing.T) {
		jumpHosts, via := new(JumpHosts), netip.MustParseAddrPort("192.0.2.1:22")
		for range loginsAtOnce {
			jumpHosts.of(via).slots <- struct{}{}
		}
		dialer := NewDialer(key, Options{JumpHosts: jumpHosts, ConnectTimeout: 2 * time.Second, HandshakeTimeout: 5 * time.Second})
		_, err := dialer.Probe(t.Context(), Target{Address: netip.MustParseAddrPort("10.0.0.1:22"), Via: &Target{Address: via, User: "root"}})
		if missed, ok := errors.AsType[*TurnMissedError](err); !ok || missed.Last != nil || Answered(err) != fleet.AnswerUnknown ||
			fleet.KindOf(err) != fleet.KindTemporary || !strings.Contains(err.Error(), "192.0.2.1:22 is busy: 4 logins were under way, and within 7s") {
			t.Errorf("%v", err)
		}
	})
}
