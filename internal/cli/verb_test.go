package cli_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/fleet"
)

// asked returns what was planned by the command line.
func (h *fakeServer) asked(t *testing.T, args ...string) (*fleetv1.CreatePlanRequest, result) {
	t.Helper()
	r := h.run(t, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.plans) == 0 {
		t.Fatalf("%q planned nothing: %d, %q", args, r.code, r.stderr)
	}
	return h.plans[len(h.plans)-1], r
}

// TestVerbsAsk: each command asks for its verb, with the reason.
func TestVerbsAsk(t *testing.T) {
	t.Parallel()
	left := fleet.Verbs()
	for command, verb := range map[string]fleet.Verb{
		"machine reboot": fleet.VerbReboot, "machine power on": fleet.VerbPowerOn, "machine power off": fleet.VerbPowerOff,
		"machine power cycle": fleet.VerbPowerCycle, "machine release": fleet.VerbRelease, "machine replace": fleet.VerbReplace,
		"machine withdraw": fleet.VerbWithdraw, "machine install --cancel": fleet.VerbCancelInstall,
		"machine install --reinstall --image http://h/i --digest sha256:" + strings.Repeat("ab", 32): fleet.VerbReinstall,
		"machine quarantine": fleet.VerbQuarantine, "machine unquarantine": fleet.VerbUnquarantine,
		"machine maintenance begin": fleet.VerbBeginMaintenance, "machine maintenance end": fleet.VerbEndMaintenance,
		"machine mark-installed": fleet.VerbMarkInstalled, "machine forget": fleet.VerbForget,
	} {
		left = slices.DeleteFunc(left, func(v fleet.Verb) bool { return v == verb })
		h := newFakeServer(t)
		got, r := h.asked(t, append(strings.Fields(command), "herd-0001", "--reason", "because it is so")...)
		if got.GetVerb() != string(verb) || got.GetReason() != "because it is so" || !slices.Equal(got.GetMachines(), []string{"herd-0001"}) ||
			got.GetConfirm() || !got.GetConfirmHarmless() || (got.GetInstall() != nil) != (verb == fleet.VerbReinstall) || r.code != 0 {
			t.Errorf("%s: %d, %q, asked %v", command, r.code, r.stderr, got)
		}
		got, r = h.asked(t, append(strings.Fields(command), "--state", "silent,provided", "--provider", "metal", "--location", "rack 4, left",
			"--location", "rack 5", "--limit", "7", "--reason", "r", "--yes")...)
		if !slices.Equal(got.GetLocations(), []string{"rack 4, left", "rack 5"}) || got.GetLimit() != 7 {
			t.Errorf("%s: asked %v", command, got)
		}
		if len(got.GetMachines()) != 0 || got.GetProvider() != "metal" || !slices.Equal(got.GetStates(), []string{"silent", "provided"}) ||
			got.GetConfirm() || got.GetConfirmHarmless() || h.confirmed != 1 || r.code != 0 {
			t.Errorf("%s: %d, %q, asked %v", command, r.code, r.stderr, got)
		}
	}
	if len(left) > 0 {
		t.Errorf("no command asks for %v", left)
	}
	got, _ := newFakeServer(t).asked(t, "discrepancy", "forget", "metal", "dev-9", "--reason", "r")
	if got.GetVerb() != "forget" || !slices.Equal(got.GetMachines(), []string{"metal/dev-9"}) {
		t.Errorf("asked %v", got)
	}
	got, _ = newFakeServer(t).asked(t, "machine", "maintenance", "begin", "x", "--for", "2h", "--reason", "r")
	// Until is for a control plane that does not know what lasts; the clock here may be off.
	if d := time.Until(got.GetUntil().AsTime()); got.GetLasts().AsDuration() != 2*time.Hour || d < 119*time.Minute || d > 2*time.Hour {
		t.Errorf("asked %v", got)
	}
	got, _ = newFakeServer(t).asked(t, "machine", "maintenance", "begin", "x", "--until", "2026-11-22T18:00:00+01:00", "--reason", "r")
	if got.GetUntil().AsTime().Hour() != 17 || got.GetLasts() != nil {
		t.Errorf("asked %v", got)
	}
}

