package cli_test

import (
	"strings"
	"testing"
)

// TestGoldenOfChanges: what a command has changed is its result, for people and for programs, and
// goes to standard output.
func TestGoldenOfChanges(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"provider_pause.txt":   "provider pause metal --reason bill",
		"provider_pause.json":  "provider pause metal --reason bill -o json",
		"provider_resume.json": "provider resume metal --reason paid -o json",
		"provider_retry.txt":   "provider retry metal",
		"provider_retry.json":  "provider retry metal -o json",
		"provider_forget.json": "provider forget oldlab --reason closed -o json",
		"host_key_accept.txt":  "machine host-key accept herd-0001 SHA256:BBBB --reason reinstalled",
		"host_key_accept.json": "machine host-key accept herd-0001 SHA256:BBBB --reason reinstalled -o json",
		"adopt.txt":            "discrepancy adopt metal dev-9 --installed --reason bought",
		"adopt.json":           "discrepancy adopt metal dev-9 --installed --reason bought -o json",
		"adopt_paused.json":    "discrepancy adopt metal dev-paused --reason bought -o json",
		"machine_retry.txt":    "machine retry herd-0001 herd-0002",
		"machine_retry.json":   "machine retry herd-0001 herd-0002 -o json",
		"machine_install.json": "machine install herd-0001 herd-0002 --image debian-13 -o json",
		"recovery_pause.json":  "recovery pause --reason switch --for 1h -o json",
		"recovery_resume.json": "recovery resume --reason done -o json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeServer(t).run(t, strings.Fields(args)...)
			if r.code != 0 || r.stderr != "" {
				t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
			}
			golden(t, name, r.stdout)
		})
	}
}
