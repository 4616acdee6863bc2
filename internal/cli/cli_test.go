package cli_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/sim/fault"
)

func TestGolden(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	for name, args := range map[string]string{
		"machine_list.txt":     "machine list",
		"machine_show.txt":     "machine show herd-0001",
		"machine_show.json":    "machine show herd-0001 -o json",
		"machine_show.yaml":    "machine show herd-0001 -o yaml",
		"machine_history.txt":  "machine history herd-0001",
		"machine_history.json": "machine history herd-0001 -o json",
		"machine_explain.txt":  "machine explain herd-0001",
		"provider_list.txt":    "provider list",
		"image_list.txt":       "image list",
		"provider_show.txt":    "provider show rack",
		"provider_history.txt": "provider history rack",
		"session_list.txt":     "session list --all",
		"discrepancy_list.txt": "discrepancy list",
		"plan_show.txt":        "plan show k3j2m9x4qp",
		"plan_show.json":       "plan show k3j2m9x4qp -o json",
		"recovery_status.txt":  "recovery status",
		"status.txt":           "status",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := h.run(t, strings.Fields(args)...)
			if r.code != 0 || r.stderr != "" {
				t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
			}
			golden(t, name, strings.ReplaceAll(r.stdout, h.url, "http://HOST:PORT"))
		})
	}
}

// TestHostKeyIsAccepted by the very fingerprint that was refused.
func TestHostKeyIsAccepted(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	if r := h.run(t, "machine", "host-key", "show", "herd-0001"); r.code != 0 ||
		!strings.Contains(r.stdout, "\nSHA256:AAAA  installed system  ") || !strings.Contains(r.stdout, "\nSHA256:BBBB  refused  ") {
		t.Errorf("got %d, %q, %q", r.code, r.stdout, r.stderr)
	}
	if r := h.run(t, "machine", "host-key", "accept", "herd-0001", "SHA256:BBBB", "--reason", "r"); r.code != 0 || r.stdout != "herd-0001 is known by SHA256:BBBB now\n" {
		t.Errorf("got %d, %q, %q", r.code, r.stdout, r.stderr)
	}
	if r := h.run(t, "machine", "host-key", "accept", "herd-0001", "SHA256:CCCC", "--reason", "r"); r.code != 2 || r.stderr != "ironherd: no such key was refused\n" {
		t.Errorf("another one: %d, %q", r.code, r.stderr)
	}
}

// TestReasonsSaySomething: spaces are no reason.
func TestReasonsSaySomething(t *testing.T) {
	t.Parallel()
	r := newFakeServer(t).run(t, "machine", "reboot", "x", "--reason", "  ")
	if r.code != 2 || !strings.HasPrefix(r.stderr, "ironherd: --reason must say why") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
}

// TestHelp also keeps every command's help in one file, where a change can be read.
func TestHelp(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, command := range cli.Commands() {
		r := run(t, nil, append(strings.Fields(command), "--help")...)
		if r.code != 0 || !strings.Contains(r.stdout, "Usage:") {
			t.Errorf("%s --help: exit code %d, %q", command, r.code, r.stderr)
		}
		all.WriteString("$ ironherd " + strings.TrimSpace(command+" --help") + "\n" + r.stdout + "\n")
	}
	golden(t, "help.txt", all.String())
}