// TestCancelRefusesWhatIsInstalled: a flag that the help lists, and that neither a plan nor every
// command takes, says what is to be installed. It is refused.
func TestCancelRefusesWhatIsInstalled(t *testing.T) {
	t.Parallel()
	taken := []string{"cancel", "wait", "reason", "yes", "provider", "state", "location", "label", "limit", "after", "timeout", "output", "help", "ca-file", "config", "server", "token-file"}
	listed := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(run(t, nil, "machine", "install", "--help").stdout, -1)
	if len(listed) < 20 {
		t.Fatalf("the help lists %q", listed)
	}
	for _, flag := range listed {
		name := flag[1]
		if slices.Contains(taken, name) {
			continue
		}
		r := newFakeServer(t).run(t, "machine", "install", "x", "--cancel", "--reason", "r", "--"+name+"=1")
		if want := "--cancel and --" + name + " contradict each other"; r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("--%s: got %d, %q", name, r.code, r.stderr)
		}
	}
}

// TestLostReplyNamesThePlan: whoever does not learn whether a plan was carried out can go on with
// it.
func TestLostReplyNamesThePlan(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, "machine", "release", "herd-0001", "--reason", "the reply is lost", "--yes")
	if r.code == 0 || !strings.Contains(r.stderr, "ironherd plan confirm k3j2m9x4qp --server "+h.url+" goes on with it, and repeats nothing") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
}

// TestNothingIsDoneWithoutAWord: what destroys is only planned, and the command says how to go on.
func TestNothingIsDoneWithoutAWord(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, "machine", "release", "herd-0001", "herd-0002", "--reason", "end of lease", "--wait")
	want := "Nothing has been done. To have it done, until 2026-11-21 10:10:00Z: ironherd plan confirm k3j2m9x4qp --server " + h.url + " --wait\n"
	if r.code != 0 || r.stderr != want {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
	golden(t, "machine_release.txt", r.stdout)
	r = newFakeServer(t).run(t, "machine", "release", "herd-0001", "--reason", "end of lease", "-o", "json")
	if r.code != 0 || !strings.Contains(r.stdout, `"id": "k3j2m9x4qp"`) || !strings.Contains(r.stderr, "Nothing has been done.") {
		t.Errorf("got %d, %q, %q", r.code, r.stdout, r.stderr)
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	r := newFakeServer(t).run(t, "plan", "confirm", "k3j2m9x4qp")
	if r.code != 6 || r.stderr != "" {
		t.Errorf("some were skipped: %d, %q", r.code, r.stderr)
	}
	golden(t, "plan_confirm.txt", r.stdout)
	r = newFakeServer(t).run(t, "machine", "reboot", "skipped", "--reason", "r")
	if r.code != 5 || r.stderr != "ironherd: nothing was done to skipped: it was installed when the plan was made, and is silent now\n" {
		t.Errorf("nothing was done: %d, %q", r.code, r.stderr)
	}
	r = newFakeServer(t).run(t, "machine", "reboot", "skipped", "refused", "--reason", "r", "--yes")
	if r.code != 5 || r.stderr != "" {
		t.Errorf("nothing was done: %d, %q", r.code, r.stderr)
	}
	r = newFakeServer(t).run(t, "machine", "reboot", "herd-0001", "refused", "--reason", "r", "--yes", "--wait")
	if r.code != 6 || !strings.Contains(r.stderr, "herd-0001: reboot is done") {
		t.Errorf("one of two was done: %d, %q", r.code, r.stderr)
	}
}

func TestVerbsWait(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]struct {
		code int
		told []string
	}{
		"machine reboot x": {0, []string{
			"x: reboot is asked for\n", "x: reboot is accepted; waiting for its effect\n", "x: reboot is done: the agent came back with another boot ID\n",
		}},
		"machine release x --yes": {0, []string{"x: release is accepted; waiting for its effect\n", "x: it is not here any more\n"}},
		"machine power cycle x":   {3, []string{"ironherd: x is not here any more, and whether its power-cycle was done is not known\n"}},
		"machine power off x":     {5, []string{"ironherd: power-off of x failed: no effect within 15m0s\n"}},
		"machine power on x":      {5, []string{"ironherd: power-on of x was asked for by token ada since: `ironherd machine history " + firstID + " --server URL` says what became of operation 3\n"}},
		"machine reboot slow --timeout 3s": {7, []string{
			"ironherd: slow was not done in time: reboot is asked for. It goes on: see `ironherd machine explain " + firstID + " --server URL`\n",
		}},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			r := h.run(t, append(strings.Fields(command), "--wait", "--reason", "because")...)
			if r.code != want.code {
				t.Errorf("got %d, %q", r.code, r.stderr)
			}
			for _, told := range want.told {
				told = strings.ReplaceAll(told, "URL", h.url)
				if !strings.Contains(r.stderr, told) {
					t.Errorf("told %q, want %q", r.stderr, told)
				}
			}
		})
	}
}

