package test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

// inRoot are the steps before the package is installed: a root of its own over this system's, whose
// changes are gone with the namespace, and where nothing runs that was started here.
const inRoot = `set -eu
exec 2>&1
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
for d in dev run tmp var/lib/ironherd; do mkdir -p /mnt/root/$d; mount -t tmpfs none /mnt/root/$d; done
umount /mnt/root/var/lib/ironherd && rmdir /mnt/root/var/lib/ironherd
for n in null zero urandom; do : >/mnt/root/dev/$n; mount --bind /dev/$n /mnt/root/dev/$n; done
mkdir /mnt/root/run/outside && mount --bind "$OUTSIDE" /mnt/root/run/outside
mount -t proc none /mnt/root/proc
ip link set lo up
exec chroot /mnt/root sh -s
`

// installed is what happens in the root: the package is installed, its unit is checked, and what
// the unit names is started, as its user, with its directory and its watchdog.
const installed = `set -eu
unset TMPDIR
step() { echo "== $*"; }
dpkg --install /run/outside/ironherd.deb
unit=/usr/lib/systemd/system/ironherd.service
step verify; systemd-analyze verify $unit
step security; systemd-analyze security --offline=yes --no-pager --threshold=25 $unit >/tmp/security; tail -1 /tmp/security
setting() { sed -n "s/^$1=//p" $unit; }
step made; stat -c '%a %U %G' /var/lib/"$(setting StateDirectory)"; echo "$(setting StateDirectoryMode) $(setting User) $(setting Group)"
step early; (umask 077; ironherd token create early --role viewer >/tmp/early.token) 2>&1 | cut -d' ' -f1-6; stat -c '%a %U' /var/lib/ironherd/operator-tokens.yaml
# As a stranger could have left them: the control plane closes what is its own.
chmod 755 /var/lib/ironherd
step config; runuser -u "$(setting User)" -- ironherd config check
step start
(umask "$(setting UMask)"; NOTIFY_SOCKET=/run/outside/notify WATCHDOG_USEC=300000 exec setpriv --reuid "$(setting User)" --regid "$(setting Group)" \
	--init-groups --no-new-privs --bounding-set=-all --inh-caps=-all $(setting ExecStart)) &
pid=$!
read -r _ </run/outside/go # READY=1 has come
step user; stat -c %U /proc/$pid
step directory; stat -c '%a %U' /var/lib/ironherd /var/lib/ironherd/ironherd.db /var/lib/ironherd/ironherd.sock
step ask; ironherd provider list
step token; (umask 077; ironherd token create ada --role viewer >/tmp/ada.token) 2>&1 | cut -d' ' -f1-6; stat -c '%a %U' /var/lib/ironherd/operator-tokens.yaml
export IRONHERD_SERVER=https://localhost:7480 IRONHERD_CA_FILE=/var/lib/ironherd/operator-ca.crt
step viewer; IRONHERD_TOKEN_FILE=/tmp/ada.token ironherd provider list
step stranger; ironherd provider list || echo "exit $?"
unset IRONHERD_SERVER
step stop; kill -TERM $pid; code=0; wait $pid || code=$?; echo "exit $code"
step crash
(ulimit -c "$(setting LimitCORE)"; umask "$(setting UMask)"; exec env "$(setting Environment)" setpriv --reuid "$(setting User)" --regid "$(setting Group)" \
	--init-groups --no-new-privs --bounding-set=-all --inh-caps=-all $(setting ExecStart)) 2>/tmp/crash.log &
pid=$!
until ironherd provider list >/dev/null 2>&1 || ! kill -0 $pid 2>/dev/null; do sleep 0.2; done
kill -ABRT $pid; code=0; wait $pid 2>/dev/null || code=$?; echo "exit $code"
grep -c '^goroutine ' /tmp/crash.log >/dev/null || cat /tmp/crash.log
step remove; dpkg --remove ironherd; ls /usr/bin/ironherd /var/lib/ironherd/ironherd.db || true
`

