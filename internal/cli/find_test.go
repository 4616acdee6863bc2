package cli_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/cli"
)

// serveAt serves the fake fleet at a Unix socket.
func serveAt(t *testing.T, path string) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_, handler := fleetv1connect.NewFleetServiceHandler(&fakeFleet{})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
}

func TestServerIsFound(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	state := filepath.Join(home, ".local", "state", "ironherd")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	serveAt(t, filepath.Join(state, "ironherd.sock"))
	if r := run(t, []string{"HOME=" + home}, "machine", "list"); r.code != 0 || r.stderr != "" {
		t.Errorf("the user's own: got %d, %q", r.code, r.stderr)
	}
	// What a demo leaves that was killed: nobody listens where its link leads.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(home, "s.sock")})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(home, "s.sock"), filepath.Join(state, "demo.sock")); err != nil {
		t.Fatal(err)
	}
	if r := run(t, []string{"HOME=" + home}, "machine", "list"); r.code != 0 || r.stderr != "" {
		t.Errorf("the user's own, beside a demo that is gone: got %d, %q", r.code, r.stderr)
	}
	if err := os.Remove(filepath.Join(home, "s.sock")); err != nil {
		t.Fatal(err)
	}
	serveAt(t, filepath.Join(home, "s.sock"))
	r := run(t, []string{"HOME=" + home}, "machine", "list")
	if r.code != 2 || !strings.Contains(r.stderr, "several control planes were found") {
		t.Errorf("two: got %d, %q", r.code, r.stderr)
	}
	if r := run(t, []string{"HOME=" + home, "IRONHERD_SERVER=unix://" + home + "/s.sock"}, "machine", "list"); r.code != 0 {
		t.Errorf("named by the environment: got %d, %q", r.code, r.stderr)
	}
	if err := os.Remove(filepath.Join(state, "ironherd.sock")); err != nil {
		t.Fatal(err)
	}
	r = run(t, []string{"HOME=" + home}, "machine", "list")
	if r.code != 0 || r.stderr != "Asking the demo at unix://"+state+"/demo.sock: name another control plane with --server or --config.\n" {
		t.Errorf("only a demo: got %d, %q", r.code, r.stderr)
	}
}

// TestNamedServer: the first of --server, --config, $IRONHERD_SERVER and $IRONHERD_CONFIG counts.
// The configuration is the packaged one, whose agent lies beside the program.
func TestNamedServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	packaged, err := os.ReadFile("../../deploy/ironherd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, served := filepath.Join(dir, "herd.yaml"), filepath.Join(dir, "ironherd.sock")
	for name, content := range map[string]string{file: "dir: " + dir + "\n" + string(packaged), filepath.Join(dir, "ironherd-agent"): "an agent"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	serveAt(t, served)
	const nobody = "unix:///nowhere/s.sock"
	for _, test := range []struct {
		environ, args string
		code          int
		want          string
	}{
		{"", "--config " + file, 0, ""},
		{"IRONHERD_CONFIG=" + file, "", 0, ""},
		{"IRONHERD_SERVER=" + nobody, "--config " + file, 0, ""},
		{"IRONHERD_SERVER=unix://" + served, "--config /nowhere.yaml", 2, "/nowhere.yaml does not exist"},
		{"IRONHERD_SERVER=unix://" + served + " IRONHERD_CONFIG=/nowhere.yaml", "", 0, ""},
		{"IRONHERD_SERVER=" + nobody + " IRONHERD_CONFIG=/nowhere.yaml", "--server unix://" + served, 0, ""},
		{"", "--server unix://" + served + " --config " + file, 0, ""},
		{"", "--server unix:" + served + " --config " + file, 0, ""},
		{"", "--server " + nobody + " --config " + file, 2, "--server and --config contradict each other, because the control plane of " + file + " listens at unix://" + served},
		{"", "--server http://127.0.0.1:1 --config " + file, 2, "--server and --config contradict each other"},
		// the port of operator_api.listen
		{"", "--server http://127.0.0.1:7480 --config " + file + " --token-file /nowhere", 2, "token file: "},
	} {
		for _, command := range []string{"image list", "version"} {
			var stdout, stderr bytes.Buffer
			code := cli.Main(t.Context(), append(strings.Fields(command), strings.Fields(test.args)...), cli.Env{
				Stdout: &stdout, Stderr: &stderr, Environ: strings.Fields(test.environ), Executable: filepath.Join(dir, "ironherd"), Version: "v1.2.3",
			})
			if code != test.code || !strings.Contains(stderr.String(), test.want) {
				t.Errorf("%s %s %s: got %d, %q, want %d, %q", test.environ, command, test.args, code, stderr.String(), test.code, test.want)
			}
			if command == "version" && (!strings.HasPrefix(stdout.String(), "ironherd v1.2.3") || strings.Contains(stdout.String(), "control plane") != (code == 0)) {
				t.Errorf("%s %s %s: %q", test.environ, command, test.args, stdout.String())
			}
		}
	}
}

// TestServerOfAnotherUser: the state of a control plane is closed to everybody else.
func TestServerOfAnotherUser(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	state := filepath.Join(home, ".local", "state", "ironherd")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	serveAt(t, filepath.Join(state, "ironherd.sock"))
	if err := os.Chmod(state, 0); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(home), home} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // until it ends with this goroutine, because nobody else may be who it is
		if os.Getuid() == 0 {  // who may enter every directory
			if err := unix.Setfsuid(4242); err != nil {
				t.Error(err)
			}
		}
		done <- cli.Main(t.Context(), []string{"machine", "list"}, cli.Env{Stdout: &stderr, Stderr: &stderr, Environ: []string{"HOME=" + home}})
	}()
	want := "ironherd: this user may not look for a control plane in " + state + ": be root, or use --server with a token\n"
	if code := <-done; code != 4 || stderr.String() != want {
		t.Errorf("got %d, %q, want %q", code, stderr.String(), want)
	}
	if err := os.Chmod(state, 0o700); err != nil { // which lets it be removed
		t.Error(err)
	}
}

