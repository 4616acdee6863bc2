package prober_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// site is one installed machine, what it answers, and who asks it.
type site struct {
	t       *testing.T
	herd    *shepherdtest.Herd
	machine fleet.MachineID
	order   *bmdb.InstallOrder
	handler shepherd.Handler

	mu sync.Mutex
	// serve answers one connection; nil: the connection is refused.
	serve func(net.Conn)
	dials []string
}

// newSite returns a machine whose disk is written, and whose system is to be seen in that way.
func newSite(t *testing.T, seenUp fleet.SeenUp) *site {
	t.Helper()
	s, agent := newUnreported(t, seenUp)
	check(t, s.herd.DB.RecordInstallReport(t.Context(), agent, fleet.InstallReport{Generation: 1, Attempt: 1, OK: true, Disk: "/dev/sda"}))
	return s
}

// newUnreported returns a machine that has lost its power in the middle of an install, and who its
// agent was.
func newUnreported(t *testing.T, seenUp fleet.SeenUp) (*site, bmdb.AgentIdentity) {
	t.Helper()
	db := shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})
	_, err := db.SetPolicy(t.Context(), fleet.DefaultPolicy())
	check(t, err)
	s := &site{t: t, herd: shepherdtest.NewHerd(t, db, 1)}
	s.machine = s.herd.Machines()[0]
	s.handler, err = prober.New(db, []prober.Source{{Name: s.herd.Name, Provider: s.herd.Fake}}, prober.DefaultConfig(), nil,
		prober.Options{Port: 2222, Dial: s.dial})
	check(t, err)
	return s, s.install(seenUp)
}

// install has the machine installed, up to the report of its agent.
func (s *site) install(seenUp fleet.SeenUp) bmdb.AgentIdentity {
	s.t.Helper()
	ctx := s.t.Context()
	stop := s.herd.Start()
	time.Sleep(2 * time.Minute)
	stop()
	_, err := s.herd.DB.RequestInstall(ctx, "ada", s.machine, fleet.InstallRequest{
		Image:  fleet.Image{URL: "http://images.example/os", Digest: "sha256:" + strings.Repeat("ab", 32), Compression: fleet.CompressionNone},
		SeenUp: seenUp,
	}, false)
	check(s.t, err)
	r := s.herd.Record(s.machine)
	agent := bmdb.AgentIdentity{Machine: s.machine, TakeoverGeneration: r.AgentStarted.TakeoverGeneration, PublicKey: r.AgentStarted.PublicKey}
	s.order, err = s.herd.DB.HandOutInstall(ctx, agent, 0, 0)
	check(s.t, err)
	s.herd.Change(s.machine, func(h *shepherdtest.Host) { h.Agent = false })
	return agent
}

// dial takes the place of TCP.
func (s *site) dial(_ context.Context, _, address string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials = append(s.dials, address)
	if s.serve == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	pipe := bufconn.Listen(1 << 16)
	serve := s.serve
	go func() {
		defer func() { _ = pipe.Close() }()
		if conn, err := pipe.Accept(); err == nil {
			serve(conn)
		}
	}()
	return pipe.Dial()
}

func (s *site) answers(serve func(net.Conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serve = serve
}

func (s *site) addresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Clone(s.dials))
}

// sshd answers SSH with a host key, and notes who has tried to log in.
func sshd(t *testing.T, key ed25519.PrivateKey, logins *atomic.Int32) func(net.Conn) {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(key)
	check(t, err)
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		logins.Add(1)
		return nil, io.EOF
	}, AuthLogCallback: func(ssh.ConnMetadata, string, error) { logins.Add(1) }}
	config.AddHostKey(signer)
	return func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		_, _, _, _ = ssh.NewServerConn(conn, config)
	}
}

// web answers HTTP; with TLS where there is a configuration for it.
func web(handler http.HandlerFunc, config *tls.Config) func(net.Conn) {
	return func(conn net.Conn) {
		if config != nil {
			conn = tls.Server(conn, config)
		}
		done := make(chan struct{})
		server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), ReadHeaderTimeout: time.Minute, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				close(done)
			}
		}}
		pipe := &single{conn: conn, over: done}
		_ = server.Serve(pipe)
	}
}

// single is a listener of one connection.
type single struct {
	conn net.Conn
	over chan struct{}
}

func (l *single) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.over
	return nil, net.ErrClosed
}
func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return &net.TCPAddr{} }

// run lets the prober and the recoverer work for so long.
func (s *site) run(d time.Duration) {
	s.t.Helper()
	repairs, err := recoverer.New(s.herd.DB, []recoverer.Source{{Name: s.herd.Name, Provider: s.herd.Fake}}, recoverer.DefaultConfig(), recoverer.Options{})
	check(s.t, err)
	stop := s.herd.Start(s.handler, repairs)
	time.Sleep(d)
	stop()
}

func (s *site) wantState(want fleet.State, words string) {
	s.t.Helper()
	if got, why := s.herd.State(s.machine); got != want || !strings.Contains(why, words) {
		s.t.Fatalf("%s (%s), want %s (…%s…)", got, why, want, words)
	}
}