// TestTheDebianPackage installs the real package and starts what its unit starts. systemd itself
// does not run here: its tools check the unit, and the test listens to what systemd would be told.
func TestTheDebianPackage(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("a package is installed by root: run this test as root")
	}
	for _, tool := range []string{"dpkg", "systemd-analyze", "systemd-sysusers", "setpriv", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is needed: run `make setup`: %v", tool, err)
		}
	}
	dir := shortDir(t)
	buildDeb(t, filepath.Join(dir, "ironherd.deb"))
	if err := syscall.Mkfifo(filepath.Join(dir, "go"), 0o600); err != nil {
		t.Fatal(err)
	}
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer supervisor.Close()
	// Anybody may tell the supervisor: the control plane is not root.
	for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, "notify"): 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	ctx := bounded(t, 3*time.Minute)
	log := &process.Log{}
	heard := make(chan string)
	go func() { heard <- hear(ctx, supervisor, filepath.Join(dir, "go")) }()
	run := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", inRoot)
	run.Stdin, run.Stdout, run.Stderr = strings.NewReader(installed), log, log
	run.Env = append(os.Environ(), "OUTSIDE="+dir, "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = run.Run()
	supervisor.Close()
	if told := <-heard; told != "ready alive stopping" || err != nil {
		t.Errorf("it ended with %v; the supervisor heard %q", err, told)
	}
	steps := map[string]string{}
	for part := range strings.SplitSeq(log.String(), "== ") {
		name, output, _ := strings.Cut(part, "\n")
		steps[name] = strings.TrimSpace(output)
	}
	for step, want := range map[string]string{
		"verify":    "", // it finds nothing to say
		"made":      "700 ironherd ironherd\n0700 ironherd ironherd",
		"early":     "token early has the role viewer\n600 ironherd", // the control plane has not run
		"config":    "/etc/ironherd/ironherd.yaml is right: 0 providers, 9 roles",
		"user":      "ironherd",
		"directory": "700 ironherd\n600 ironherd\n600 ironherd",
		"token":     "token ada has the role viewer\n600 ironherd",
		"viewer":    "No providers are configured.",
		// What the watchdog does to it. 2 is a fault in the configuration, which nobody starts again.
		"crash": "exit 134",
	} {
		if got, ran := steps[step]; !ran || got != want {
			t.Errorf("%s: %q, want %q", step, got, want)
		}
	}
	for step, want := range map[string]string{
		"ask": "No providers are configured.", "stop": "exit 0", "remove": "/usr/bin/ironherd': No such file",
		"stranger": "ironherd: a token is needed: make one on the control plane's host with `ironherd token create NAME --role ROLE`, and name its file with --token-file " +
			"(in HTTP: Authorization: Bearer …), or use the Unix socket of the control plane\nexit 4",
	} {
		if !strings.Contains(steps[step], want) {
			t.Errorf("%s: %q, want %q in it", step, steps[step], want)
		}
	}
	if !strings.Contains(steps["remove"], "\n/var/lib/ironherd/ironherd.db") {
		t.Errorf("removing the package took the fleet with it: %q", steps["remove"])
	}
	if t.Failed() {
		t.Log(log.String())
	}
}

// TestUnitsAreStartedAgain reads the units. systemd gives up on a unit that fails five times within
// ten seconds, unless it is told not to, and takes a death by SIGHUP for an orderly end. A Go
// program that panics exits with 2, which is an exit status for which a unit must not be left down.
func TestUnitsAreStartedAgain(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("../deploy/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("there are no units: %v", err)
	}
	for _, path := range units {
		unit := "\n" + read(t, path)
		if strings.Contains(unit, "\nRestart=") && !strings.Contains(unit, "\nStartLimitIntervalSec=0\n") {
			t.Errorf("%s is not started any more after five failures", path)
		}
		if !strings.Contains(unit, "\nType=oneshot\n") && !strings.Contains(unit, "\nRestart=always\n") {
			t.Errorf("%s stays down after a signal that systemd takes for an orderly end", path)
		}
		if strings.Contains(unit, "\nRestartPreventExitStatus=2\n") && !strings.Contains(unit, "\nEnvironment=GOTRACEBACK=crash\n") {
			t.Errorf("%s stays down after a panic", path)
		}
	}
}