// TestAFaultElsewhereInTheConfiguration does not keep callers from the control plane that runs: it
// is said, and the socket is where the rest of the file says. Where a fault may be about that, as a
// key that is not known, nobody is asked: it may be another control plane.
func TestAFaultElsewhereInTheConfiguration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that time stands still while a file is read
		dir := t.TempDir()
		serveAt(t, filepath.Join(dir, "ironherd.sock"))
		file := filepath.Join(dir, "herd.yaml")
		const good = "agent_api: {endpoint: 'herd.example:8443'}\ninitializer: {agent_executable: /dev/null}\n"
		for content, test := range map[string]struct {
			code   int
			stderr string
		}{
			good:                                    {0, ""},
			good + "policy: {suspect_share: 500}\n": {0, "Asking the control plane of " + file + " although that has a fault: " + file + ":4: policy.suspect_share must be "},
			good + "policy: {suspect_share: 500, recovery_per_hour: -1}\n":            {0, "Asking the control plane of " + file + " although that has 2 faults, of which `ironherd config check " + file + "` lists all: " + file + ":4: policy."},
			good + "policy: {a: 1}\n":                                                 {2, "policy.a: "},
			good + "log: {level: info, dir: /srv/b}\n":                                {2, "log.dir: "},
			good + "operator_api: {tls: {socket: /run/a.sock}}\n":                     {2, "operator_api.tls.socket: "},
			good + "providers: [{name: a, kind: static, static: {path: /nowhere}}]\n": {0, "although that has a fault: " + file + ":4: providers[0].static.path: "},
			good + "ssh: {key_file: " + dir + "}\n":                                   {0, "although that has a fault: " + file + ":4: ssh.key_file: "},
			"roles: [king]\n" + good:                                                  {0, "although that has a fault: "},
			good + "operator_api: {sokcet: /run/a.sock}\n":                            {2, "operator_api.sokcet"},
			good + "operatr_api: {socket: /run/a.sock}\n":                             {2, "operatr_api"},
			good + "operator_api: {socket: [/run/a.sock]}\n":                          {2, "operator_api.socket"},
			good + "log: [\n": {2, "this is not valid YAML"},
		} {
			if err := os.WriteFile(file, []byte("dir: "+dir+"\n"+content), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, named := range []string{"", " --server unix://" + dir + "/ironherd.sock"} {
				r := run(t, nil, strings.Fields("machine list --config "+file+named)...)
				if r.code != test.code || !strings.Contains(r.stderr, test.stderr) || (test.stderr == "") != (r.stderr == "") || strings.Count(r.stderr, "\n") > 1 {
					t.Errorf("%s%s: got %d, %q, want %d, %q", content, named, r.code, r.stderr, test.code, test.stderr)
				}
			}
		}
	})
}