// TestTheOnlyOneWaitedForFails: how waiting for the one machine ended that anything was asked of is
// told, whatever became of the others, and who interrupts it is told that.
func TestTheOnlyOneWaitedForFails(t *testing.T) {
	t.Parallel()
	install := "machine install " + strings.Join(installArgs, " ")
	for command, want := range map[string]struct {
		code int
		told string
	}{
		"machine power off herd-0001 refused --yes --reason r": {6, "ironherd: power-off of herd-0001 failed: no effect within 15m0s\n"},
		"machine reboot slow skipped --yes --reason r --timeout 3s": {7, "ironherd: slow was not done in time: reboot is asked for. It goes on: see `ironherd machine explain " +
			firstID + " --server URL`\n"},
		install + " kept not_found": {6, "ironherd: machine kept is not installed: called off by ada: the wrong image\n"},
		install + " slow not_found --timeout 3s": {7, "ironherd: machine slow was not installed in time; it is installing: attempt 1 is under way. " +
			"The install goes on: see `ironherd machine explain slow --server URL`\n"},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			r := h.run(t, append(strings.Fields(command), "--wait")...)
			want.told = strings.ReplaceAll(want.told, "URL", h.url)
			if r.code != want.code || !strings.HasSuffix(r.stderr, want.told) || strings.Count(r.stderr, want.told) != 1 {
				t.Errorf("got %d, %q, want %d, %q", r.code, r.stderr, want.code, want.told)
			}
		})
	}
	for command, text := range map[string]string{
		"machine reboot slow refused --yes --reason r": "reboot is asked for", install + " slow not_found": "attempt 1 is under way",
	} {
		t.Run("interrupted "+command, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &interrupting{text: text, cancel: cancel}
			code := cli.Main(ctx, append(strings.Fields(command), "--wait", "--server", h.url), cli.Env{Stdout: out, Stderr: out, Version: "v"})
			if code != 130 || !strings.HasSuffix(out.String(), "\nironherd: interrupted\n") {
				t.Errorf("got %d, %q", code, out.String())
			}
		})
	}
}

// TestWaitForWhatIsGone: of a machine that is gone before the first look at it, only giving it back
// is known to be done. Where the plan is confirmed once more, it is no other.
func TestWaitForWhatIsGone(t *testing.T) {
	t.Parallel()
	const reinstall = "machine install --reinstall --image http://h/i --digest sha256:"
	for command, want := range map[string]struct {
		code int
		told string
	}{
		"machine reboot gone":                          {3, "ironherd: gone is not here any more, and whether its reboot was done is not known\n"},
		"machine reboot herd-0001 gone":                {6, "gone: gone is not here any more, and whether its reboot was done is not known\n"},
		"machine release gone":                         {0, "gone: it is not here any more\n"},
		"machine replace gone":                         {0, "gone: it is not here any more\n"},
		reinstall + strings.Repeat("ab", 32) + " gone": {3, "ironherd: no machine is named \"not_found\"\n"},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			r := h.run(t, append(strings.Fields(command), "--wait", "--yes", "--reason", "r")...)
			if r.code != want.code || strings.Count(r.stderr, want.told) != 1 {
				t.Errorf("got %d, %q, want %d, %q", r.code, r.stderr, want.code, want.told)
			}
			if r := h.run(t, "plan", "confirm", "k3j2m9x4qp", "--wait"); r.code != want.code || strings.Count(r.stderr, want.told) != 1 {
				t.Errorf("confirmed once more: got %d, %q, want %d, %q", r.code, r.stderr, want.code, want.told)
			}
		})
	}
}

