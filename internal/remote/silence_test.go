package remote

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAHostThatSaysNothingIsLeft however far it came, and long before the handshake is too late.
func TestAHostThatSaysNothingIsLeft(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	for name, test := range map[string]struct {
		says   string
		silent time.Duration
		took   time.Duration
	}{
		"nothing":                      {"", 2 * time.Second, 2 * time.Second},
		"no more than who it is":       {"SSH-2.0-OpenSSH_9.2\r\n", 2 * time.Second, 3 * time.Second},
		"nothing, and nobody is hasty": {"", 0, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				here, back := newStream(), newStream()
				dialer := NewDialer(key, Options{Dial: func(context.Context, string, string) (net.Conn, error) {
					return &wire{in: back, out: here}, nil
				}})
				go func() {
					time.Sleep(time.Second)
					if test.says != "" {
						_, _ = back.write([]byte(test.says))
					}
				}()
				start := time.Now()
				_, err := dialer.Dial(t.Context(), Target{
					Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{FirstUse: true}, Silence: test.silent,
				})
				if took := time.Since(start); fleet.KindOf(err) != fleet.KindTimeout || took != test.took ||
					strings.Contains(err.Error(), "said nothing for 2s") != (test.silent > 0) {
					t.Errorf("%v (%s) after %s", err, fleet.KindOf(err), took)
				}
			})
		})
	}
}

// TestAHostThatIsFarAwayIsNotSilent although the whole takes longer than it may be silent.
func TestAHostThatIsFarAwayIsNotSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		host := dialSlowly(t, 2*time.Second, func(int) { time.Sleep(400 * time.Millisecond) })
		if took := time.Since(start); took < 2500*time.Millisecond {
			t.Errorf("connected after %s, which shows nothing", took)
		}
		time.Sleep(time.Minute) // once it has answered, it may be silent
		if _, err := host.Run(t.Context(), Command{Args: []string{"true"}}); err != nil {
			t.Error(err)
		}
	})
}

// TestAHostMustAnswerAFirstCommand in whatever way.
func TestAHostMustAnswerAFirstCommand(t *testing.T) {
	t.Parallel()
	for command, answers := range map[string]bool{"sleep 600": false, "false": true, "echo noise; echo noise >&2": true} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			s := startSSHD(t, configured("ForceCommand "+command))
			target := s.target()
			target.Silence = time.Minute
			if !answers {
				target.Silence = 5 * time.Second // long enough for the handshake on a busy host
			}
			start := time.Now()
			host, err := NewDialer(s.key, Options{}).Dial(t.Context(), target)
			if err == nil {
				_ = host.Close()
			}
			if took := time.Since(start); (err == nil) != answers || took > 5*time.Minute {
				t.Errorf("%v after %s", err, took)
			}
			if err != nil && (fleet.KindOf(err) != fleet.KindTimeout || !strings.HasPrefix(err.Error(), "a first command: ")) {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
		})
	}
}