func (s *site) count(event fleet.Event) (n int) {
	s.t.Helper()
	rows, err := s.herd.DB.History(context.WithoutCancel(s.t.Context()), s.machine, 10000)
	check(s.t, err)
	for _, row := range rows {
		if row.Event == event {
			n++
		}
	}
	return n
}

var watched = fleet.SeenUp{By: fleet.SeenBySSH, Watch: true}

func TestSeenBySSHAndWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, watched)
		s.run(time.Minute)
		s.wantState(fleet.StateBooting, "to answer SSH: 127.0.0.1:2222: connection refused")

		var logins atomic.Int32
		s.answers(sshd(t, s.order.HostKey, &logins))
		s.run(30 * time.Second)
		s.wantState(fleet.StateInstalled, "it answers SSH")
		if logins.Load() != 0 {
			t.Error("a probe tried to log in")
		}
		address := s.herd.Record(s.machine).Provided.Address.String() + ":2222"
		if got := s.addresses(); !slices.Equal(got, []string{address}) {
			t.Errorf("%v were called, want %s", got, address)
		}
		rows := s.count(fleet.EventFinished)
		s.run(time.Hour)
		s.wantState(fleet.StateInstalled, "it answers SSH")
		if more := s.count(fleet.EventFinished) - rows; more != 0 {
			t.Errorf("history has %d rows of probes that found nothing new", more)
		}

		s.answers(nil)
		s.run(4 * time.Minute)
		s.wantState(fleet.StateInstalled, "it has not answered SSH since")
		s.run(3 * time.Minute)
		s.wantState(fleet.StateUnreachable, "connection refused")
		s.run(6 * time.Hour)
		s.wantState(fleet.StateUnreachable, "connection refused")
		if pulls := s.herd.Fake.Pulls(); len(pulls) > 0 {
			t.Errorf("a watched machine was not left alone: %v", pulls)
		}
		if r := s.herd.Record(s.machine); r.Repair != nil || r.TakeoverGeneration != 1 {
			t.Errorf("repair %+v, takeover generation %d", r.Repair, r.TakeoverGeneration)
		}

		s.answers(sshd(t, s.order.HostKey, &logins))
		s.run(2 * time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")
		if out, back := s.count(fleet.EventUnreachable), s.count(fleet.EventReachable); out != 1 || back != 1 {
			t.Errorf("unreachable %d times, and back %d times", out, back)
		}
	})
}

// TestWatchedByUnit: calls that do not come make a machine unreachable, and nobody is dialled.
func TestWatchedByUnit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, fleet.SeenUp{Watch: true})
		call := func() time.Duration {
			t.Helper()
			again, err := s.herd.DB.RecordInstalled(t.Context(), s.machine, 1, 1, s.order.Secret, "boot-9")
			check(t, err)
			return again
		}
		again := call()
		for range 30 {
			s.run(again)
			call()
		}
		s.wantState(fleet.StateInstalled, "its unit calls")
		rows := s.count(fleet.EventFinished)
		s.run(6 * time.Minute)
		s.wantState(fleet.StateInstalled, "its unit has not called since")
		s.run(2 * time.Minute)
		s.wantState(fleet.StateUnreachable, "its unit has not called since")
		s.run(6 * time.Hour)
		if more := s.count(fleet.EventFinished) - rows; more != 1 {
			t.Errorf("history has %d rows of one thing that was found", more)
		}
		if pulls := s.herd.Fake.Pulls(); len(pulls) > 0 || len(s.addresses()) > 0 {
			t.Errorf("it was not left alone: %v, %v", pulls, s.addresses())
		}
		call()
		s.wantState(fleet.StateInstalled, "its unit calls")
		s.run(time.Minute)
		s.wantState(fleet.StateInstalled, "its unit calls")
		if out, back := s.count(fleet.EventUnreachable), s.count(fleet.EventReachable); out != 1 || back != 1 {
			t.Errorf("unreachable %d times, and back %d times", out, back)
		}
	})
}

// TestNeverUp: a system that no probe sees goes where one goes whose unit never calls.
func TestNeverUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, watched)
		s.run(24 * time.Minute)
		if pulls := s.herd.Fake.Pulls(); len(pulls) > 0 {
			t.Fatalf("too early: %v", pulls)
		}
		s.run(3 * time.Minute)
		s.wantState(fleet.StateSilent, "reboot was tried")
		if pulls := s.herd.Fake.Pulls(); len(pulls) != 1 || pulls[0].Lever != "reboot" {
			t.Fatalf("%v", pulls)
		}
		var logins atomic.Int32
		s.answers(sshd(t, s.order.HostKey, &logins))
		s.run(time.Minute)
		s.wantState(fleet.StateInstalled, "it answers SSH")
		if n := s.count(fleet.EventRepaired); n != 1 {
			t.Errorf("recovered %d times", n)
		}
	})
}

