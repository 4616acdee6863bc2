package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAfterThePackageIsInstalled runs what dpkg runs then, on a host with systemd that is made of
// stand-ins. A control plane that does not come up fails no upgrade: dpkg would leave the package
// half configured, and whatever depends on it, too.
func TestAfterThePackageIsInstalled(t *testing.T) {
	t.Parallel()
	const users, reload, restart = "systemd-sysusers ironherd.conf\n", "systemctl daemon-reload\n", "systemctl try-restart ironherd.service\n"
	const said = "ironherd: the control plane did not come up at once; see: systemctl status ironherd\n"
	for name, test := range map[string]struct {
		args []string
		// fails is the command that fails; systemd says whether it runs here.
		fails   string
		systemd bool
		called  string
		failed  bool
		stderr  string
	}{
		"new":                         {args: []string{"configure", ""}, systemd: true, called: users + reload},
		"upgrade":                     {args: []string{"configure", "1.2.2"}, systemd: true, called: users + reload + restart},
		"upgrade, and no restart":     {args: []string{"configure", "1.2.2"}, fails: restart, systemd: true, called: users + reload + restart, stderr: said},
		"no systemd":                  {args: []string{"configure", "1.2.2"}, called: users},
		"no user":                     {args: []string{"configure", "1.2.2"}, fails: users, systemd: true, called: users, failed: true},
		"an upgrade that was undone":  {args: []string{"abort-upgrade", "1.2.2"}, systemd: true},
		"a removal that was not done": {args: []string{"abort-remove"}, systemd: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			running, calls := filepath.Join(dir, "running"), filepath.Join(dir, "calls")
			if test.systemd {
				if err := os.Mkdir(running, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, program := range []string{"systemctl", "systemd-sysusers"} {
				text := "#!/bin/sh\necho \"${0##*/} $*\" >>" + calls + "\n[ \"${0##*/} $*\" != '" + strings.TrimSpace(test.fails) + "' ]\n"
				if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			const sign = "/run/systemd/system" // sd_booted(3)
			script := read(t, "../deploy/deb/postinst")
			if !strings.Contains(script, sign) {
				t.Fatalf("it does not look for %s", sign)
			}
			var stderr bytes.Buffer
			run := exec.CommandContext(t.Context(), "sh", append([]string{"-c", strings.ReplaceAll(script, sign, running), "postinst"}, test.args...)...)
			run.Env, run.Stderr = []string{"PATH=" + dir + ":/usr/bin:/bin"}, &stderr
			if err := run.Run(); (err != nil) != test.failed {
				t.Errorf("it ended with %v", err)
			}
			called, err := os.ReadFile(calls)
			if err != nil && test.called != "" || string(called) != test.called || stderr.String() != test.stderr {
				t.Errorf("it called %q, want %q, and said %q, want %q", called, test.called, stderr.String(), test.stderr)
			}
		})
	}
}
