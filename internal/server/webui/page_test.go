package webui

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// look loads a view of a small fleet.
func look(t *testing.T, v view) live.Answer[*live.Content] {
	t.Helper()
	opts := live.Options{Logger: slog.New(slog.DiscardHandler), Interval: 1, Timeout: time.Minute}
	a, err := live.NewCache(opts).Look(t.Context(), sourced{v, newSource(overWire(t, smallFleet()), opts)})
	if err != nil || a.Err != nil {
		t.Fatal(err, a.Err)
	}
	return a
}

// TestFragments compares every fragment of every view, as it is sent, with its golden file.
func TestFragments(t *testing.T) {
	t.Parallel()
	views := map[string]view{
		"overview": overviewView{},
		"machines": machinesView{states: "creating,installed", token: first},
		"machine":  machineView{ref: "herd-0001"},
	}
	for name, v := range views {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := look(t, v)
			for _, f := range a.Value.Fragments {
				expect(t, name+"."+f.ID, f.HTML())
			}
		})
	}
}

// TestInstallCommand: the command that a machine's page names is not refused.
func TestInstallCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state fleet.State
		facts []string
		ends  string
	}{
		{fleet.StateAvailable, nil, " --erase --wait"},
		{fleet.StateInstalled, []string{"installed"}, " --reinstall --reason WHY"},
		{fleet.StateSilent, []string{"on disk"}, " --reinstall --reason WHY"},
		{fleet.StateInstalled, []string{"marked installed"}, " --reinstall --erase --reason WHY"},
		{fleet.StateSilent, []string{"installed", "erased"}, " --reinstall --erase --reason WHY"},
		{fleet.StateUnreachable, []string{"installed"}, " --reinstall --reason WHY"},
		{fleet.StateRefused, []string{"installed"}, " --image URL --digest sha256:DIGEST --reinstall --erase --reason WHY"},
		{fleet.StateMissing, []string{"installed"}, ""},
		{fleet.StateReleasing, nil, ""},
	} {
		p := machinePage{GetMachineResponse: &fleetv1.GetMachineResponse{Machine: &fleetv1.Machine{Id: first, State: string(c.state)}}}
		if c.state == fleet.StateRefused { // as who acts next says
			p.next = &fleetv1.NextStep{Command: "ironherd machine install " + first + " --image IMAGE --reinstall --erase --reason WHY"}
		}
		for _, fact := range c.facts {
			p.Facts = append(p.Facts, &fleetv1.Fact{Name: fact})
		}
		if got := p.installCommand(); !strings.HasSuffix(got, c.ends) || (got == "") != (c.ends == "") {
			t.Errorf("%s: %q", c.state, got)
		}
	}
}

// TestNoInstallCommandForAnAgentThatIsTooOld: it would refuse that, too.
func TestNoInstallCommandForAnAgentThatIsTooOld(t *testing.T) {
	t.Parallel()
	p := machinePage{
		GetMachineResponse: &fleetv1.GetMachineResponse{Machine: &fleetv1.Machine{Id: first, State: string(fleet.StateRefused)}},
		next:               &fleetv1.NextStep{Command: "ironherd machine reboot " + first + " --reason WHY"},
	}
	if got := p.installCommand(); got != "" {
		t.Error(got)
	}
}

// TestEmptyFleet: what a first visitor sees before there is anything.
func TestEmptyFleet(t *testing.T) {
	t.Parallel()
	stub := &stubFleet{summary: &fleetv1.GetSummaryResponse{}}
	site := New(overWire(t, stub), Options{})
	for target, wanted := range map[string]string{"/": "There are no machines yet.", "/machines": "There are no machines yet."} {
		w := get(t, site, target)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), wanted) {
			t.Errorf("%s: got %d without %q:\n%s", target, w.Code, wanted, w.Body)
		}
	}
}