func TestFailuresAreToldInOneSentence(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"machine list --colour", 2, "unknown flag: --colour (see ironherd machine list --help)"},
		{"machine lst", 2, `there is no command "machine lst": did you mean list? (see ironherd machine --help)`},
		{"machien list", 2, `there is no command "machien": did you mean machine? (see ironherd --help)`},
		{"machine show", 2, "MACHINE is missing (see ironherd machine show --help)"},
		{"machine show a b", 2, `"b" is more than is expected (see ironherd machine show --help)`},
		{"machine host-key accept x", 2, "FINGERPRINT is missing (see ironherd machine host-key accept --help)"},
		{"machine retry", 2, "MACHINE is missing (see ironherd machine retry --help)"},
		{"machine list --timeout x", 2, `--timeout must be a duration such as 30s, 5m or 1h30m, not "x" (see ironherd machine list --help)`},
		{"machine list --timeout -1s", 2, "--timeout must not be negative, not -1s"},
		{"machine reboot x --reason r --timeout -1s", 2, "--timeout must not be negative, not -1s"},
		{"machine list -o xml", 2, `invalid argument "xml" for "-o, --output" flag: use table, json or yaml (see ironherd machine list --help)`},
		{"machine list --state asleep", 2, `no state is named "asleep": use one of creating,`},
		{"machine history x --limit 0", 2, "--limit must be from 1 to 1000, not 0"},
		{"machine retry x --process sleep", 2, `no process of a machine is named "sleep": use one of agent-start, install, operation, recovery`},
		{"machine retry x --process provision", 2, `no process of a machine is named "provision": use one of agent-start,`},
		{"machine install x", 2, "--image must be set to the http, https or oci URL of an image, or to the name of one (`ironherd image list`)"},
		{"machine show not_found", 3, `no machine is named "not_found"`},
		{"machine show permission_denied", 4, `no machine is named "permission_denied"`},
		{"machine show unauthenticated", 4, ""},
		{"machine show failed_precondition", 5, ""},
		{"machine show internal", 1, ""},
		{"machine show unavailable", 7, ""},
		{"machine show invalid_argument", 2, ""},
		{"machine install", 2, "name the machines to install"},
		{"machine install x --yes", 2, "--reason, --yes, --provider, --state, --location, --label, --limit and --after belong to --reinstall and --cancel"},
		{"machine install x --image debian-13 --root-disk smallest,largest", 2, "--root-disk: smallest and largest contradict each other: give one of them"},
		{"machine install x --image http://h/i.raw --digest sha256:" + strings.Repeat("0", 64) + " --nocloud", 2, "--nocloud says how the file of --first-boot is given: name one"},
		{"machine install x --image http://h/i.raw --digest sha256:" + strings.Repeat("0", 64) + " --nocloud --nocloud-user-data", 2, "--nocloud and --nocloud-user-data contradict each other"},
		{"machine install x --image debian-13 --architecture arm64", 2, "--image debian-13 is a name: --digest, --file-digest, --compression, --size, --architecture and --nocloud are for a URL"},
		{"machine install x --image http://h/i.raw --digest sha256:" + strings.Repeat("0", 64) + " --architecture x86_64", 2, "--architecture must be amd64 or arm64"},
		{"machine install x --cancel --architecture arm64", 2, "--cancel and --architecture contradict each other"},
		{"machine install x --cancel --erase", 2, "--cancel and --erase contradict each other"},
		{"machine install x --cancel --wait", 2, "--cancel has nothing to --wait for"},
		{"machine install x --cancel --reinstall", 2, "--cancel and --reinstall contradict each other: an install is called off without asking for another one"},
		{"machine install x --cancel", 2, "--reason must say why"},
		{"machine reboot", 2, "name machines, or select them with --provider, --state, --location and --label"},
		{"machine reboot x", 2, "--reason must say why: history and everybody who asks are told"},
		{"machine reboot x --state silent --reason r", 2, "machines and a selector contradict each other"},
		{"machine reboot --state odd --reason r", 2, `no state is named "odd"`},
		{"machine reboot not_found --reason r", 3, `no machine is named "not_found"`},
		{"machine reboot failed_precondition --reason r", 5, ""},
		{"machine reboot permission_denied --reason r", 4, ""},
		{"machine maintenance begin x --reason r --for 1h --until 2026-11-22T18:00:00Z", 2, "--for and --until contradict each other"},
		{"machine maintenance begin x --reason r --for -1h", 2, "--for must be positive, not -1h0m0s"},
		{"machine maintenance begin x --reason r --for 0s", 2, "--for must be positive, not 0s"},
		{"machine maintenance begin x --reason r --until=", 2, "--until must be an instant such as"},
		{"recovery pause --reason r --for 0s", 2, "--for must be positive, not 0s"},
		{"machine maintenance begin x --reason r --until tomorrow", 2, "--until must be an instant such as"},
		{"machine host-key acept x", 2, `there is no command "machine host-key acept": did you mean accept? (see ironherd machine host-key --help)`},
		{"machine powr on", 2, `there is no command "machine powr": did you mean power?`},
		{"plan confirm", 2, "PLAN is missing (see ironherd plan confirm --help)"},
		{"plan confirm not_found", 3, ""},
		{"plan confirm failed_precondition", 5, ""},
		{"provider pause metal", 2, "--reason must say why"},
		{"provider pause not_found --reason r", 3, ""},
		{"provider forget metal", 2, "--reason must say why"},
		{"provider forget not_found --reason r", 3, ""},
		{"provider retry", 2, "PROVIDER is missing (see ironherd provider retry --help)"},
		{"recovery pause", 2, "--reason must say why"},
		{"recovery pause --reason r --until x", 2, "--until must be an instant"},
		{"discrepancy adopt metal dev-9", 2, "--reason must say why"},
		{"discrepancy adopt metal not_found --reason r", 3, ""},
		{"discrepancy adopt metal dev-old-server --installed --reason r", 1, "the control plane is older than this command"},
		{"machine host-key accept x SHA256:BBBB", 2, "--reason must say why"},
		{"discrepancy forget metal", 2, "PROVIDER-ID is missing (see ironherd discrepancy forget --help)"},
		{"discrepancy adopt", 2, "PROVIDER and PROVIDER-ID are missing"},
		{"machine list x", 2, `"x" is more than is expected (see ironherd machine list --help)`},
		{"config check a b", 2, `"b" is more than is expected (see ironherd config check --help)`},
		{"token create ada bob --role viewer", 2, `"bob" is more than is expected`},
		{"serve --config /nowhere.yaml", 2, "configuration file /nowhere.yaml does not exist: name one with --config"},
		{"config check " + empty, 2, empty + ":1: agent_api.endpoint must be set"},
		{"db check --config /nowhere.yaml", 2, "configuration file /nowhere.yaml does not exist"},
		{"db copy --to postgres://h/d", 2, "--from must be set to the database that has the fleet"},
		{"db copy --from sqlite:/nowhere.db --to postgres://h/d", 3, "there is no Bare Metal Database at sqlite:/nowhere.db: --from must name the database that has the fleet"},
		{"db copy --from postgres://u:secret@h/d --to sqlite:/nowhere/x", 2, "a password does not belong on a command line: use PGPASSWORD or ~/.pgpass"},
		{"db backup", 2, "FILE is missing (see ironherd db backup --help)"},
		{"rehearse", 2, "--scenario must name what is to happen; `ironherd rehearse --help` lists the scenarios"},
		{"rehearse --scenario flood", 2, `no scenario is named "flood": use one of lose-rack,`},
		{"rehearse --scenario deploy --machines 0", 2, "--machines must be from 1 to 2000, not 0"},
		{"rehearse --scenario deploy --control-planes 10", 2, "--control-planes must be from 1 to 9, not 10"},
		{"rehearse --scenario deploy --hours 0", 2, "--hours must be above 0 and at most 720, not 0"},
		{"rehearse --scenario deploy --config /nowhere.yaml", 2, "configuration file /nowhere.yaml does not exist"},
		{"demo --machines 0 --agent " + empty, 2, "--machines must be from 1 to 20000, not 0\n"},
		{"demo --speed 0 --agent " + empty, 2, "--speed must be above 0 and at most 1000, not 0\n"},
		{"demo --seed 0 --agent " + empty, 2, "--seed must be at least 1, not 0\n"},
		{"demo --image-size 0 --agent " + empty, 2, "--image-size must be at least 4, not 0\n"},
		{"demo --machines x", 2, `--machines must be a whole number, not "x" (see ironherd demo --help)`},
		{"demo --real-agents -5 --agent " + empty, 2, "--real-agents must not be negative, not -5\n"},
		{"sim --dir x --real-agents -5", 2, "--real-agents must not be negative, not -5"},
		{"demo --real-agents -1 --agent " + empty, 2, "--real-agents must not be negative, not -1\n"},
		{"demo --vm 0 --agent " + empty, 2, "--vm must be at least 1, not 0\n"},
		{"demo --vm 1 --machines 2 --agent " + empty, 2, "--machines is for simulated machines: leave it out with --vm\n"},
		{"demo --seen-up http://{address}/ --agent " + empty, 2, "--seen-up must be unit or ssh, because no simulated machine answers HTTP\n"},
		{"machine install x --image os --seen-up ftp://{address}/", 2, "--seen-up must be unit, ssh, or an http or https URL with a host\n"},
		{"machine install x --image os --seen-up http://ada:secret@{address}/", 2, "--seen-up must not have a user, password, query or fragment in its URL"},
		{"machine install x --image os --seen-up http://192.0.2.1/", 2, "--seen-up must name the machine as {address}, or by a name"},
		{"machine install x --image os --seen-up https://{address}/ --seen-up-ca " + empty, 2, "--seen-up-ca must hold certificates in PEM form"},
		{"demo --until finished", 2, `--until knows only "installed", not "finished"`},
		{"sim", 2, "--dir must be set to a directory for the world"},
		{"sim --dir /nowhere --machines 0", 2, "--machines must be at least 1, not 0"},
		{"sim fault", 2, `there is no command "sim fault": did you mean faults? (see ironherd sim --help)`},
		{"machine list --token-file /nowhere", 2, "token file: the file /nowhere cannot be read: no such file or directory"},
		{"machine list --ca-file /nowhere", 2, "CA file /nowhere cannot be read: no such file or directory"},
		{"machine list --ca-file /dev/null", 2, "CA file /dev/null holds no PEM certificate"},
		{"image build debian a.img --without-agent", 2, `the output "a.img" ends neither in .raw nor in .raw.zst`},
		{"image build debian a.raw --agent /nowhere/agent", 2, "the agent's executable /nowhere/agent cannot be read: no such file or directory (--agent, or --without-agent)"},
		{"image build debian a.raw --without-agent --size -1 --timestamp soon", 2, "2 things are wrong: --size must be a number of MiB, not \"-1\"; --timestamp must be a number of seconds since 1970, not \"soon\"\n"},
		{"image build debian a.raw --without-agent --size 99999999999 --timestamp 99999999999999999999", 2, "2 things are wrong: --size must be a number of MiB, not \"99999999999\"; --timestamp must be a number of seconds since 1970, not \"99999999999999999999\"\n"},
		{"image build debian a.raw --without-agent --size 0x10 --hostname Foo_ --package nginx=1", 2, "3 things are wrong: --size must be a number of MiB, not \"0x10\"; \"nginx=1\" is not the name of a package; \"Foo_\" is not a host name: want lower-case letters, digits and dashes\n"},
		{"image build debian a.raw --without-agent --size 100 --timestamp 1763769600000", 2, "2 things are wrong: the size of 100 MiB is too small: want 323 MiB at least; the timestamp 1763769600000 lies ahead of this host's clock: want seconds since 1970\n"},
		{"image build debian a.raw --without-agent --size x --package 'a", 2, "2 things are wrong: --size must be a number of MiB, not \"x\"; \"'a\" is not the name of a package"},
		{"token create ada", 2, `--role: there is no role "": use one of metrics, viewer, operator, admin`},
		{"token create ada --role viewer --days 0", 2, "--days must be from 1 to 3650, not 0"},
		{"token create ada --role viewer --config /nowhere.yaml", 2, "configuration file /nowhere.yaml does not exist"},
	} {
		t.Run(test.args, func(t *testing.T) {
			t.Parallel()
			r := h.run(t, strings.Fields(test.args)...)
			if r.code != test.code || !strings.HasPrefix(r.stderr, "ironherd: "+test.want) {
				t.Errorf("got %d, %q\nwant %d, %q", r.code, r.stderr, test.code, test.want)
			}
			if r.stdout != "" || strings.Contains(r.stderr, "Usage:") || !strings.HasSuffix(r.stderr, "\n") {
				t.Errorf("a failure is one sentence on standard error: %q, %q", r.stdout, r.stderr)
			}
		})
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s.sock")
	r := run(t, nil, "machine", "list", "--server", "unix://"+socket)
	want := "ironherd: no control plane answers at unix://" + socket + " (no such file or directory): is `ironherd serve` running there?\n"
	if r.code != 7 || r.stderr != want {
		t.Errorf("got %d, %q, want %q", r.code, r.stderr, want)
	}
	silent, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r = run(t, nil, "machine", "list", "--server", "unix://"+socket, "--timeout", "50ms")
	if r.code != 7 || !strings.HasPrefix(r.stderr, "ironherd: the control plane at unix://"+socket+" did not answer in time: try again, or give it longer with --timeout\n") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
	r = run(t, []string{"HOME=" + t.TempDir()}, "machine", "list")
	if r.code != 7 || !strings.HasPrefix(r.stderr, "ironherd: no control plane was found on this host") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	defer encrypted.Close()
	host := encrypted.Listener.Addr().String()
	r = run(t, nil, "machine", "list", "--server", "http://"+host)
	want = "ironherd: what answers at http://" + host + " is no control plane, or wants TLS (400 Bad Request): try https://" + host + "\n"
	if r.code != 7 || r.stderr != want {
		t.Errorf("got %d, %q, want %q", r.code, r.stderr, want)
	}
	for server, told := range map[string]string{
		"ftp://x": `"ftp://x" does not name a control plane`, "unix://host/path": "does not name a control plane",
		"http://": "does not name a control plane", ":": "does not name a control plane",
		"http://user:secret@host/": "must not have a user or password", "http://user:secret%zz@host/": "must not have a user or password",
	} {
		r := run(t, nil, "machine", "list", "--server", server)
		if r.code != 2 || !strings.Contains(r.stderr, told) || strings.Contains(r.stderr, "secret") {
			t.Errorf("%s: got %d, %q", server, r.code, r.stderr)
		}
	}
}

