package remote

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTestKey(tb testing.TB) *Key {
	tb.Helper()
	key, _, err := NewKey("test")
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func TestDialVerifiesByTheBestSource(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	other := newTestKey(t).Public()
	good := s.hostKeys["ed25519"]
	for name, test := range map[string]struct {
		trust  Trust
		source Source
	}{
		"attested":                      {Trust{Attested: []string{good}}, SourceAttested},
		"attested beats others":         {Trust{Attested: []string{other, good}, Injected: []string{other}, Pinned: []string{other}}, SourceAttested},
		"injected beats pinned":         {Trust{Injected: []string{good}, Pinned: []string{other}}, SourceInjected},
		"pinned beats first use":        {Trust{Pinned: []string{good}, FirstUse: true}, SourcePinned},
		"first use":                     {Trust{FirstUse: true}, SourceFirstUse},
		"pinned key of another kind":    {Trust{Pinned: []string{s.hostKeys["rsa"]}}, SourcePinned},
		"pinned key of a third kind":    {Trust{Pinned: []string{s.hostKeys["ecdsa"]}}, SourcePinned},
		"pinned with comment and space": {Trust{Pinned: []string{"  " + strings.TrimSpace(good) + " and more \n"}}, SourcePinned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, err := NewDialer(s.key, Options{}).Dial(t.Context(), Target{Address: s.address, User: "root", Trust: test.trust})
			if err != nil {
				t.Fatalf("%v\n%s", err, s.log)
			}
			defer host.Close()
			found := host.HostKey()
			if found.Source != test.source || !strings.HasPrefix(found.Fingerprint, "SHA256:") {
				t.Errorf("%+v", found)
			}
			if keys, _ := ParseHostKeys([]string{found.Key}); !slices.Equal(keys, []string{found.Key}) {
				t.Errorf("%q", keys)
			}
		})
	}
}

func TestNothingIsSentToAHostWithAnotherKey(t *testing.T) {
	t.Parallel()
	s := startStrictServer(t, false)
	key, other := newTestKey(t), newTestKey(t)
	for name, trust := range map[string]Trust{
		"pinned":   {Pinned: []string{other.Public()}, FirstUse: true},
		"attested": {Attested: []string{other.Public()}, Pinned: []string{authorized(s.hostKey)}},
		"unknown":  {},
	} {
		_, err := NewDialer(key, Options{}).Dial(t.Context(), Target{Address: s.address, User: "root", Trust: trust})
		var wrong *HostKeyError
		if !errors.As(err, &wrong) || fleet.KindOf(err) != fleet.KindForbidden {
			t.Fatalf("%s: %v", name, err)
		}
		if name != "unknown" && !strings.Contains(err.Error(), other.Fingerprint()) || wrong.Key != authorized(s.hostKey) || !strings.Contains(err.Error(), wrong.Presented) || wrong.Presented == "" {
			t.Errorf("%s: the message lacks a fingerprint: %v", name, err)
		}
	}
	if seen := s.seen(); len(seen) > 0 {
		t.Errorf("a host with another key was sent %v", seen)
	}
	// The same server with its own key shows that an attempt would have been seen.
	_, err := NewDialer(key, Options{}).Dial(t.Context(),
		Target{Address: s.address, User: "root", Trust: Trust{Pinned: []string{authorized(s.hostKey)}}})
	if fleet.KindOf(err) != fleet.KindUnauthenticated || !strings.Contains(err.Error(), key.Fingerprint()) {
		t.Errorf("a host that refuses our key gives %v (%s)", err, fleet.KindOf(err))
	}
	if len(s.seen()) == 0 {
		t.Error("the server does not notice attempts")
	}
}

// A connection that breaks while we authenticate says nothing about our key.
func TestAHostThatHangsUpDoesNotRefuseTheKey(t *testing.T) {
	t.Parallel()
	s := startStrictServer(t, true)
	_, err := NewDialer(newTestKey(t), Options{}).Dial(t.Context(),
		Target{Address: s.address, User: "root", Trust: Trust{Pinned: []string{authorized(s.hostKey)}}})
	if fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

func TestOpenSSHRefusesAnUnknownKey(t *testing.T) {
	t.Parallel()
	s := startSSHD(t)
	_, err := NewDialer(newTestKey(t), Options{}).Dial(t.Context(), s.target())
	if fleet.KindOf(err) != fleet.KindUnauthenticated {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
}

func TestNoConnectionToWhatCannotBeTrusted(t *testing.T) {
	t.Parallel()
	dialer := NewDialer(newTestKey(t), Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("a connection was made")
		return nil, errors.New("refused")
	}})
	address := netip.MustParseAddrPort("192.0.2.1:22")
	for _, test := range []struct {
		target Target
		kind   fleet.Kind
	}{
		{Target{Address: address, User: "root", Trust: Trust{Pinned: []string{"ssh-ed25519 nonsense"}, FirstUse: true}}, fleet.KindInvalid},
		{Target{Address: address, Trust: Trust{FirstUse: true}}, fleet.KindInvalid},
		{Target{User: "root", Trust: Trust{FirstUse: true}}, fleet.KindInvalid},
	} {
		if host, err := dialer.Dial(t.Context(), test.target); host != nil || fleet.KindOf(err) != test.kind {
			t.Errorf("%+v gives %v", test.target, err)
		}
	}
}