// TestWaitOutlastsAnOutage: while the control plane is upgraded, say, a command that waits goes on
// waiting, and tells so once. What it gives up at goes on, which it tells of each machine by the
// name that the plan has.
func TestWaitOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	down := func() []error { return []error{failing("unavailable"), failing("deadline_exceeded")} }
	const once = "What was asked for goes on, and so does waiting: no machine is named \"unavailable\"\n"
	reboot := []string{"machine", "reboot", "herd-0001", "herd-0002", "--yes", "--wait", "--reason", "r"}
	for done, args := range map[string][]string{
		"herd-0002: reboot is done":                    reboot,
		"herd-0001: installed: install generation 1\n": append([]string{"machine", "install", "herd-0001", "--wait"}, installArgs...),
	} {
		t.Run(args[1], func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			h.lost = down()
			if r := h.run(t, args...); r.code != 0 || strings.Count(r.stderr, once) != 1 || !strings.Contains(r.stderr, done) {
				t.Errorf("got %d, %q", r.code, r.stderr)
			}
		})
	}
	h := newFakeServer(t)
	h.lost = []error{failing("permission_denied")}
	want := "herd-0001: no machine is named \"permission_denied\". It goes on: see `ironherd machine explain " + firstID + " --server " + h.url + "`\n"
	if r := h.run(t, reboot...); r.code != 6 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "herd-0002: reboot is done") {
		t.Errorf("refused: got %d, %q, want %q", r.code, r.stderr, want)
	}
	h = newFakeServer(t)
	h.lost = []error{failing("permission_denied")}
	want = "ironherd: no machine is named \"permission_denied\". The install goes on: see `ironherd machine explain herd-0001 --server " + h.url + "`\n"
	if r := h.run(t, append([]string{"machine", "install", "herd-0001", "--wait"}, installArgs...)...); r.code != 4 || !strings.HasSuffix(r.stderr, want) {
		t.Errorf("refused: got %d, %q, want %q", r.code, r.stderr, want)
	}
}

