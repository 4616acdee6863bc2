package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestADeadHostBehindAJumpHostCostsLittle where it may well be dead: what takes time is the jump
// host's own attempt to connect. A jump host may let nobody run commands, and is asked for none.
func TestADeadHostBehindAJumpHostCostsLittle(t *testing.T) {
	t.Parallel()
	key, hostKey := newTestKey(t), newTestKey(t)
	for silence, want := range map[time.Duration]time.Duration{2 * time.Second: 3 * time.Second, 0: 17 * time.Second} {
		t.Run(silence.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				dialer := NewDialer(key, Options{Dial: serveInMemory(t, hostKey, func(c ssh.NewChannel) { asked = append(asked, c.ChannelType()) })})
				start := time.Now()
				_, err := dialer.Dial(t.Context(), Target{
					Address: netip.MustParseAddrPort("10.0.0.1:22"), User: "root", Trust: Trust{FirstUse: true}, Silence: silence,
					Via: &Target{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{Attested: []string{hostKey.Public()}}},
				})
				_, before := errors.AsType[*JumpHostError](err)
				if took := time.Since(start); fleet.KindOf(err) != fleet.KindTimeout || before || took != want {
					t.Errorf("%v (%s) after %s, want %s", err, fleet.KindOf(err), took, want)
				}
				synctest.Wait()
				if len(asked) != 1 || asked[0] != "direct-tcpip" {
					t.Errorf("the jump host was asked for %q", asked)
				}
			})
		})
	}
}

// TestAHungJumpHostCostsLittle where the hosts behind it may well hang: it is left as soon as they
// would be. Once that has happened, nobody waits long for a turn, and who leaves says why.
func TestAHungJumpHostCostsLittle(t *testing.T) {
	t.Parallel()
	key := newTestKey(t)
	synctest.Test(t, func(t *testing.T) {
		dialer := NewDialer(key, Options{ConnectTimeout: time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
			return &wire{in: newStream(), out: newStream()}, nil
		}})
		dial := func() error {
			_, err := dialer.Dial(t.Context(), Target{
				Address: netip.MustParseAddrPort("10.0.0.1:22"), User: "root", Trust: Trust{FirstUse: true}, Silence: 2 * time.Second,
				Via: &Target{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{FirstUse: true}},
			})
			return err
		}
		const why = "192.0.2.1:22 said nothing for 2s"
		start := time.Now()
		if err := dial(); !strings.Contains(err.Error(), why) || Answered(err) != fleet.AnswerUnknown || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		const machines = 5 * loginsAtOnce
		ended, waited := make(chan error, machines), 0
		start = time.Now()
		for range machines {
			go func() { ended <- dial() }()
		}
		for range machines {
			err := <-ended
			if !strings.Contains(err.Error(), why) || Answered(err) != fleet.AnswerUnknown {
				t.Errorf("it does not say why, or says something of the machine: %v", err)
			}
			if strings.Contains(err.Error(), "within 3s this one's turn did not come") {
				waited++
			}
		}
		// Twice four are tried, each for 2 s. The others leave after 3 s.
		if took := time.Since(start); took != 4*time.Second || waited != machines-2*loginsAtOnce {
			t.Errorf("it took %s; %d waited in vain", took, waited)
		}
	})
}

// TestAJumpHostThatGoesLaterSaysNothingOfTheHost: it may break, or freeze, when it has let us in
// and the host behind it is about to answer.
func TestAJumpHostThatGoesLaterSaysNothingOfTheHost(t *testing.T) {
	t.Parallel()
	key, hostKey := newTestKey(t), newTestKey(t)
	for name, c := range map[string]struct {
		offered func(jump *freezer, offered ssh.NewChannel)
		want    fleet.Answer
		words   string
	}{
		"it breaks":               {func(jump *freezer, offered ssh.NewChannel) { began(offered); _ = jump.Conn.Close() }, fleet.AnswerUnknown, "jump host: the connection to 192.0.2.1:22 has ended"},
		"it freezes":              {func(jump *freezer, offered ssh.NewChannel) { began(offered); close(jump.frozen) }, fleet.AnswerUnknown, "jump host: 192.0.2.1:22 did not answer within 1s"},
		"it freezes, unconnected": {func(jump *freezer, _ ssh.NewChannel) { close(jump.frozen) }, fleet.AnswerUnknown, "jump host: 192.0.2.1:22 did not answer within 1s"},
		"the host breaks":         {func(_ *freezer, offered ssh.NewChannel) { _ = began(offered).Close() }, fleet.AnswerGiven, "EOF"},
		"the host freezes":        {func(_ *freezer, offered ssh.NewChannel) { began(offered) }, fleet.AnswerNone, "10.0.0.1:22"},
		"nothing leads there":     {func(*freezer, ssh.NewChannel) {}, fleet.AnswerNone, "connect from jump host"},
	} {
		for _, silence := range []time.Duration{0, 2 * time.Second} {
			t.Run(fmt.Sprintf("%s, silence %s", name, silence), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					dialer := NewDialer(key, Options{Dial: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
						jump := &freezer{frozen: make(chan struct{}), closed: make(chan struct{})}
						jump.Conn, err = serveInMemory(t, hostKey, func(offered ssh.NewChannel) { c.offered(jump, offered) })(ctx, network, address)
						return jump, err
					}})
					target := Target{
						Address: netip.MustParseAddrPort("10.0.0.1:22"), User: "root", Trust: Trust{FirstUse: true}, Silence: silence,
						Via: &Target{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: Trust{FirstUse: true}},
					}
					_, probed := dialer.Probe(t.Context(), target)
					_, dialed := dialer.Dial(t.Context(), target)
					for _, err := range []error{probed, dialed} {
						_, before := errors.AsType[*JumpHostError](err)
						if Answered(err) != c.want || before != (c.want == fleet.AnswerUnknown) || !strings.Contains(err.Error(), c.words) {
							t.Errorf("%d, of the jump host: %t: %v", Answered(err), before, err)
						}
					}
				})
			})
		}
	}
}

// began accepts a connection to a host, and waits until the host is spoken to.
func began(offered ssh.NewChannel) ssh.Channel {
	channel, requests, err := offered.Accept()
	if err != nil {
		panic(err)
	}
	go ssh.DiscardRequests(requests)
	_, _ = channel.Read(make([]byte, 1))
	return channel
}