// TestWhatHangsIsLeft: every way to hang or to babble ends in time, and is no answer.
func TestWhatHangsIsLeft(t *testing.T) {
	t.Parallel()
	babble := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		for {
			if _, err := conn.Write([]byte(strings.Repeat("x", 200) + "\r\n")); err != nil {
				return
			}
		}
	}
	silent := func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	for name, test := range map[string]struct {
		seenUp fleet.SeenUp
		serve  func(net.Conn)
	}{
		"SSH says nothing":         {watched, silent},
		"SSH babbles without end":  {watched, babble},
		"HTTP says nothing":        {fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}, silent},
		"HTTP babbles without end": {fleet.SeenUp{By: fleet.SeenByHTTP, URL: "http://{address}/"}, babble},
		"TLS says nothing":         {fleet.SeenUp{By: fleet.SeenByHTTP, URL: "https://{address}/"}, silent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, test.seenUp)
				s.answers(test.serve)
				s.run(2 * time.Minute)
				r := s.herd.Record(s.machine)
				if r.Installed != nil || r.Probe == nil || r.Probe.Answered() {
					t.Fatalf("installed %+v, probe %+v", r.Installed, r.Probe)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				// each ends within 7 s, and the next one is made 10 s later
				if n := len(s.dials); n < 6 || n > 13 {
					t.Errorf("%d probes in two minutes: %s", n, r.Probe.Detail)
				}
			})
		})
	}
}

func TestSeenByHTTP(t *testing.T) {
	t.Parallel()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" || r.Method != http.MethodGet {
				code = http.StatusTeapot
			}
			w.Header().Set("Location", "http://elsewhere.example/")
			w.WriteHeader(code)
		}
	}
	for name, test := range map[string]struct {
		url   string
		code  int
		up    bool
		words string
		port  string
	}{
		"it answers":                     {"http://{address}:8080/healthz", 200, true, "", "8080"},
		"by a name, which nobody asks":   {"http://web.example/", 204, true, "", "80"},
		"a redirect is an answer":        {"http://{address}/", 302, true, "", "80"},
		"a refusal is none":              {"http://{address}/", 403, false, "status 403", "80"},
		"nor is a failure of the server": {"http://{address}/", 503, false, "status 503", "80"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, fleet.SeenUp{By: fleet.SeenByHTTP, URL: test.url})
				s.answers(web(status(test.code), nil))
				s.run(30 * time.Second)
				if test.up {
					s.wantState(fleet.StateInstalled, "")
				} else {
					s.wantState(fleet.StateBooting, test.words)
				}
				want := s.herd.Record(s.machine).Provided.Address.String() + ":" + test.port
				if got := s.addresses(); !slices.Equal(got, []string{want}) {
					t.Errorf("%v were called, want %s", got, want)
				}
			})
		})
	}
}

// TestTLSIsVerified by the certificates of the request, for the name that the URL has.
func TestTLSIsVerified(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate alone: example.com
	config := &tls.Config{Certificates: server.TLS.Certificates}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	server.Close()
	for name, test := range map[string]struct {
		url, ca string
		up      bool
	}{
		"by the CA of the request":       {"https://example.com/", ca, true},
		"another name":                   {"https://web.example/", ca, false},
		"by the address, which it names": {"https://{address}/", ca, true},
		"by the public roots":            {"https://example.com/", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, fleet.SeenUp{By: fleet.SeenByHTTP, URL: test.url, CA: test.ca})
				s.answers(web(func(http.ResponseWriter, *http.Request) {}, config))
				s.run(30 * time.Second)
				if got := s.herd.Record(s.machine).Installed != nil; got != test.up {
					t.Fatalf("installed: %t; %+v", got, s.herd.Record(s.machine).Probe)
				}
				if !test.up {
					s.wantState(fleet.StateBooting, "certificate")
				}
			})
		})
	}
}

// TestOurOwnFaultSaysNothingOfTheMachine, whatever keeps us from asking.
func TestOurOwnFaultSaysNothingOfTheMachine(t *testing.T) {
	t.Parallel()
	for _, fault := range []syscall.Errno{syscall.ENETUNREACH, syscall.EPERM, syscall.ENFILE} {
		t.Run(fault.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, watched)
				handler, err := prober.New(s.herd.DB, []prober.Source{{Name: s.herd.Name, Provider: s.herd.Fake}}, prober.DefaultConfig(), nil,
					prober.Options{Dial: func(context.Context, string, string) (net.Conn, error) {
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", fault)}
					}})
				check(t, err)
				s.handler = handler
				s.run(3 * time.Hour)
				if r := s.herd.Record(s.machine); r.Probe != nil || r.Repair != nil || r.Backoffs[fleet.ProcessProbe].Failures == 0 {
					t.Errorf("probe %+v, repair %+v, backoff %+v", r.Probe, r.Repair, r.Backoffs[fleet.ProcessProbe])
				}
				s.wantState(fleet.StateBooting, "")
			})
		})
	}
}