func TestSimFaults(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "sim", "faults")
	help := run(t, nil, "sim", "--help").stdout
	for _, d := range fault.Descriptions() {
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(string(d.Kind)) + ` .*` + regexp.QuoteMeta(d.Opportunity) + `.*` + regexp.QuoteMeta(d.Meaning) + `$`)
		if r.code != 0 || !line.MatchString(r.stdout) {
			t.Errorf("%s is not in %s%s", d.Kind, r.stdout, r.stderr)
		}
		if !strings.Contains(help, d.Meaning) {
			t.Errorf("%s is not in the help of sim", d.Kind)
		}
	}
	if r := run(t, nil, "sim", "faults", "-o", "json"); !strings.Contains(r.stdout, `"name": "lost-reply"`) {
		t.Errorf("JSON: %s%s", r.stdout, r.stderr)
	}
}

func TestTokenIsSentAndNeverShown(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := h.run(t, "machine", "show", "internal", "--token-file", file)
	if h.authority != "Bearer s3cret-s3cret" {
		t.Errorf("sent %q", h.authority)
	}
	if strings.Contains(r.stdout+r.stderr, "s3cret") {
		t.Errorf("shown: %q", r.stderr)
	}
	if err := os.Chmod(file, 0o604); err != nil {
		t.Fatal(err)
	}
	if r := h.run(t, "machine", "list", "--token-file", file); r.code != 2 || !strings.Contains(r.stderr, "is open to others") {
		t.Errorf("a token that others can read: %d, %q", r.code, r.stderr)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, nil, "machine", "list", "--server", "http://192.0.2.1:7480", "--token-file", file)
	if r.code != 2 || r.stderr != "ironherd: the token would be sent to 192.0.2.1:7480 in the clear: use https://192.0.2.1:7480\n" {
		t.Errorf("a token over plain HTTP: %d, %q", r.code, r.stderr)
	}
	if err := os.WriteFile(file, []byte("two words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := h.run(t, "machine", "list", "--token-file", file); r.code != 2 || strings.Contains(r.stderr, "two words") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
}

var installArgs = []string{"--image", "http://images.example/a.zst", "--digest", "sha256:" + strings.Repeat("ab", 32)}

func TestInstallWaits(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, append([]string{"machine", "install", "herd-0001", "--wait", "--root-disk", "largest,min-size=100", "--kexec", "--architecture", "arm64"}, installArgs...)...)
	if want := "herd-0001: install generation 2 is wanted\n"; r.code != 0 || r.stdout != want {
		t.Errorf("got %d, %q, want %q", r.code, r.stdout, want)
	}
	golden(t, "machine_install.txt", r.stderr)
	got := h.installs[0]
	if got.GetImage().GetCompression().String() != "COMPRESSION_ZSTD" || got.GetRootDisk().GetMinSize() != 100 || !got.GetKexec() ||
		got.GetImage().GetArchitecture() != "arm64" {
		t.Errorf("asked for %v", got)
	}
}

func TestInstallIsCalledOff(t *testing.T) {
	t.Parallel()
	r := newFakeServer(t).run(t, append([]string{"machine", "install", "kept", "--wait"}, installArgs...)...)
	if r.code != 5 || !strings.Contains(r.stderr, "machine kept is not installed: called off by ada: the wrong image") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
}

func TestInstallTimesOut(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, append([]string{"machine", "install", "slow", "--wait", "--timeout", "3s"}, installArgs...)...)
	if r.code != 7 || !strings.Contains(r.stderr, "machine slow was not installed in time; it is installing: attempt 1 is under way. The install goes on") {
		t.Errorf("got %d, %q", r.code, r.stderr)
	}
}