// TestVerdict: all is well only where nothing is failing, late, overdue, in trouble or
// contradicted.
func TestVerdict(t *testing.T) {
	t.Parallel()
	well := func() *stubFleet {
		return &stubFleet{summary: &fleetv1.GetSummaryResponse{Machines: 3, States: []*fleetv1.StateCount{{State: "installed", Machines: 3}}}}
	}
	const good = "Nothing needs you."
	if w := get(t, New(overWire(t, well()), Options{}), "/"); !strings.Contains(w.Body.String(), good) {
		t.Errorf("a fleet that is well: %s", w.Body)
	}
	for name, test := range map[string]struct {
		change func(*stubFleet)
		says   string
	}{
		"a provider fails": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "provider", Subject: "metal", Count: 1, Text: "provider metal fails"}}
		}, `<a href="#providers">provider metal fails</a>`},
		"machines are late": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "late", Subject: "creating", Count: 2, Text: "2 creating for more than an hour"}}
		}, `<a href="/machines?state=creating">2 creating for more than an hour</a>`},
		"work is overdue": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "overdue", Subject: "recovery", Count: 6, Text: "recovery is overdue"}}
		}, `<a href="#processes">recovery is overdue</a>`},
		"a host key is refused": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "host-key", Subject: "m1", Count: 1, Text: "a machine shows a host key"}}
		}, `<a href="/machines/m1">a machine shows a host key</a>`},
		"a kind that this page does not know": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "new", Count: 1, Text: "something new"}}
		}, "something new"},
		"nothing can be heard": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "listener", Count: 3, Text: "no agent listener is up"}}
		}, "no agent listener is up"},
		"the database was restored": {func(s *stubFleet) {
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "restored", Count: 1, Text: "the database looks restored or copied"}}
		}, "the database looks restored or copied"},
		"machines are in trouble": {func(s *stubFleet) {
			s.summary.States = append(s.summary.States, &fleetv1.StateCount{State: "silent", Machines: 2})
		}, "2 silent"},
		"a discrepancy": {func(s *stubFleet) { s.discrepancies = []*fleetv1.Discrepancy{{Provider: "metal"}} }, "1 discrepancy"},
		"no machines, and a provider fails": {func(s *stubFleet) {
			s.summary.Machines, s.summary.States = 0, nil
			s.summary.Concerns = []*fleetv1.Concern{{Kind: "provider", Subject: "metal", Count: 1, Text: "provider metal fails"}}
		}, "provider metal fails"},
	} {
		stub := well()
		test.change(stub)
		w := get(t, New(overWire(t, stub), Options{}), "/")
		if body := w.Body.String(); strings.Contains(body, good) || !strings.Contains(body, "Needs a look:") || !strings.Contains(body, test.says) {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// TestManyDiscrepancies: a page shows the first of them, however many there are.
func TestManyDiscrepancies(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	stub.discrepancies = nil
	for i := range 1230 {
		stub.discrepancies = append(stub.discrepancies, &fleetv1.Discrepancy{Provider: "metal", ProviderId: fmt.Sprintf("dev-%04d", i)})
	}
	stub.summary.Discrepancies = int64(len(stub.discrepancies))
	body := get(t, New(overWire(t, stub), Options{}), "/").Body.String()
	if n := strings.Count(body, "<div>dev-"); n != 100 || !strings.Contains(body, "dev-0099") || !strings.Contains(body, "and 1\u202f130 more: ironherd discrepancy list") ||
		!strings.Contains(body, "1\u202f230 discrepancies") {
		t.Errorf("%d are shown", n)
	}
}

// TestPageCounts: times are counted on a page, and absolute in what is hashed, so that time alone
// changes no mark.
func TestPageCounts(t *testing.T) {
	t.Parallel()
	a := look(t, machineView{ref: first})
	var out strings.Builder
	ctx := live.CountFrom(t.Context(), instant("03:13:30"))
	if err := pageBody(a.Value.Fragments).Render(ctx, &out); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{">90 s ago</time>", ">30 s ago</time>", ">in 11 min</time>", `data-mark="` + a.Value.Fragments[0].Mark() + `"`} {
		if !strings.Contains(out.String(), wanted) {
			t.Errorf("the page lacks %s", wanted)
		}
	}
	if strings.Contains(a.Value.Fragments[0].HTML(), " ago<") {
		t.Error("what is sent counts time")
	}
}

// TestForeignText: whatever comes from providers and agents arrives as text.
func TestForeignText(t *testing.T) {
	t.Parallel()
	const evil = `"><script>alert(1)</script><img src=x onerror='alert(2)'>javascript:alert(3)` + "`$(reboot)`"
	stub := smallFleet()
	m := stub.machine.Machine
	m.Labels = []string{evil}
	m.Hostname, m.Reason, m.Address, m.Location, m.State, m.ProviderId, m.AgentVersion = evil, evil, evil, evil, evil, evil, evil
	for _, row := range stub.machines {
		row.Hostname, row.Reason, row.Provider, row.State = evil, evil, evil, evil
	}
	stub.machines[1].Id = evil
	stub.machine.Facts[0].Detail, stub.machine.Decisions[1].BackoffCause, stub.machine.Decisions[1].Session = evil, evil, evil
	stub.machine.Hardware.System.Product, stub.machine.Hardware.BlockDevices[0].Model = evil, evil
	stub.machine.Hardware.NetworkInterfaces[0].Addresses[0], stub.machine.Hardware.Warnings[0] = evil, evil
	stub.history[0].Actor, stub.history[0].Detail, stub.explanation, stub.next = evil, evil, evil, evil
	stub.providers[0].Name, stub.providers[0].LastPass = evil, evil
	stub.sessions[0].Id, stub.sessions[0].Host, stub.sessions[0].Holds[0].Subject = evil, evil, evil
	stub.discrepancies[0].Evidence, stub.discrepancies[0].Provider, stub.discrepancies[0].MachineId = evil, evil, evil
	stub.summary.States[3].State, stub.summary.Processes[0].Process = evil, evil
	site := New(overWire(t, stub), Options{})
	targets := []string{"/", "/machines", "/machines?" + url.Values{"provider": {evil}, "page": {evil}}.Encode(), machineURL(evil)}
	for _, target := range targets {
		body := get(t, site, target).Body.String()
		if !strings.Contains(body, "&lt;script&gt;alert(1)") {
			t.Errorf("%.40s: the foreign text is not there at all", target)
		}
		for _, bad := range []string{"<script>", "<img", `href="javascript:`, ` onerror='`} {
			if strings.Contains(body, bad) {
				t.Errorf("%.40s: %s reached the page", target, bad)
			}
		}
		for _, line := range regexp.MustCompile(`data-copy="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			if strings.Contains(line[1], "reboot") {
				t.Errorf("a command to copy carries foreign text: %s", line[1])
			}
		}
	}
}

func TestQueries(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	site := New(overWire(t, stub), Options{})
	w := get(t, site, "/machines?state=silent&provider=metal&state=creating&page="+first)
	if w.Code != http.StatusOK {
		t.Fatalf("got %d", w.Code)
	}
	if a := stub.asked; a.GetProvider() != "metal" || strings.Join(a.GetStates(), ",") != "creating,silent" || a.GetPageToken() != first || a.GetPageSize() != pageSize {
		t.Errorf("the control plane was asked %v", a)
	}
	next := "/machines?" + url.Values{"provider": {"metal"}, "page": {second}, "state": {"creating", "silent"}}.Encode()
	if want := `href="` + strings.ReplaceAll(next, "&", "&amp;") + `"`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("no link to the next page, %s", want)
	}
	if want := `data-live="/live/machines?`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("no stream of the same view")
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	code := func(c connect.Code) func(string) error {
		return func(string) error { return connect.NewError(c, errors.New("no such thing here")) }
	}
	for _, c := range []struct {
		name, target string
		fail         func(string) error
		status       int
		says         string
	}{
		{"unknown machine", "/machines/herd-9999", code(connect.CodeNotFound), 404, "No machine is known as “herd-9999”"},
		{"by provider ID", "/machines/metal/aa10", code(connect.CodeNotFound), 404, "No machine is known as “metal/aa10”"},
		{"ambiguous prefix", "/machines/01a1", code(connect.CodeInvalidArgument), 400, "No such thing here."},
		{"conflict", "/machines/01a1", code(connect.CodeFailedPrecondition), 409, "No such thing here."},
		{"not allowed", "/", code(connect.CodePermissionDenied), 403, "No such thing here."},
		{"down, nothing seen", "/", down, 503, "The control plane does not answer"},
		{"down, nothing seen of a machine", "/machines/herd-0001", down, 503, "connection refused"},
		{"unknown state", "/machines?state=flying", nil, 400, "No state is named &#34;flying&#34;"},
		{"long token", "/machines?page=" + strings.Repeat("x", 2000), nil, 400, "too long"},
		{"no machine", "/machines/", nil, 400, "Name a machine"},
		{"long machine", "/machines/" + strings.Repeat("x", 600), nil, 400, "at most 512 bytes"},
		{"not UTF-8", "/machines/%ff", nil, 400, "UTF-8"},
		{"no search", "/go?machine=+", nil, 400, "No machine was named"},
		{"no page", "/favicon.ico", nil, 404, "There is no such page"},
		{"no asset", "/assets/..%2fdoc.go", nil, 404, "There is no such page"},
		{"long machine, live", "/live/machines/" + strings.Repeat("x", 600), nil, 400, "at most 512 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			stub := smallFleet()
			stub.fail = c.fail
			w := get(t, New(overWire(t, stub), Options{}), c.target)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("got %d, want %d with %q:\n%s", w.Code, c.status, c.says, w.Body)
			}
		})
	}
}

func TestOnlyShows(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	New(overWire(t, smallFleet()), Options{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/nowhere", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("got %d, %v", w.Code, w.Header())
	}
}

func TestJump(t *testing.T) {
	t.Parallel()
	site := New(overWire(t, smallFleet()), Options{})
	for query, location := range map[string]string{
		"herd-0001": "/machines/herd-0001", "metal/aa10": "/machines/metal/aa10", "a b?c#d": "/machines/a%20b%3Fc%23d", "//evil.example": "/machines/evil.example",
	} {
		w := get(t, site, "/go?"+url.Values{"machine": {query}}.Encode())
		if got := w.Header().Get("Location"); w.Code != http.StatusSeeOther || got != location {
			t.Errorf("%q: got %d to %q, want %q", query, w.Code, got, location)
		}
	}
}

// TestNothingInline holds every page to its own content security policy.
func TestNothingInline(t *testing.T) {
	t.Parallel()
	site := New(overWire(t, smallFleet()), Options{})
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script(?: defer)?>|https?://`)
	for _, target := range []string{"/", "/machines", "/machines/herd-0001", "/nowhere"} {
		w := get(t, site, target)
		if got := w.Header().Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
			t.Errorf("%s: policy %q", target, got)
		}
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", target, w.Header())
		}
		if bad := inline.FindString(w.Body.String()); bad != "" {
			t.Errorf("%s has %q", target, bad)
		}
	}
}

func TestAssets(t *testing.T) {
	t.Parallel()
	site := New(overWire(t, smallFleet()), Options{})
	page := get(t, site, "/").Body.String()
	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		w := get(t, site, "/assets/"+name)
		etag := w.Header().Get("ETag")
		if w.Code != http.StatusOK || etag == "" || w.Body.Len() == 0 || w.Header().Get("Content-Type") != assetKinds["."+strings.Split(name, ".")[1]] {
			t.Fatalf("%s: got %d, %v", name, w.Code, w.Header())
		}
		if again := get(t, site, "/assets/"+name, "If-None-Match", etag); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
			t.Errorf("%s is sent again: %d", name, again.Code)
		}
		if !strings.Contains(page, `"/assets/`+name+"?") {
			t.Errorf("the page does not load %s", name)
		}
	}
}

