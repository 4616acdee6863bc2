package fleetapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/token"
	"github.com/ironherd/ironherd/internal/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const providerName = fleet.ProviderName("lab")

var discard = slog.New(slog.DiscardHandler)

// fixture is an operators' API over a real database, on loopback.
type fixture struct {
	t        *testing.T
	db       *bmdb.DB
	url      string
	tokens   map[token.Role]string
	progress *agentv1.InstallProgress
	session  *bmdb.Session
	// called gets the context of each call; nil: nobody does.
	called func(ctx context.Context)
	// stop tells the server to stop.
	stop context.CancelFunc
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureBy(t, nil)
}

// newFixtureBy returns one whose database goes by that clock; nil: by the system's.
func newFixtureBy(t *testing.T, clock *trust.Clock) *fixture {
	t.Helper()
	return newFixtureWith(t, clock, nil)
}

// newFixtureWith returns one whose transactions are told to the observer; nil: to nobody.
func newFixtureWith(t *testing.T, clock *trust.Clock, observer bmdb.Observer) *fixture {
	t.Helper()
	o := &fixture{t: t}
	engine := sqlitetest.Open(t, filepath.Join(t.TempDir(), "bmdb"), sqlite.Options{Logger: discard, Clock: clock})
	var err error
	o.db, err = bmdb.Open(t.Context(), engine, bmdb.Options{Logger: discard, Observer: observer})
	o.must(err)
	t.Cleanup(func() { o.must(o.db.Close()) })
	o.must(o.db.RegisterProvider(t.Context(), providerName, "static", 7))
	o.session, err = o.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "tester", Host: "here", PID: 4, Lease: time.Minute})
	o.must(err)
	service := fleetapi.New(o.db, fleetapi.Options{
		Logger: discard, Version: "v1", Database: "sqlite", Schema: 1,
		Pacing: func(name fleet.ProviderName) string { return "as " + string(name) + " wants" },
		Images: []fleet.Image{
			{
				Name: "debian-13", URL: "https://images.example/d.raw.zst?sig=hidden", Digest: "sha256:" + strings.Repeat("d", 64),
				Compression: fleet.CompressionZstd, Size: 12, FirstBoot: fleet.FirstBootNoCloud,
			},
			{Name: "small", URL: "https://images.example/s", Digest: "sha256:" + strings.Repeat("e", 64), Compression: fleet.CompressionNone},
		},
		Progress: func(fleet.MachineID) *agentv1.InstallProgress { return o.progress },
	})
	mux := http.NewServeMux()
	service.Register(mux)
	l, err := server.Listen(t.Context(), "127.0.0.1:0")
	o.must(err)
	o.url = l.URL("http")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	o.stop = cancel
	ended := make(chan error)
	file := filepath.Join(t.TempDir(), "tokens")
	o.tokens = map[token.Role]string{}
	for _, role := range token.Roles() {
		o.tokens[role], _, err = token.Create(file, string(role), role, time.Hour)
		o.must(err)
	}
	tokens, err := token.Open(file, discard)
	o.must(err)
	guarded := server.NewAccess(tokens, slog.New(slog.DiscardHandler)).Identify(server.Guard(fleetapi.Needs(), mux))
	handler := server.NewHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.called != nil {
			o.called(r.Context())
		}
		guarded.ServeHTTP(w, r)
	}), server.HTTPOptions{Logger: discard})
	go func() { ended <- l.Serve(ctx, handler.Serve) }()
	t.Cleanup(func() {
		cancel()
		o.must(<-ended)
	})
	return o
}

func (o *fixture) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

// client is a caller over TCP whose token has this role.
func (o *fixture) client(role token.Role, options ...connect.ClientOption) fleetv1connect.FleetServiceClient {
	return o.clientWith(o.tokens[role], options...)
}

// clientWith is a caller over TCP with this token; none when it is empty.
func (o *fixture) clientWith(token string, options ...connect.ClientOption) fleetv1connect.FleetServiceClient {
	transport := &http.Transport{}
	o.t.Cleanup(transport.CloseIdleConnections)
	options = append(options, connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			if token != "" {
				r.Header().Set("Authorization", "Bearer "+token)
			}
			return next(ctx, r)
		}
	})))
	return fleetv1connect.NewFleetServiceClient(&http.Client{Transport: transport}, o.url, options...)
}

func (o *fixture) claim(process fleet.Process) []*bmdb.Work {
	o.t.Helper()
	c, err := o.session.Claim(o.t.Context(), bmdb.ClaimRequest{Process: process, Limit: 100})
	o.must(err)
	return c.Works
}

// machines creates them; their names are host-0, host-1, …
func (o *fixture) machines(n int) []fleet.MachineID {
	o.t.Helper()
	w := o.claim(fleet.ProcessProvision)[0]
	intents := make([]bmdb.NewIntent, n)
	for i := range intents {
		intents[i] = bmdb.NewIntent{Capacity: fleet.CapacityID(name(i)), Machine: fleet.NewMachineID(), Token: fleet.NewToken()}
	}
	var opened []fleet.Intent
	o.must(w.Note(o.t.Context(), bmdb.OpenIntents(0, intents, &opened)))
	var ids []fleet.MachineID
	var changes []bmdb.Change
	for i, intent := range opened {
		ids = append(ids, intent.Machine)
		changes = append(changes, bmdb.IntentCalled(intent.Machine), bmdb.CloseIntentProvided(intent.Machine, fleet.ProviderID("id-"+name(i)), fleet.Provided{
			Status: fleet.ProviderStatusActive, Hostname: name(i), Address: netip.MustParseAddr("192.0.2.7"), Location: "here", Capacity: intent.Capacity,
		}))
	}
	o.must(w.Finish(o.t.Context(), append(changes, bmdb.SetPenalty("bad-slot", time.Hour, "it failed"), bmdb.SetPassResult("all is well\nhost c makes no sense"))...))
	return ids
}

func name(i int) string { return "host-" + string(rune('0'+i)) }

// takeover puts an agent in charge, which speaks and reports.
func (o *fixture) takeover(w *bmdb.Work) bmdb.AgentIdentity {
	o.t.Helper()
	key, _, err := ed25519.GenerateKey(rand.Reader)
	o.must(err)
	a := bmdb.AgentIdentity{Machine: w.Subject.Machine, PublicKey: key}
	o.must(w.Note(o.t.Context(), bmdb.MintTakeover(0, &a.TakeoverGeneration)))
	o.must(w.Finish(o.t.Context(), bmdb.SetAgentStarted(fleet.AgentStarted{
		TakeoverGeneration: a.TakeoverGeneration, PublicKey: key, AgentVersion: "v1", BootID: "b1",
	})))
	o.must(o.db.RecordSpoken(o.t.Context(), a, "b1"))
	report, err := proto.Marshal(&agentv1.HardwareReport{System: &agentv1.System{Vendor: "ACME"}})
	o.must(err)
	o.must(o.db.RecordHardware(o.t.Context(), a, report, nil))
	return a
}

func code(err error) connect.Code {
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// message is what a person is told.
func message(err error) string {
	if e := new(connect.Error); errors.As(err, &e) {
		return e.Message()
	}
	return err.Error()
}
