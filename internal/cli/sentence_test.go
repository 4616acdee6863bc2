package cli_test

import (
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/cli"
)

// TestQuotedCommandsNameTheControlPlane: a sentence of the control plane does not know how that was
// reached. JSON has it as it came; golden files have machine explain, machine show and status.
func TestQuotedCommandsNameTheControlPlane(t *testing.T) {
	t.Parallel()
	const begun = "`ironherd serve` lacks a role; `ironherd discrepancy list"
	server := newFakeServer(t)
	server.summary = &fleetv1.GetSummaryResponse{Concerns: []*fleetv1.Concern{{Text: begun + "`; `ironherd token create NAME --role ROLE`, `initializer.penalty`"}}}
	if r := server.run(t, "status"); r.code != 0 ||
		!strings.Contains(r.stdout, "  "+begun+" --server "+server.url+"`; `ironherd token create NAME --role ROLE`, `initializer.penalty`\n") {
		t.Errorf("got %d: %s%s", r.code, r.stdout, r.stderr)
	}
	server.lost = []error{connect.NewError(connect.CodeFailedPrecondition, errors.New(begun+"`"))}
	if r := server.run(t, "machine", "show", "herd-0001"); r.code != 5 || r.stderr != "ironherd: "+begun+" --server "+server.url+"`\n" {
		t.Errorf("a failure: got %d: %s%s", r.code, r.stdout, r.stderr)
	}
	for _, args := range []string{"status", "machine explain herd-0001", "discrepancy list"} {
		if r := server.run(t, append(strings.Fields(args), "-o", "json")...); r.code != 0 || strings.Contains(r.stdout, "--server") {
			t.Errorf("%s: got %d: %s%s", args, r.code, r.stdout, r.stderr)
		}
	}
}

// TestQuotedCommandsNameTheConfiguration: it is how the control plane on this host is reached, and
// what runs on its host takes it, too. A control plane with another role has another one.
func TestQuotedCommandsNameTheConfiguration(t *testing.T) {
	t.Parallel()
	const sentence = "see `ironherd recovery status`, `ironherd db accept-restore --yes`, `ironherd serve`, `ironherd token create NAME`"
	const want = "see `ironherd recovery status --config /etc/h.yaml`, `ironherd db accept-restore --yes --config /etc/h.yaml`, `ironherd serve`, `ironherd token create NAME --config /etc/h.yaml`"
	if got := cli.Asked("/etc/h.yaml", sentence); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
