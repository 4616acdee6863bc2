package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/vm"
)

// TestThePackageUnderSystemd installs the Debian package on a stock Debian whose systemd runs the
// control plane: with the unit's sandbox, its watchdog, and its restarts.
func TestThePackageUnderSystemd(t *testing.T) {
	onDemand(t)
	ctx := bounded(t, limit)
	deb, err := remote.ReadContent(buildPackage(t))
	check(t, err)
	m := boot(t, stock(t, vm.BIOS))
	host := login(t, ctx, m)
	// in memory, because the disk has little room
	uploaded, err := host.Upload(ctx, deb, "/run/ironherd.deb", 0o600)
	check(t, err)
	shell(t, ctx, host, "rm -rf /usr/share/doc /usr/share/locale /usr/share/man && dpkg --install "+uploaded.Path)
	unit := func(property string) string {
		return strings.TrimSpace(shell(t, ctx, host, "systemctl show --value --property "+property+" ironherd.service"))
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("%s: %q, want %q; the journal:\n%s", what, got, want, shell(t, ctx, host, "journalctl --no-pager -u ironherd | tail -40"))
		}
	}
	want("after the installation", unit("ActiveState"), "inactive")

	// start waits for READY=1: operators are served at once
	shell(t, ctx, host, "systemctl enable --now ironherd.service || { journalctl --no-pager -u ironherd | tail -20; df -h /; exit 1; }")
	want("after the start", unit("ActiveState"), "active")
	want("the user", strings.TrimSpace(shell(t, ctx, host, "stat -c %U /proc/"+unit("MainPID"))), "ironherd")
	want("providers", strings.TrimSpace(shell(t, ctx, host, "ironherd provider list")), "No providers are configured.")
	want("the state", strings.TrimSpace(shell(t, ctx, host, "stat -c '%a %U' /var/lib/ironherd /var/lib/ironherd/ironherd.db")), "700 ironherd\n600 ironherd")

	// killed, aborted as after a panic, and hanging until the watchdog ends it: systemd starts it
	// again, and it goes on with the same database
	for n, signal := range []string{"KILL", "ABRT", "STOP"} {
		shell(t, ctx, host, "kill -"+signal+" "+unit("MainPID"))
		await(t, ctx, "a restart after SIG"+signal, func() error {
			return restarts(unit("NRestarts"), unit("ActiveState"), n+1)
		})
		want("after SIG"+signal, strings.TrimSpace(shell(t, ctx, host, "ironherd provider list")), "No providers are configured.")
	}
	// A program that hangs has its stacks in the journal before it goes.
	if said := shell(t, ctx, host, "journalctl --no-pager -u ironherd"); !strings.Contains(said, "goroutine ") {
		t.Errorf("the journal has no stack of the program that was aborted:\n%s", said)
	}

	shell(t, ctx, host, "systemctl stop ironherd.service")
	want("after the stop", unit("ActiveState")+" "+unit("Result")+" "+unit("ExecMainStatus"), "inactive success 0")

	// a fault in the configuration is told once, and is no reason to start again
	shell(t, ctx, host, "echo 'no_such_key: 1' >>/etc/ironherd/ironherd.yaml; ! systemctl start ironherd.service")
	want("with a fault in the configuration", unit("ActiveState")+" "+unit("ExecMainStatus")+" "+unit("NRestarts"), "failed 2 0")
	said := shell(t, ctx, host, "journalctl --no-pager -u ironherd | tail -5")
	if !strings.Contains(said, "no_such_key") {
		t.Errorf("the journal does not name the fault:\n%s", said)
	}

	shell(t, ctx, host, "dpkg --remove ironherd")
	want("after the removal", strings.TrimSpace(shell(t, ctx, host, "ls /usr/bin/ironherd /var/lib/ironherd/ironherd.db 2>/dev/null || true")),
		"/var/lib/ironherd/ironherd.db")
}

// restarts returns an error unless the unit is active and was started again so often.
func restarts(count, state string, want int) error {
	if state != "active" || count != strconv.Itoa(want) {
		return fmt.Errorf("it is %s after %s restarts, want %d", state, count, want)
	}
	return nil
}

// buildPackage makes the Debian package of the programs that were built for the tests.
func buildPackage(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	check(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "grpcnotrace,nethttpomithttp2",
			"-o", built.agent+"-"+arch, "./cmd/ironherd-agent")
		build.Dir = root
		build.Env = append(os.Environ(), "GOARCH="+arch, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the agent for %s: %v: %s", arch, err, out)
		}
	}
	target := filepath.Join(t.TempDir(), "ironherd.deb")
	nfpm := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/nfpm/go.mod", "nfpm", "package",
		"--config", "deploy/deb/nfpm.yaml", "--packager", "deb", "--target", target)
	nfpm.Dir = root
	nfpm.Env = append(os.Environ(), "BIN="+built.dir, "VERSION=1.2.3", "ARCH="+runtime.GOARCH)
	if out, err := nfpm.CombinedOutput(); err != nil {
		t.Fatalf("make the package: %v: %s", err, out)
	}
	return target
}
