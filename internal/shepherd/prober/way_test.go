package prober_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

// listed is a provider whose entries say more of how machines are reached. It hangs where it has
// nothing to say.
type listed struct {
	*shepherdtest.FakeProvider
	change func(*provider.Entry)
}

func (l listed) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if l.change == nil { // it hangs
		<-ctx.Done()
		return provider.Entry{}, fleet.ContextError(ctx)
	}
	entry, err := l.FakeProvider.Get(ctx, id)
	l.change(&entry)
	return entry, err
}

// TestTheWaySaysNothingOfTheMachine: a jump host that is down, or hangs, a provider that hangs, and
// an entry of the list that makes no sense, are no silence of the machine. Nobody dials that past
// the jump host.
func TestTheWaySaysNothingOfTheMachine(t *testing.T) {
	t.Parallel()
	hangs := func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	http := fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}
	key, private, err := remote.NewKey("jump")
	check(t, err)
	hostKey, err := ssh.ParsePrivateKey(private)
	check(t, err)
	jump := func(e *provider.Entry) {
		e.Access.Jump = &provider.Jump{Address: netip.MustParseAddrPort("192.0.2.1:22"), HostKey: key.Public()}
	}
	invalid := func(e *provider.Entry) { e.Invalid = "host n4: its jump host has no host_key that can be read" }
	for name, test := range map[string]struct {
		seenUp fleet.SeenUp
		change func(*provider.Entry)
		serve  func(net.Conn)
		words  string
	}{
		"the jump host is down":              {watched, jump, nil, "jump host: 192.0.2.1:22: connection refused"},
		"it hangs":                           {watched, jump, hangs, "jump host: 192.0.2.1:22 did not finish"},
		"the jump host of a web page":        {http, jump, nil, "jump host: 192.0.2.1:22: connection refused"},
		"the one of a web page, which hangs": {http, jump, hangs, "jump host: 192.0.2.1:22 did not finish"},
		"it breaks when it has led to the web page": {
			http, jump, letsIn(hostKey, func(host *ssh.ServerConn) { _ = host.Close() }),
			"jump host: the connection to 192.0.2.1:22 has ended",
		},
		"it freezes when it has led to the web page": {
			http, jump, letsIn(hostKey, func(host *ssh.ServerConn) { _ = host.Wait() }),
			"jump host: 192.0.2.1:22 did not answer within 1s",
		},
		"the provider hangs":       {watched, nil, nil, "metal did not answer within 30s"},
		"the entry makes no sense": {watched, invalid, nil, "could not be made: host n4: its jump host has no host_key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, test.seenUp)
				s.answers(test.serve)
				var err error
				s.handler, err = prober.New(s.herd.DB, []prober.Source{{
					Name: s.herd.Name, Provider: listed{s.herd.Fake, test.change}, Config: prober.ProviderConfig{List: true},
				}}, prober.DefaultConfig(), key, prober.Options{Port: 2222, Dial: s.dial})
				check(t, err)
				s.run(time.Hour)
				r := s.herd.Record(s.machine)
				if b := r.Backoffs[fleet.ProcessProbe]; r.Probe != nil || !strings.Contains(b.Cause, test.words) {
					t.Errorf("probe %+v, backoff %+v", r.Probe, b)
				}
				if pulls := s.herd.Fake.Pulls(); len(pulls) > 0 || r.Quarantine != nil {
					t.Errorf("the machine paid for it: %v, %+v", pulls, r.Quarantine)
				}
				for _, address := range s.addresses() {
					if address != "192.0.2.1:22" {
						t.Errorf("%s was dialled", address)
					}
				}
			})
		})
	}
}

// letsIn is a jump host that leads to a machine, and does something else when that is spoken to.
func letsIn(hostKey ssh.Signer, spoken func(*ssh.ServerConn)) func(net.Conn) {
	return func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		config := &ssh.ServerConfig{NoClientAuth: true}
		config.AddHostKey(hostKey)
		frozen := make(chan struct{})
		host, offers, requests, err := ssh.NewServerConn(conn, config)
		if err != nil {
			return
		}
		go func() {
			for request := range requests {
				select {
				case <-frozen:
				default:
					_ = request.Reply(false, nil)
				}
			}
		}()
		offer, ok := <-offers
		if !ok {
			return
		}
		channel, asked, err := offer.Accept()
		if err != nil {
			return
		}
		go ssh.DiscardRequests(asked)
		_, _ = channel.Read(make([]byte, 1))
		close(frozen)
		spoken(host)
	}
}
