package webui

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stubFleet answers what it was given, and counts what it was asked.
type stubFleet struct {
	fleetv1connect.UnimplementedFleetServiceHandler

	mu            sync.Mutex
	calls         map[string]int
	fail          func(method string) error
	summary       *fleetv1.GetSummaryResponse
	machines      []*fleetv1.Machine
	next          string
	asked         *fleetv1.ListMachinesRequest
	machine       *fleetv1.GetMachineResponse
	explanation   string
	history       []*fleetv1.HistoryEntry
	providers     []*fleetv1.Provider
	sessions      []*fleetv1.Session
	discrepancies []*fleetv1.Discrepancy
	uncompared    []*fleetv1.Uncompared
}

// enter counts a call and returns the failure that is wanted; the caller unlocks when it has read
// its answer.
func (s *stubFleet) enter(method string) (unlock func(), err error) {
	s.mu.Lock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[method]++
	if s.fail != nil {
		err = s.fail(method)
	}
	return s.mu.Unlock, err
}

func (s *stubFleet) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *stubFleet) count(method string) (n int) {
	s.change(func() { n = s.calls[method] })
	return n
}

// copied makes an answer that later changes do not reach.
func copied[M proto.Message](unlock func(), err error, m M) (M, error) {
	defer unlock()
	var none M
	if err != nil {
		return none, err
	}
	return proto.CloneOf(m), nil
}

func (s *stubFleet) GetSummary(_ context.Context, r *fleetv1.GetSummaryRequest) (*fleetv1.GetSummaryResponse, error) {
	unlock, err := s.enter("GetSummary")
	if r.GetPhases() {
		s.calls["phases"]++
	}
	a, err := copied(unlock, err, s.summary)
	if err == nil && !r.GetPhases() {
		a.Phases = nil
	}
	return a, err
}

func (s *stubFleet) ListMachines(_ context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	unlock, err := s.enter("ListMachines")
	s.asked = r
	return copied(unlock, err, &fleetv1.ListMachinesResponse{Machines: s.machines, NextPageToken: s.next})
}

func (s *stubFleet) GetMachine(context.Context, *fleetv1.GetMachineRequest) (*fleetv1.GetMachineResponse, error) {
	unlock, err := s.enter("GetMachine")
	return copied(unlock, err, s.machine)
}

func (s *stubFleet) ExplainMachine(context.Context, *fleetv1.ExplainMachineRequest) (*fleetv1.ExplainMachineResponse, error) {
	unlock, err := s.enter("ExplainMachine")
	return copied(unlock, err, &fleetv1.ExplainMachineResponse{Summary: s.explanation})
}

func (s *stubFleet) ListHistory(context.Context, *fleetv1.ListHistoryRequest) (*fleetv1.ListHistoryResponse, error) {
	unlock, err := s.enter("ListHistory")
	return copied(unlock, err, &fleetv1.ListHistoryResponse{Entries: s.history})
}

func (s *stubFleet) ListProviders(context.Context, *fleetv1.ListProvidersRequest) (*fleetv1.ListProvidersResponse, error) {
	unlock, err := s.enter("ListProviders")
	return copied(unlock, err, &fleetv1.ListProvidersResponse{Providers: s.providers})
}

func (s *stubFleet) ListSessions(context.Context, *fleetv1.ListSessionsRequest) (*fleetv1.ListSessionsResponse, error) {
	unlock, err := s.enter("ListSessions")
	return copied(unlock, err, &fleetv1.ListSessionsResponse{Sessions: s.sessions})
}

func (s *stubFleet) ListDiscrepancies(_ context.Context, r *fleetv1.ListDiscrepanciesRequest) (*fleetv1.ListDiscrepanciesResponse, error) {
	unlock, err := s.enter("ListDiscrepancies")
	return copied(unlock, err, &fleetv1.ListDiscrepanciesResponse{
		Discrepancies: s.discrepancies[:min(len(s.discrepancies), int(r.GetLimit()))], Uncompared: s.uncompared,
	})
}

func (s *stubFleet) GetVersion(context.Context, *fleetv1.GetVersionRequest) (*fleetv1.GetVersionResponse, error) {
	unlock, err := s.enter("GetVersion")
	return copied(unlock, err, &fleetv1.GetVersionResponse{Version: "v1.2.3", GoVersion: "go1.26", Database: "sqlite", Schema: 7})
}

// down makes every question fail as when nobody listens.
func down(string) error {
	return connect.NewError(connect.CodeUnavailable, errors.New("connection refused"))
}

// overWire returns a client that reaches the stub through a real server.
func overWire(t *testing.T, s *stubFleet) fleetv1connect.FleetServiceClient {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(fleetv1connect.NewFleetServiceHandler(s))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return fleetv1connect.NewFleetServiceClient(server.Client(), server.URL)
}

// get asks a handler for a page.
func get(t *testing.T, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// expect compares with a golden file, one element a line.
func expect(t *testing.T, name, html string) {
	t.Helper()
	html = strings.ReplaceAll(html, "><", ">\n<") + "\n"
	path := filepath.Join("testdata", name+".html")
	if *update {
		if err := os.WriteFile(path, []byte(html), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), html); diff != "" {
		t.Errorf("%s is not as it was (-was +is; go test -update accepts it):\n%s", path, diff)
	}
}

func instant(text string) time.Time {
	at, err := time.Parse(time.DateTime, "2026-03-01 "+text)
	if err != nil {
		panic(err)
	}
	return at
}