func TestHolds(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	for _, args := range [][]string{
		{"provider", "pause", "metal", "--reason", "the bill"},
		{"provider", "resume", "metal", "--reason", "paid"},
		{"provider", "retry", "metal"},
		{"provider", "forget", "oldlab", "--reason", "closed"},
		{"provider", "retry", "rack", "--capacity", "node4,node5", "--capacity", "node6", "--reason", "ours again"},
		{"recovery", "pause", "--reason", "the switch", "--for", "1h"},
		{"recovery", "pause", "--reason", "the switch"},
		{"recovery", "resume"},
		{"discrepancy", "adopt", "metal", "dev-9", "--reason", "made by hand"},
		{"machine", "host-key", "accept", "herd-0007", "SHA256:BBBB", "--reason", "reinstalled"},
	} {
		if r := h.run(t, args...); r.code != 0 || r.stdout == "" || r.stderr != "" {
			t.Errorf("%v: %d, %q, %q", args, r.code, r.stdout, r.stderr)
		}
	}
	for _, args := range [][]string{{"provider", "history", "metal"}, {"provider", "history", "metal", "--passes"}} {
		if r := h.run(t, args...); r.code != 0 {
			t.Errorf("%v: %d, %q", args, r.code, r.stderr)
		}
	}
	if r, want := h.run(t, "provider", "history", "quiet"), "Nothing has happened but passes that finished, which --passes tells.\n"; r.stdout != want {
		t.Errorf("told %q, want %q", r.stdout, want)
	}
	want := []string{
		"pause metal: the bill", "resume metal: paid", "retry metal", "forget oldlab: closed", `retry rack ["node4" "node5" "node6"]: ours again`, "pause recovery: the switch, until: true, lasts: 1h0m0s",
		"pause recovery: the switch, until: false, lasts: 0s", "resume recovery",
		"adopt metal dev-9: made by hand", "accept SHA256:BBBB: reinstalled",
		"history of metal, without what finished: true", "history of metal, without what finished: false",
		"history of quiet, without what finished: true",
	}
	if !slices.Equal(h.holds, want) {
		t.Errorf("asked for %q", h.holds)
	}
	if r, want := h.run(t, "provider", "retry", "metal"), "metal: provision does not wait in backoff any more; 2 penalties of capacity ended\n"+
		"What was released stays kept out (2): ironherd provider retry metal --capacity ID --reason WHY --server "+h.url+" uses one again, and ironherd provider show metal --server "+h.url+" names all\n"; r.stdout != want {
		t.Errorf("told %q, want %q", r.stdout, want)
	}
	if r, want := h.run(t, "provider", "retry", "rack", "--capacity", "node4", "--reason", "ours again"),
		"rack: 1 penalty of capacity ended; its next pass may use node4\n"; r.stdout != want {
		t.Errorf("told %q, want %q", r.stdout, want)
	}
	if r, want := h.run(t, "discrepancy", "adopt", "metal", "dev-9", "--installed", "--reason", "in use"),
		"dev-9 of metal is taken in as installed with the next pass\n"; r.code != 0 || r.stdout != want {
		t.Errorf("told %q, want %q", r.stdout, want)
	}
	asked := len(h.holds)
	for want, args := range map[string][]string{
		"--reason": {"--capacity", "node4"},
		"`ironherd provider show rack --server " + h.url + "` has what is kept out": {"--capacity", "", "--reason", "ours again"},
	} {
		if r := h.run(t, append([]string{"provider", "retry", "rack"}, args...)...); r.code != 2 || len(h.holds) != asked || !strings.Contains(r.stderr, want) {
			t.Errorf("%q: %d, %q, want %q", args, r.code, r.stderr, want)
		}
	}
	if r := run(t, nil, "__complete", "--server", h.url, "provider", "retry", "rack", "--capacity", "node4"); !strings.HasPrefix(r.stdout, "node4\trelease") || strings.Contains(r.stdout, "node5") {
		t.Errorf("completion: %q", r.stdout)
	}
	// It is told when it ends by the clock of the control plane.
	if r := h.run(t, "recovery", "pause", "--reason", "the switch", "--for", "1h"); r.stdout !=
		"Recovery is stopped until 2026-11-21 11:00:00Z; ironherd recovery resume --server "+h.url+" ends that before\n" {
		t.Errorf("an hour: %d, %q", r.code, r.stdout)
	}
	if r := h.run(t, "provider", "pause", "metal", "--reason", "the bill"); r.stdout != "metal is paused; ironherd provider resume metal --reason WHY --server "+h.url+" ends that\n" {
		t.Errorf("a pause: %d, %q", r.code, r.stdout)
	}
	if r := h.run(t, "discrepancy", "adopt", "metal", "dev-old-server", "--installed", "--reason", "in use"); r.code == 0 ||
		!strings.Contains(r.stderr, "`ironherd provider pause metal --reason WHY --server "+h.url+"` at once") {
		t.Errorf("an older control plane: %d, %q", r.code, r.stderr)
	}
	if r := h.run(t, "discrepancy", "adopt", "metal", "dev-paused", "--reason", "made by hand"); r.code != 0 ||
		!strings.Contains(r.stdout, "dev-paused of metal is taken in when metal is resumed. metal is paused by anna since 2026-11-21 10:00:00Z: the bill.") {
		t.Errorf("at a paused provider: %d, %q", r.code, r.stdout)
	}
	r := run(t, nil, "__complete", "--server", h.url, "provider", "pause", "")
	if !strings.Contains(r.stdout, "metal\tequinix\n") {
		t.Errorf("completion: %q", r.stdout)
	}
}

// TestDiscrepancyForget: a plan that has to be confirmed is shown, and carried out with --yes.
func TestDiscrepancyForget(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		done bool
		says string
	}{
		"of nothing in use": {[]string{"dev-17"}, true, ""},
		"in use":            {[]string{"in-use"}, false, "To have it done, until 2026-11-21 10:10:00Z: ironherd plan confirm k3j2m9x4qp"},
		"in use, with yes":  {[]string{"in-use", "--yes"}, true, ""},
	} {
		h := newFakeServer(t)
		got, r := h.asked(t, append([]string{"discrepancy", "forget", "metal", "--reason", "sold"}, test.args...)...)
		if got.GetVerb() != string(fleet.VerbForget) || !slices.Equal(got.GetMachines(), []string{"metal/" + test.args[0]}) || got.GetReason() != "sold" {
			t.Errorf("%s: asked %v", name, got)
		}
		if done := strings.Contains(r.stdout, "done"); r.code != 0 || done != test.done || !strings.Contains(r.stderr, test.says) {
			t.Errorf("%s: %d, %q, %q", name, r.code, r.stdout, r.stderr)
		}
	}
}
