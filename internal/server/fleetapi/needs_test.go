package fleetapi_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/server/fleetapi"
	"github.com/ironherd/ironherd/internal/token"
)

// allowed spells out who may call what. It is written by hand, so that a change of the table that
// is not meant shows.
var allowed = map[string]string{
	"GetSummary":        "viewer operator admin",
	"ListMachines":      "viewer operator admin",
	"GetMachine":        "viewer operator admin",
	"ExplainMachine":    "viewer operator admin",
	"ListHistory":       "viewer operator admin",
	"ListProviders":     "viewer operator admin",
	"ListSessions":      "viewer operator admin",
	"ListDiscrepancies": "viewer operator admin",
	"GetVersion":        "viewer operator admin",
	"InstallMachine":    "operator admin",
	"RetryMachine":      "operator admin",
	"GetHostKeys":       "viewer operator admin",
	"ListImages":        "viewer operator admin",
	"AcceptHostKey":     "admin",
	"GetPlan":           "viewer operator admin",
	"CreatePlan":        "operator admin",
	"ConfirmPlan":       "operator admin",
	"AdoptMachine":      "operator admin",
	"PauseProvider":     "operator admin",
	"ForgetProvider":    "operator admin",
	"ResumeProvider":    "operator admin",
	"RetryProvider":     "operator admin",
	"PauseRecovery":     "operator admin",
	"ResumeRecovery":    "operator admin",
}

// procedures lists the methods of the API by its descriptor.
func procedures() (all []protoreflect.MethodDescriptor) {
	services := fleetv1.File_api_fleet_v1_fleet_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			all = append(all, methods.Get(j))
		}
	}
	return all
}

func path(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// TestWhatEachRoleMayCall calls each procedure of the API with each role, with no token and with a
// wrong one.
func TestWhatEachRoleMayCall(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	needs := fleetapi.Needs()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	credentials := map[string]string{"": "", "guess": "ironherd_guess"}
	for role, text := range o.tokens {
		credentials[string(role)] = text
	}
	if len(procedures()) != len(allowed) {
		t.Errorf("the API has %d procedures, and %d are spelt out", len(procedures()), len(allowed))
	}
	for _, m := range procedures() {
		if _, ok := needs[path(m)]; !ok {
			t.Errorf("the table has no row for %s", path(m))
		}
		for role, text := range credentials {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.url+path(m), strings.NewReader(`{"machine":"none-such"}`))
			o.must(err)
			r.Header.Set("Content-Type", "application/json")
			if text != "" {
				r.Header.Set("Authorization", "Bearer "+text)
			}
			a, err := client.Do(r)
			o.must(err)
			body, _ := io.ReadAll(a.Body)
			a.Body.Close()
			want := 0
			switch {
			case role == "" || role == "guess":
				want = http.StatusUnauthorized
			case !strings.Contains(" "+allowed[string(m.Name())]+" ", " "+role+" "):
				want = http.StatusForbidden
			}
			refused := a.StatusCode == http.StatusUnauthorized || a.StatusCode == http.StatusForbidden
			if refused != (want != 0) || refused && a.StatusCode != want {
				t.Errorf("%s as %q: %d %.200s", m.Name(), role, a.StatusCode, body)
			}
		}
	}
}

// TestDirectCallsAreAuthorizedToo calls the methods as the page does, where no server stands before
// them.
func TestDirectCallsAreAuthorizedToo(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	service := fleetapi.New(o.db, fleetapi.Options{Logger: discard})
	for name, call := range map[string]func(context.Context) error{
		"GetSummary": func(ctx context.Context) error {
			_, err := service.GetSummary(ctx, &fleetv1.GetSummaryRequest{})
			return err
		},
		"RetryMachine": func(ctx context.Context) error {
			_, err := service.RetryMachine(ctx, &fleetv1.RetryMachineRequest{})
			return err
		},
	} {
		if err := call(t.Context()); code(err) != connect.CodeUnauthenticated {
			t.Errorf("%s without a caller: %v", name, err)
		}
	}
}

// TestTheTableHasNoOtherRows finds a row that is left over, and one that lets strangers in.
func TestTheTableHasNoOtherRows(t *testing.T) {
	t.Parallel()
	needs := fleetapi.Needs()
	for _, m := range procedures() {
		delete(needs, path(m))
	}
	want := map[string]token.Role{
		"/metrics": token.Metrics, "/": token.Viewer, "/healthz": token.None, "/readyz": token.None,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      token.Viewer,
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": token.Viewer,
	}
	for row, role := range needs {
		if w, ok := want[row]; !ok || w != role {
			t.Errorf("%s needs %q", row, role)
		}
	}
	if len(needs) != len(want) {
		t.Errorf("%d rows, want %d", len(needs), len(want))
	}
	if got := server.Needed(fleetapi.Needs(), "/anything/else"); got != token.Viewer || fleet.KindOf((server.Caller{}).May(got)) != fleet.KindUnauthenticated {
		t.Errorf("any other path needs %q", got)
	}
}
