package cli_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/cli"
)

// TestTheAgentOfAnImage is for amd64, whatever this program is for: one beside it that is for
// another architecture is passed over, or refused where there is no other.
func TestTheAgentOfAnImage(t *testing.T) {
	t.Parallel()
	const amd64, arm64 = 62, 183 // of ELF
	const refused = "ironherd-agent is for aarch64, and an image is for amd64: name ironherd-agent-amd64, which `make agents` makes (--agent, or --without-agent)\n"
	for name, test := range map[string]struct {
		own, other uint16
		code       int
		want       string
	}{
		"its own":                      {own: amd64, code: 1, want: "read the APT sources"},
		"its own, and another":         {own: amd64, other: arm64, code: 1, want: "read the APT sources"},
		"of arm64, and one for amd64":  {own: arm64, other: amd64, code: 1, want: "read the APT sources"},
		"the one for amd64 alone":      {other: amd64, code: 1, want: "read the APT sources"},
		"of arm64 alone":               {own: arm64, code: 2, want: refused},
		"of arm64, and a misnamed one": {own: arm64, other: arm64, code: 2, want: refused},
		"none":                         {code: 2, want: "ironherd-agent cannot be read: no such file or directory (--agent, or --without-agent)\n"},
		"a misnamed one alone":         {other: arm64, code: 2, want: "ironherd-agent cannot be read: no such file or directory (--agent, or --without-agent)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, machine := range map[string]uint16{"ironherd-agent": test.own, "ironherd-agent-amd64": test.other} {
				if machine == 0 {
					continue
				}
				header := make([]byte, 64) // of a program of 64 bits, with the low byte first
				copy(header, "\x7fELF\x02\x01\x01")
				binary.LittleEndian.PutUint16(header[18:], machine)
				header[20], header[52] = 1, 64 // version, and size of this header
				if err := os.WriteFile(filepath.Join(dir, file), header, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var stderr bytes.Buffer
			// The sources are missed when all flags are right, and before anything is done.
			code := cli.Main(t.Context(), []string{"image", "build", "debian", filepath.Join(dir, "a.raw"), "--sources", filepath.Join(dir, "gone")},
				cli.Env{Stdout: &stderr, Stderr: &stderr, Executable: filepath.Join(dir, "ironherd")})
			if code != test.code || !strings.Contains(stderr.String(), test.want) {
				t.Errorf("got %d, %q, want %d, %q", code, stderr.String(), test.code, test.want)
			}
		})
	}
}

// TestABuildWhoseTerminalIsGone ends in order: it takes its tools along, and leaves nothing.
func TestABuildWhoseTerminalIsGone(t *testing.T) { //nolint:paralleltest // it changes PATH, and hangs up on all of this process
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can build images")
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // else a fault ends the process of the tests
	defer signal.Stop(hangups)
	dir, programs := t.TempDir(), t.TempDir()
	for _, name := range []string{"mmdebstrap", "mke2fs", "debugfs", "dumpe2fs", "mkfs.vfat", "mcopy", "mmd", "sfdisk"} {
		script := "#!/bin/sh\necho at work >&2\nexec sleep 5\n"
		if err := os.WriteFile(filepath.Join(programs, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs)
	sources := filepath.Join(programs, "sources")
	if err := os.WriteFile(sources, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr := &untilSaid{text: "at work", said: sync.OnceFunc(func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Error(err)
		}
	})}
	code := cli.Main(t.Context(), []string{"image", "build", "debian", filepath.Join(dir, "a.raw"), "--without-agent", "--sources", sources},
		cli.Env{Stdout: io.Discard, Stderr: stderr, Executable: filepath.Join(dir, "ironherd")})
	if want := "ironherd: put the packages together: hangup signal received\n"; code != 130 || !strings.HasSuffix(stderr.all.String(), want) {
		t.Errorf("it ended with %d: %s", code, &stderr.all)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// TestTheKeysOfAnImage are public ones: what else is named is refused, with the line and without
// what it says, before anything is built.
func TestTheKeysOfAnImage(t *testing.T) {
	t.Parallel()
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
	for name, test := range map[string]struct {
		text string
		code int
		want string
	}{
		"a public key":        {text: key + " op@host\n", code: 1, want: "read the APT sources"},
		"nothing":             {code: 2, want: "key is no file of public SSH keys: there is no key in it\n"},
		"a private key":       {text: "-----BEGIN OPENSSH PRIVATE KEY-----\nhush\n", code: 2, want: "key holds a private key; an image gets the public one\n"},
		"PuTTY's private key": {text: "PuTTY-User-Key-File-3: hush\n", code: 2, want: "key is no file of public SSH keys: line 1 is not a public key as in authorized_keys\n"},
		"another line":        {text: key + "\n\nhush\n", code: 2, want: "key is no file of public SSH keys: line 3 is not a public key as in authorized_keys\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "key")
			if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			code := cli.Main(t.Context(), []string{"image", "build", "debian", filepath.Join(dir, "a.raw"), "--ssh-key", file, "--without-agent", "--sources", filepath.Join(dir, "gone")},
				cli.Env{Stdout: &stderr, Stderr: &stderr})
			if code != test.code || !strings.Contains(stderr.String(), test.want) || strings.Contains(stderr.String(), "hush") {
				t.Errorf("got %d, %q, want %d, %q", code, stderr.String(), test.code, test.want)
			}
		})
	}
}
