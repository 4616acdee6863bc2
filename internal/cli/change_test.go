package cli_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/cli"
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
		"recovery_others.txt":  "recovery pause --reason both --for 1h",
		"recovery_others.json": "recovery pause --reason both --for 1h -o json",
		"recovery_resume.json": "recovery resume --reason done -o json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			r := h.run(t, strings.Fields(args)...)
			if r.code != 0 || r.stderr != "" {
				t.Errorf("exit code %d, stderr %q", r.code, r.stderr)
			}
			golden(t, name, strings.ReplaceAll(r.stdout, h.url, "http://HOST:PORT"))
		})
	}
}

// TestEachIsToldWhenItWasDone: who ends before the last machine was asked has told of the others.
func TestEachIsToldWhenItWasDone(t *testing.T) {
	t.Parallel()
	const missed = "not_found: no machine is named \"not_found\"\n"
	for args, want := range map[string]string{
		"machine retry herd-0001 not_found herd-0002": "herd-0001: agent-start does not wait in backoff any more\n" + missed +
			"herd-0002: agent-start does not wait in backoff any more\n",
		"machine install --image debian-13 herd-0001 not_found herd-0002": "herd-0001: install generation 2 is wanted\n" + missed +
			"herd-0002: install generation 2 is wanted\n",
	} {
		var both bytes.Buffer
		code := cli.Main(t.Context(), append(strings.Fields(args), "--server", newFakeServer(t).url), cli.Env{
			Stdin: strings.NewReader(""), Stdout: &both, Stderr: &both, Executable: "/usr/bin/ironherd", Version: "v1.2.3",
		})
		if code != 6 || both.String() != want {
			t.Errorf("%s: %d, %q, want %q", args, code, &both, want)
		}
	}
}
