package prober_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
)

// TestAJumpHostThatIsDown: history and log tell it once, however long it lasts. People are told
// that the system behind it is not asked, and since when. That ends with the first probe that is
// made.
func TestAJumpHostThatIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, watched)
		key, _, err := remote.NewKey("jump")
		check(t, err)
		var behind atomic.Bool
		list := listed{s.herd.Fake, func(e *provider.Entry) {
			if behind.Load() {
				e.Access.Jump = &provider.Jump{Address: netip.MustParseAddrPort("192.0.2.1:22"), HostKey: key.Public()}
			}
		}}
		handler, err := prober.New(s.herd.DB, []prober.Source{{
			Name: s.herd.Name, Provider: list, Config: prober.ProviderConfig{List: true},
		}}, prober.DefaultConfig(), key, prober.Options{Port: 2222, Dial: s.dial})
		check(t, err)
		var log bytes.Buffer
		loop, err := shepherd.New(s.herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo})),
		})
		check(t, err)
		run := func(d time.Duration) bmdb.Summary {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			check(t, loop.Run(ctx))
			summary, err := s.herd.DB.Summary(t.Context())
			check(t, err)
			return summary
		}
		var logins atomic.Int32
		s.answers(sshd(t, s.order.HostKey, &logins))
		run(2 * time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")

		behind.Store(true)
		s.answers(nil)
		if summary := run(4 * time.Minute); summary.Unasked.N != 0 {
			t.Errorf("%d systems count as not asked after four minutes", summary.Unasked.N)
		}
		summary := run(time.Hour)
		if since := summary.At.Sub(summary.UnaskedSince); summary.Unasked.N != 1 || summary.Unasked.First != s.machine || since < time.Hour || since > 65*time.Minute {
			t.Errorf("%d systems are not asked, %s since %s", summary.Unasked.N, summary.Unasked.First, summary.UnaskedSince)
		}
		s.wantState(fleet.StateInstalled, "; it cannot be asked since "+fleet.Instant(summary.UnaskedSince)+": the probe could not be made: jump host: 192.0.2.1:22: connection refused")
		s.wantState(fleet.StateInstalled, "it last answered SSH at ")
		if rows, lines := s.count(fleet.EventFailed), strings.Count(log.String(), `"work failed"`); rows != 1 || lines != 1 {
			t.Errorf("%d rows of history and %d lines of the log:\n%s", rows, lines, log.String())
		}

		behind.Store(false)
		s.answers(sshd(t, s.order.HostKey, &logins))
		if summary := run(2 * time.Minute); summary.Unasked.N != 0 {
			t.Errorf("%d systems count as not asked", summary.Unasked.N)
		}
		s.wantState(fleet.StateInstalled, "it answers SSH")
	})
}

// TestABusyJumpHost: a probe whose turn never comes is neither history nor a warning. People are
// told that the system behind it is not asked, all the same.
func TestABusyJumpHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, watched)
		key, _, err := remote.NewKey("jump")
		check(t, err)
		jump := remote.Target{Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "root", Trust: remote.Trust{Attested: []string{key.Public()}}}
		var behind atomic.Bool
		list := listed{s.herd.Fake, func(e *provider.Entry) {
			if behind.Load() {
				e.Access.Jump = &provider.Jump{Address: jump.Address, HostKey: key.Public()}
			}
		}}
		jumpHosts := new(remote.JumpHosts)
		handler, err := prober.New(s.herd.DB, []prober.Source{{
			Name: s.herd.Name, Provider: list, Config: prober.ProviderConfig{List: true},
		}}, prober.DefaultConfig(), key, prober.Options{Port: 2222, Dial: s.dial, JumpHosts: jumpHosts})
		check(t, err)
		var log bytes.Buffer
		loop, err := shepherd.New(s.herd.DB, handler, shepherd.DefaultConfig(), shepherd.Options{
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo})),
		})
		check(t, err)
		run := func(d time.Duration) bmdb.Summary {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			check(t, loop.Run(ctx))
			summary, err := s.herd.DB.Summary(t.Context())
			check(t, err)
			return summary
		}
		s.answers(sshd(t, s.order.HostKey, new(atomic.Int32)))
		run(2 * time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")

		// Logins of others, each of which takes for ever.
		ctx, cancel := context.WithCancel(t.Context())
		others := remote.NewDialer(key, remote.Options{
			JumpHosts: jumpHosts, ConnectTimeout: 1000 * time.Hour,
			Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		})
		var logins sync.WaitGroup
		for range 4 {
			logins.Go(func() {
				_, _ = others.Reach(ctx, remote.Target{Address: netip.MustParseAddrPort("192.0.2.9:22"), Via: &jump})
			})
		}
		synctest.Wait()
		behind.Store(true)
		if summary := run(4 * time.Minute); summary.Unasked.N != 0 {
			t.Errorf("%d systems count as not asked after four minutes", summary.Unasked.N)
		}
		summary := run(10 * time.Minute)
		if since := summary.At.Sub(summary.UnaskedSince); summary.Unasked.N != 1 || summary.Unasked.First != s.machine || since < 10*time.Minute || since > 15*time.Minute {
			t.Errorf("%d systems are not asked, %s since %s", summary.Unasked.N, summary.Unasked.First, summary.UnaskedSince)
		}
		s.wantState(fleet.StateInstalled, "; it cannot be asked since "+fleet.Instant(summary.UnaskedSince)+
			": the probe could not be made: jump host: 192.0.2.1:22 is busy: 4 logins were under way, and within 7s this one's turn did not come")
		if rows, lines := s.count(fleet.EventFailed), strings.Count(log.String(), `"work failed"`); rows != 0 || lines != 0 {
			t.Errorf("%d rows of history and %d lines of the log:\n%s", rows, lines, log.String())
		}
		cancel()
		logins.Wait()
		behind.Store(false)
		if summary := run(2 * time.Minute); summary.Unasked.N != 0 {
			t.Errorf("%d systems count as not asked", summary.Unasked.N)
		}
		s.wantState(fleet.StateInstalled, "it answers SSH")
	})
}
