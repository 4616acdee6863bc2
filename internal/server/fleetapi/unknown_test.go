package fleetapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/token"
)

// TestWhatIsNotKnownIsRefused: a caller that is newer than its control plane has nothing done by a
// request that is known only in part. Questions are answered.
func TestWhatIsNotKnownIsRefused(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.levered()
	id := o.machines(1)[0]
	newer := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	}
	install := func() *fleetv1.InstallMachineRequest {
		return &fleetv1.InstallMachineRequest{Machine: "host-0", ImageName: "small", RootDisk: &agentv1.DiskSelector{MinSize: 1}}
	}
	plan := func() *fleetv1.CreatePlanRequest {
		return &fleetv1.CreatePlanRequest{Verb: "reinstall", Machines: []string{"host-0"}, Reason: "b", Install: install(), Confirm: true}
	}
	client := o.client(token.Operator)
	refused := func(what string, err error) {
		t.Helper()
		want := "the request has a field that this control plane (version v1) does not know, and nothing was done: upgrade it, or leave out what only newer ones know"
		if code(err) != connect.CodeUnimplemented || message(err) != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	whole, within := install(), install()
	newer(whole)
	newer(within.GetRootDisk())
	for what, request := range map[string]*fleetv1.InstallMachineRequest{"an install": whole, "its selector": within} {
		_, err := client.InstallMachine(t.Context(), request)
		refused(what, err)
	}
	deep := plan()
	newer(deep.GetInstall().GetRootDisk())
	narrowed := plan()
	newer(narrowed)
	for what, request := range map[string]*fleetv1.CreatePlanRequest{"a plan": narrowed, "its install": deep} {
		_, err := client.CreatePlan(t.Context(), request)
		refused(what, err)
	}
	question := &fleetv1.ListMachinesRequest{}
	newer(question)
	if _, err := client.ListMachines(t.Context(), question); err != nil {
		t.Errorf("a question: %v", err)
	}
	if q := o.record(id).InstallRequest; q != nil {
		t.Fatalf("an install was asked for: %+v", q)
	}
	if _, err := client.CreatePlan(t.Context(), plan()); err != nil || o.record(id).InstallRequest == nil {
		t.Errorf("what is known: %v", err)
	}
}

// post asks as a person with curl does.
func (o *fixture) post(role token.Role, call, kind, body string) (status int, answer string) {
	o.t.Helper()
	r, err := http.NewRequestWithContext(o.t.Context(), http.MethodPost, o.url+"/ironherd.fleet.v1.FleetService/"+call, strings.NewReader(body))
	o.must(err)
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Authorization", "Bearer "+o.tokens[role])
	a, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	o.must(err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	o.must(err)
	return a.StatusCode, string(text)
}

// TestASlipInJSONIsRefused: a name or a value that is not known is none that may be left out.
func TestASlipInJSONIsRefused(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	for _, kind := range []string{"application/json", "application/json; charset=utf-8"} {
		for slip, selector := range map[string]string{"minSise": `{"minSise":"5"}`, "PICK_SMALEST": `{"pick":"PICK_SMALEST"}`} {
			status, answer := o.post(token.Operator, "InstallMachine", kind, `{"machine":"host-0","imageName":"small","rootDisk":`+selector+`}`)
			if status != http.StatusBadRequest || !strings.Contains(answer, slip) || o.record(id).InstallRequest != nil {
				t.Errorf("%s as %s: %d %s", slip, kind, status, answer)
			}
		}
	}
	// Both ways to write a name are known.
	status, answer := o.post(token.Operator, "InstallMachine", "application/json", `{"machine":"host-0","image_name":"small","rootDisk":{"min_size":"5"}}`)
	if status != http.StatusOK || o.record(id).InstallRequest == nil {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := o.post(token.Viewer, "ListMachines", "application/json", `{"sise":3}`); status != http.StatusOK {
		t.Errorf("a question: %d %s", status, answer)
	}
}