// listen starts a TCP server that treats each connection as told, and closes all when the test
// ends.
func listen(t *testing.T, serve func(net.Conn)) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.77.1.3:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var open []net.Conn
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			open = append(open, connection)
			serve(connection)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
		for _, connection := range open {
			connection.Close()
		}
	})
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

func TestAHungHostDoesNotHangTheCaller(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(net.Conn){
		"says nothing":      func(net.Conn) {},
		"says its version":  func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-Hung\r\n")) },
		"talks without end": func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("welcome\r\n", 20))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := Target{Address: listen(t, serve), User: "root", Trust: Trust{FirstUse: true}}
			start := time.Now()
			_, err := NewDialer(newTestKey(t), Options{HandshakeTimeout: 200 * time.Millisecond}).Dial(t.Context(), target)
			if fleet.KindOf(err) != fleet.KindTimeout {
				t.Errorf("handshake timeout: %v (%s)", err, fleet.KindOf(err))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err = NewDialer(newTestKey(t), Options{HandshakeTimeout: time.Hour}).Dial(ctx, target)
			if fleet.KindOf(err) != fleet.KindTimeout || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("deadline: %v (%s)", err, fleet.KindOf(err))
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestUnreachableHosts(t *testing.T) {
	t.Parallel()
	refusing := freeAddress(t)
	closing := listen(t, func(c net.Conn) { c.Close() })
	for name, address := range map[string]netip.AddrPort{"refuses": refusing, "closes": closing} {
		_, err := NewDialer(newTestKey(t), Options{}).Dial(t.Context(), Target{Address: address, User: "root", Trust: Trust{FirstUse: true}})
		if fleet.KindOf(err) != fleet.KindTemporary {
			t.Errorf("a host that %s gives %v (%s)", name, err, fleet.KindOf(err))
		}
	}
	dialer := NewDialer(newTestKey(t), Options{ConnectTimeout: 50 * time.Millisecond, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	_, err := dialer.Dial(t.Context(), Target{Address: refusing, User: "root", Trust: Trust{FirstUse: true}})
	if fleet.KindOf(err) != fleet.KindTimeout {
		t.Errorf("a host that does not answer gives %v", err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	key, private, err := NewKey("someone")
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseKey(private)
	if err != nil || again.Public() != key.Public() || !strings.HasPrefix(key.Public(), "ssh-ed25519 ") {
		t.Errorf("%v, %v", again, err)
	}
	for _, wrong := range []string{"", "nonsense", string(private[:len(private)/2])} {
		if _, err := parseKey([]byte(wrong)); fleet.KindOf(err) != fleet.KindInvalid {
			t.Errorf("%.20q gives %v", wrong, err)
		}
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseKey(pem.EncodeToMemory(locked)); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), "has a passphrase") {
		t.Errorf("a key with a passphrase gives %v", err)
	}
	if _, err := OpenKey(t.TempDir() + "/none"); fleet.KindOf(err) != fleet.KindInvalid {
		t.Error(err)
	}
	for _, wrong := range []string{"", "ssh-ed25519", "ssh-ed25519 AAAA", key.Public() + "\n" + key.Public()} {
		if keys, leftOut := ParseHostKeys([]string{wrong, key.Public()}); leftOut != 1 || !slices.Equal(keys, []string{key.Public()}) {
			t.Errorf("%.40q: %q are keys, and %d are left out", wrong, keys, leftOut)
		}
	}
	if keys, leftOut := ParseHostKeys(slices.Repeat([]string{key.Public()}, maxHostKeys+2)); len(keys) != maxHostKeys || leftOut != 2 {
		t.Errorf("%d keys, and %d are left out", len(keys), leftOut)
	}
}