// TestStates: every state has a place, a meaning and a colour, in light and in dark.
func TestStates(t *testing.T) {
	t.Parallel()
	css, err := assetFiles.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	all := fleet.States()
	if len(all) != len(states) {
		t.Fatalf("%d states are shown, there are %d", len(states), len(all))
	}
	for i, s := range states {
		if s.name != string(all[i]) {
			t.Errorf("state %d is %s here, %s in the fleet", i, s.name, all[i])
		}
		if s.meaning == "" || !strings.Contains(string(css), "."+s.class+" {") || strings.Count(string(css), "\n  --"+s.name+":")+strings.Count(string(css), "\n    --"+s.name+":") != 2 {
			t.Errorf("%s has no meaning or no colour", s.name)
		}
	}
}

// TestKeptView: when the control plane stops answering, a page still shows the last view, under a
// banner.
func TestKeptView(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	site := New(overWire(t, stub), Options{Interval: 1})
	for _, target := range []string{"/", "/machines", "/machines/herd-0001"} {
		if w := get(t, site, target); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "does not answer") {
			t.Fatalf("%s: got %d", target, w.Code)
		}
	}
	stub.change(func() { stub.fail = down })
	for target, kept := range map[string]string{"/": "1\u202f234", "/machines": "herd-0001", "/machines/herd-0001": "AMD EPYC"} {
		w := get(t, site, target)
		for _, wanted := range []string{"does not answer", "connection refused", "what you see is from", kept} {
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), wanted) {
				t.Errorf("%s: got %d without %q", target, w.Code, wanted)
			}
		}
	}
	stub.change(func() { stub.fail = nil })
	if w := get(t, site, "/"); strings.Contains(w.Body.String(), "does not answer") {
		t.Error("the banner stays although the control plane answers")
	}
}