func TestPartlyDone(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	r := h.run(t, "machine", "retry", "herd-0001", "not_found")
	done, missed := "herd-0001: agent-start does not wait in backoff any more\n", "not_found: no machine is named \"not_found\"\n"
	if r.code != 6 || r.stdout != done || r.stderr != missed {
		t.Errorf("some failed: got %d, %q, %q", r.code, r.stdout, r.stderr)
	}
	r = h.run(t, append([]string{"machine", "install", "not_found", "herd-0001"}, installArgs...)...)
	if r.code != 6 || r.stdout != "herd-0001: install generation 2 is wanted\n" || r.stderr != missed {
		t.Errorf("some installs failed: got %d, %q, %q", r.code, r.stdout, r.stderr)
	}
	r = h.run(t, "machine", "retry", "not_found", "not_found")
	if r.code != 3 || strings.Count(r.stderr, "\n") != 2 {
		t.Errorf("all failed: got %d, %q", r.code, r.stderr)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	code := cli.Main(ctx, []string{"machine", "list", "--server", h.url}, cli.Env{Stdout: &out, Stderr: &out, Version: "v"})
	if code != 130 || out.String() != "ironherd: interrupted\n" {
		t.Errorf("got %d, %q", code, out.String())
	}
}

// interrupting cancels when the text was written.
type interrupting struct {
	strings.Builder
	text   string
	cancel func()
}

func (w *interrupting) Write(p []byte) (int, error) {
	n, err := w.Builder.Write(p)
	if strings.Contains(w.String(), w.text) {
		w.cancel()
	}
	return n, err
}

func TestInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &interrupting{text: "attempt 1 is under way", cancel: cancel}
	args := append([]string{"machine", "install", "slow", "--wait", "--server", h.url}, installArgs...)
	code := cli.Main(ctx, args, cli.Env{Stdout: out, Stderr: out, Version: "v"})
	if code != 130 || !strings.HasSuffix(out.String(), "slow: the install goes on; see `ironherd machine explain slow --server "+h.url+"`\nironherd: interrupted\n") {
		t.Errorf("got %d, %q", code, out.String())
	}
}

