package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/config"
)

// TestReconcilerUnits: systemd reads the units of a control-plane node, with the drop-in, and finds
// no fault in them: no key that it ignores, no unit that is missing, no program that is not there.
// The programs and the API server's own unit are stand-ins. Nothing is started.
func TestReconcilerUnits(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("systemd-analyze is needed: run `make setup`: %v", err)
	}
	root := t.TempDir()
	const units = "usr/lib/systemd/system"
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	copied := func(from, pattern string) (names []string) {
		t.Helper()
		paths, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no %s in %s: %v", pattern, from, err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(from, path)
			if err != nil {
				t.Fatal(err)
			}
			put(filepath.Join(units, name), read(t, path), 0o644)
			names = append(names, name)
		}
		return names
	}
	copied("/usr/lib/systemd/system", "*.target") // what every unit rests on
	all := append(copied("../deploy/systemd", "kube-apiserver-*.service"), copied("../deploy/systemd", "ironherd-reconciler.service")...)
	copied("../deploy/systemd", "kube-apiserver.service.d/*.conf")
	put(filepath.Join(units, "kube-apiserver.service"), "[Service]\nExecStart=/usr/bin/kube-apiserver\n", 0o644)
	for _, program := range []string{"ironherd-reconciler", "kube-apiserver"} {
		put("usr/bin/"+program, "#!/bin/sh\n", 0o755)
	}
	all = append(all, "kube-apiserver.service")
	if len(all) != 4 {
		t.Errorf("the units are %v: the page tells of four", all)
	}
	page := read(t, "../docs/ops/kubernetes.md")
	verify := func(unit string) string {
		ctx := bounded(t, time.Minute)
		said, err := exec.CommandContext(ctx, "systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", "--root="+root, unit).CombinedOutput()
		if err != nil && len(said) == 0 {
			return err.Error()
		}
		return string(said)
	}
	for _, unit := range all {
		// What a crash of another unit has stopped comes back only with that one.
		for line := range strings.Lines(read(t, filepath.Join(root, units, unit))) {
			if bound, ok := strings.CutPrefix(line, "BindsTo="); ok && !strings.Contains(read(t, filepath.Join(root, units, unit)), "WantedBy="+bound) {
				t.Errorf("%s is bound to %s, which does not want it", unit, strings.TrimSpace(bound))
			}
		}
		if said := verify(unit); said != "" {
			t.Errorf("%s: %s", unit, said)
		}
		if !strings.Contains(page, strings.TrimSuffix(unit, ".service")+".service") {
			t.Errorf("the page does not tell of %s", unit)
		}
	}
	// It would have told.
	put(filepath.Join(units, "kube-apiserver.service.d/ironherd.conf"), "[Service]\nExecStartPree=/usr/bin/ironherd-reconciler\n", 0o644)
	if said := verify("kube-apiserver.service"); !strings.Contains(said, "ExecStartPree") {
		t.Errorf("a key that there is not is accepted: %q", said)
	}
}

// TestPageEnables: the steps of docs/ops/kubernetes.md that set a node up leave each unit of the
// page's table enabled that can be, and the API server's own, or the page says how one is enabled
// that takes the place of another. What is started alone is not there after a restart of the node.
func TestPageEnables(t *testing.T) {
	t.Parallel()
	page := read(t, "../docs/ops/kubernetes.md")
	enabled := map[string]bool{}
	for _, command := range pageSteps(t)[0] {
		if units, ok := strings.CutPrefix(command, "systemctl enable --now "); ok {
			for _, unit := range strings.Fields(units) {
				enabled[unit] = true
			}
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z-]+\\.service)` \\| (.*) \\|$").FindAllStringSubmatch(page, -1)
	if len(rows) != 3 {
		t.Errorf("the page's table has the units %q", rows)
	}
	for _, row := range rows {
		unit, what := row[1], row[2]
		if !strings.Contains(read(t, "../deploy/systemd/"+unit), "\nWantedBy=") {
			t.Errorf("%s cannot be enabled", unit)
		}
		if strings.HasPrefix(what, "instead of ") && strings.Contains(page, "`systemctl enable --now "+unit+"`") {
			continue
		}
		if !enabled[unit] {
			t.Errorf("the steps do not enable %s", unit)
		}
	}
	if !enabled["kube-apiserver.service"] {
		t.Error("the steps do not enable the API server")
	}
	// There is no such unit where the API server is a static pod, or a part of k3s.
	if !strings.Contains(read(t, "../deploy/systemd/kube-apiserver-expose.service"), "\nWantedBy=kube-apiserver.service multi-user.target\n") {
		t.Error("nothing starts expose on a host whose API server is no unit")
	}
}

// TestTheUnitWaitsForAnOrderlyStop: systemd kills a control plane that has not ended after the
// unit's time. That is longer than an orderly stop takes by default, before it is told of another
// time, and the page tells of both.
func TestTheUnitWaitsForAnOrderlyStop(t *testing.T) {
	t.Parallel()
	const margin = 15 * time.Second
	setting := regexp.MustCompile(`(?m)^TimeoutStopSec=(.*)$`).FindStringSubmatch(read(t, "../deploy/systemd/ironherd.service"))
	if setting == nil {
		t.Fatal("the unit has no TimeoutStopSec")
	}
	patience, err := time.ParseDuration(setting[1])
	if drain := config.Default().DrainTimeout; err != nil || patience < drain+margin {
		t.Errorf("the unit waits %s, and an orderly stop may take %s: %v", setting[1], drain, err)
	}
	page := read(t, "../docs/ops/running.md")
	for _, want := range []string{"`drain_timeout`", "`" + setting[0] + "`"} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/ops/running.md does not tell of %s", want)
		}
	}
}