// hear returns what the supervisor was told, each state once, in order. When it hears that all has
// started and that it is alive, it opens the pipe.
func hear(ctx context.Context, supervisor *net.UnixConn, pipe string) string {
	words := map[string]string{"READY=1": "ready", "WATCHDOG=1": "alive", "STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000": "stopping"}
	var told []string
	message := make([]byte, 1024)
	for {
		n, err := supervisor.Read(message)
		if err != nil {
			return strings.Join(told, " ")
		}
		word := words[string(message[:n])]
		if word == "" {
			word = fmt.Sprintf("%q", message[:n])
		}
		if word == "alive" && len(told) == 0 {
			continue // it may be alive before it is ready
		}
		if len(told) > 0 && (told[len(told)-1] == word || word == "alive" && told[len(told)-1] == "stopping") {
			continue
		}
		told = append(told, word)
		if word == "alive" {
			open := exec.CommandContext(ctx, "sh", "-c", "echo >"+pipe)
			if err := open.Run(); err != nil {
				return err.Error()
			}
		}
	}
}

// buildDeb makes the package of the programs that were built for the tests, as `make deb` does.
func buildDeb(t *testing.T, target string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace,nethttpomithttp2", "-o",
			filepath.Join(filepath.Dir(ironherd), "ironherd-agent-"+arch), "./cmd/ironherd-agent")
		build.Dir = root
		build.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the agent for %s: %v: %s", arch, err, out)
		}
	}
	pack(t, root, filepath.Dir(ironherd), target)
}

// pack makes the package of the programs in bin and of the source in root.
func pack(t *testing.T, root, bin, target string) {
	t.Helper()
	program, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../tools/nfpm/go.mod", "-n", "nfpm").Output()
	if err != nil {
		t.Fatalf("build nfpm: %v", err)
	}
	nfpm := exec.CommandContext(t.Context(), strings.TrimSpace(string(program)), "package",
		"--config", "deploy/deb/nfpm.yaml", "--packager", "deb", "--target", target)
	nfpm.Dir = root
	nfpm.Env = append(os.Environ(), "BIN="+bin, "VERSION=1.2.3", "ARCH="+runtime.GOARCH)
	if out, err := nfpm.CombinedOutput(); err != nil {
		t.Fatalf("make the package: %v: %s", err, out)
	}
}

// TestSampleConfiguration is what a person reads first: every key in it, also one that is commented
// out, is one that there is.
func TestSampleConfiguration(t *testing.T) {
	t.Parallel()
	file, err := os.Open("../deploy/ironherd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var content strings.Builder
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		for _, commented := range []string{"# providers:", "#   - name:", "#     kind:", "#     static:", "#       path:", "  # names:"} {
			if strings.HasPrefix(line, commented) {
				line = strings.Replace(line, "# ", "", 1)
			}
		}
		_, _ = io.WriteString(&content, line+"\n")
	}
	hosts := filepath.Join(t.TempDir(), "hosts.yaml")
	if err := os.WriteFile(hosts, []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "ironherd.yaml")
	text := strings.Replace(content.String(), "/etc/ironherd/hosts.yaml", hosts, 1)
	if err := os.WriteFile(whole, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := process.Run(bounded(t, time.Minute), ironherd, "config", "check", whole)
	if want := whole + " is right: 1 provider, 9 roles\n"; code != 0 || stdout != want {
		t.Errorf("%d, %q, %q, want %q\n%s", code, stdout, stderr, want, text)
	}
}
