package cli_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/cli"
)

// pagedFleet gives so many machines in pages of so many. It fails where page says so.
type pagedFleet struct {
	*fakeFleet
	n, size int
	page    func(first int) error
}

func (f *pagedFleet) ListMachines(_ context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	first := 0
	for first < f.n && manyID(first) <= r.GetPageToken() {
		first++
	}
	if err := f.page(first); err != nil {
		return nil, err
	}
	a := &fleetv1.ListMachinesResponse{}
	for i := first; i < min(f.n, first+f.size); i++ {
		m := machine()
		m.Id, m.Reason = manyID(i), "- two lines:\n[]\n  and \"quotes\" \u009b"
		a.Machines, a.NextPageToken = append(a.Machines, m), manyID(i)
	}
	if first+f.size >= f.n {
		a.NextPageToken = ""
	}
	return a, nil
}

func nothing(int) error { return nil }

// TestAnEmptyListSaysOfWhat: a selection that nothing fits is not a fleet without machines.
func TestAnEmptyListSaysOfWhat(t *testing.T) {
	t.Parallel()
	f := &pagedFleet{fakeFleet: &fakeFleet{}, page: nothing}
	h := serveFake(t, f.fakeFleet, f)
	for command, want := range map[string]string{
		"machine list":                      "No machines.\n",
		"machine list --limit 1":            "No machines.\n",
		"machine list --state silent":       "No machine fits.\n",
		"machine list --after " + manyID(1): "No machine fits.\n",
	} {
		if r := h.run(t, strings.Fields(command)...); r.code != 0 || r.stdout != want {
			t.Errorf("%s: %d, %q, %s", command, r.code, r.stdout, r.stderr)
		}
	}
}

// TestAListOfPagesReadsAsOne: JSON and YAML do not show where a page ended.
func TestAListOfPagesReadsAsOne(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"json", "yaml", "table"} {
		for _, n := range []int{0, 1, 2, 3, 4} {
			var whole result
			for _, size := range []int{5, 2, 1} {
				f := &pagedFleet{fakeFleet: &fakeFleet{}, n: n, size: size, page: nothing}
				r := serveFake(t, f.fakeFleet, f).run(t, "machine", "list", "-o", output)
				if whole.stdout == "" {
					whole = r
				}
				if r.code != 0 || r.stdout != whole.stdout || strings.Count(r.stdout, "herd-0001") != n {
					t.Errorf("%s of %d machines by %d: %d, %s%s\nwant\n%s", output, n, size, r.code, r.stderr, r.stdout, whole.stdout)
				}
			}
			if n == 2 && output != "table" {
				golden(t, "machine_list."+output, whole.stdout)
			}
		}
	}
	f := &pagedFleet{fakeFleet: &fakeFleet{}, n: 4, size: 2, page: nothing}
	if r := serveFake(t, f.fakeFleet, f).run(t, "machine", "list", "-o", "json", "--limit", "3", "--after", manyID(0)); strings.Count(r.stdout, `"id":`) != 3 ||
		strings.Contains(r.stdout, manyID(0)) {
		t.Errorf("part of it: %s", r.stdout)
	}
}

// locked is a buffer that may be looked at while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestAListIsWrittenPageByPage: a fleet need not fit into memory. What ends it is told.
func TestAListIsWrittenPageByPage(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"json", "yaml"} {
		out, notes := &locked{}, &locked{}
		f := &pagedFleet{fakeFleet: &fakeFleet{}, n: 6, size: 2}
		f.page = func(first int) error {
			if n := strings.Count(out.String(), "herd-0001"); n != first {
				t.Errorf("%s: %d machines are written when those behind %d are asked for", output, n, first)
			}
			if first == 4 {
				return connect.NewError(connect.CodeUnavailable, errors.New("it is being stopped"))
			}
			return nil
		}
		h := serveFake(t, f.fakeFleet, f)
		code := cli.Main(t.Context(), []string{"machine", "list", "-o", output, "--server", h.url}, cli.Env{
			Stdin: strings.NewReader(""), Stdout: out, Stderr: notes, Executable: filepath.Join(t.TempDir(), "ironherd"),
		})
		if code != 7 || !strings.Contains(notes.String(), "it is being stopped") || strings.Contains(out.String(), "nextPageToken") {
			t.Errorf("%s: %d, %s%s", output, code, notes, out)
		}
	}
}

// readByAPerson is an output of which each write takes a minute.
type readByAPerson struct{ bytes.Buffer }

func (o *readByAPerson) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return o.Buffer.Write(p)
}

// direct answers without a network, after so long, unless it is not waited for.
type direct struct {
	fleetv1connect.FleetServiceClient
	fleet *pagedFleet
	takes time.Duration
}

func (d direct) ListMachines(ctx context.Context, r *fleetv1.ListMachinesRequest) (*fleetv1.ListMachinesResponse, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(d.takes):
	}
	return d.fleet.ListMachines(ctx, r)
}

// TestAListIsReadSlowly: whoever pages through a list may take as long as they want. Each request
// is bounded all the same, and all of it where --timeout was given.
func TestAListIsReadSlowly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		takes    time.Duration
		args     []string
		complete bool
	}{{time.Second, nil, true}, {31 * time.Second, nil, false}, {time.Second, []string{"--timeout", "30s"}, false}} {
		synctest.Test(t, func(t *testing.T) {
			out := &readByAPerson{}
			client := direct{fleet: &pagedFleet{n: 6, size: 2, page: nothing}, takes: c.takes}
			err := cli.ListJSON(t.Context(), client, out, c.args...)
			if all := strings.Count(out.String(), "herd-0001") == 6; all != c.complete || (err == nil) != c.complete {
				t.Errorf("%v: complete %t, %v", c, all, err)
			}
		})
	}
}