func TestHelpIsAWordToo(t *testing.T) {
	t.Parallel()
	if r := run(t, nil, "help"); r.code != 0 || r.stdout != run(t, nil, "--help").stdout {
		t.Errorf("help: got %d, %q", r.code, r.stdout)
	}
	if r := run(t, nil, "help", "machine", "install"); r.code != 0 || r.stdout != run(t, nil, "machine", "install", "--help").stdout {
		t.Errorf("help machine install: got %d, %q", r.code, r.stdout)
	}
	if r := run(t, nil, "help", "machine", "lst"); r.code != 2 || !strings.Contains(r.stderr, `there is no command "machine lst"`) {
		t.Errorf("help machine lst: got %d, %q", r.code, r.stderr)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if r := run(t, nil, "--version"); r.code != 0 || r.stdout != "ironherd v1.2.3\n" {
		t.Errorf("--version: got %d, %q", r.code, r.stdout)
	}
	if r := run(t, nil, "version"); r.code != 0 || !strings.HasPrefix(r.stdout, "ironherd v1.2.3 (go") || strings.Contains(r.stdout, "control plane") {
		t.Errorf("got %d, %q", r.code, r.stdout)
	}
	if r := newFakeServer(t).run(t, "version"); !strings.HasSuffix(r.stdout, "\ncontrol plane v1.2.2 (go1.26, database sqlite, schema 3)\n") {
		t.Errorf("got %q", r.stdout)
	}
}

func TestColor(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	colored := func(environ ...string) bool {
		var out strings.Builder
		cli.Main(t.Context(), []string{"machine", "list", "--server", h.url}, cli.Env{Stdout: &out, Stderr: &out, StdoutTerminal: true, Environ: environ})
		return strings.Contains(out.String(), "\x1b[32minstalled\x1b[0m")
	}
	if !colored("TERM=xterm") || colored("NO_COLOR=1") || colored("TERM=dumb") {
		t.Error("colors are for terminals, unless NO_COLOR is set")
	}
}