// TestPanic: a client that panics is an outage; it may be the control plane itself, in this
// process.
func TestPanic(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	stub.fail = func(method string) error {
		if method == "ListSessions" {
			defer stub.mu.Unlock()
			panic("a fault of ours")
		}
		return nil
	}
	w := get(t, New(stub, Options{}), "/")
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "a fault of ours") || !strings.Contains(w.Body.String(), "its log says what") {
		t.Errorf("got %d:\n%s", w.Code, w.Body)
	}
}

// TestLeaver: a visitor who leaves while questions are under way leaves no outage behind. The calls
// that he caused are not cancelled.
func TestLeaver(t *testing.T) {
	t.Parallel()
	stub := smallFleet()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	stub.fail = func(string) error {
		leave()
		<-left
		return nil
	}
	site := New(overWire(t, stub), Options{})
	site.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	close(left)
	if w := get(t, site, "/"); w.Code != http.StatusOK {
		t.Errorf("the next visitor gets %d", w.Code)
	}
}

// TestAPageIsCutOff: a visitor whose request this server ends is told so, with a status that is no
// success. One who has left is told nothing.
func TestAPageIsCutOff(t *testing.T) {
	t.Parallel()
	stopped := fleet.Errorf(fleet.KindTemporary, "the control plane is being stopped: ask again")
	for _, test := range []struct {
		path   string
		cause  error
		status int
		text   string
	}{
		{"/", stopped, http.StatusServiceUnavailable, "this page could not be made: the control plane is being stopped: ask again\n"},
		{"/machines?state=flying", stopped, http.StatusServiceUnavailable, "this page could not be made: the control plane is being stopped: ask again\n"},
		{"/", context.DeadlineExceeded, http.StatusGatewayTimeout, "this page was not made in time: load it again\n"},
		{"/", nil, http.StatusOK, ""}, // nobody sees the status
	} {
		for _, late := range []bool{false, true} { // before the first question, or during it
			stub := smallFleet()
			ctx, end := context.WithCancelCause(t.Context())
			stub.fail = func(string) error {
				end(test.cause)
				return connect.NewError(connect.CodeCanceled, context.Canceled)
			}
			if !late {
				end(test.cause)
			}
			w := httptest.NewRecorder()
			New(stub, Options{}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, test.path, nil))
			if w.Code != test.status || w.Body.String() != test.text {
				t.Errorf("%s, %v, late: %t: got %d: %s", test.path, test.cause, late, w.Code, w.Body)
			}
			end(nil)
		}
	}
}
