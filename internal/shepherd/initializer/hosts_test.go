package initializer_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/test/process"
)

// agentVariable makes this test's binary an agent.
const agentVariable = "IRONHERD_TEST_AGENT"

// leftNote is the file that runAgent writes when it leaves.
const leftNote = "left"

// runAgent is an agent that takes over whatever it runs on, and, told to leave, notes in the home
// where it was told so.
func runAgent() int {
	if slices.Contains(os.Args, "leave") {
		if os.WriteFile(filepath.Join(os.Getenv("HOME"), leftNote), []byte(strings.Join(os.Args, " ")), 0o600) != nil {
			return 1
		}
		return 0
	}
	input, err := io.ReadAll(os.Stdin)
	init := new(agentv1.TakeoverInit)
	if err != nil || proto.Unmarshal(input, init) != nil {
		return 2
	}
	output, err := proto.Marshal(&agentv1.TakeoverResponse{Init: init, Outcome: &agentv1.TakeoverResponse_Success{Success: &agentv1.TakeoverSuccess{
		PublicKey: bytes.Repeat([]byte{7}, 32), AgentVersion: os.Args[0], BootId: "boot-1",
	}}})
	if err != nil {
		return 2
	}
	if _, err := os.Stdout.Write(output); err != nil {
		return 2
	}
	return 0
}

// sshd is OpenSSH's own server on an address of 127/8, for one test.
type sshd struct {
	port    uint16
	home    string
	hostKey string
}

// openSSH starts a server that admits a key, with lines added to its configuration. Commands have
// an empty home.
func openSSH(t *testing.T, key *remote.Key, lines ...string) sshd {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil || os.Getuid() != 0 {
		if os.Getenv("CI") == "" {
			t.Skip("needs OpenSSH's sshd, and root")
		}
		t.Fatal("needs OpenSSH's sshd, and root")
	}
	check(t, os.MkdirAll("/run/sshd", 0o755))
	dir, s := t.TempDir(), sshd{home: t.TempDir()}
	out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir+"/host").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	public, err := os.ReadFile(dir + "/host.pub")
	check(t, err)
	s.hostKey = strings.Join(strings.Fields(string(public))[:2], " ")
	check(t, os.WriteFile(dir+"/authorized", []byte(key.Public()+"\n"), 0o600))
	free, err := process.FreeAddress(t.Context())
	check(t, err)
	address := netip.MustParseAddrPort(free)
	s.port = address.Port()
	config := fmt.Sprintf("ListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/authorized\nPidFile none\nUsePAM no\nStrictModes no\n"+
		"KbdInteractiveAuthentication no\nPermitRootLogin yes\nSetEnv HOME=%s %s=1\n%s\n", address, dir, dir, s.home, agentVariable, strings.Join(lines, "\n"))
	if !strings.Contains(config, "Subsystem") {
		config += "Subsystem sftp internal-sftp\n"
	}
	check(t, os.WriteFile(dir+"/config", []byte(config), 0o600))
	server := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", dir+"/config")
	said := new(bytes.Buffer)
	server.Stderr, server.WaitDelay = said, time.Second
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		if connection, err := net.Dial("tcp", address.String()); err == nil { //nolint:noctx // a test
			check(t, connection.Close())
			return s
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("sshd does not listen")
		}
	}
}

// onOpenSSH has the bench's machine be a real server with these lines, and a program that is an
// agent.
func (b *bench) onOpenSSH(lines ...string) sshd {
	b.t.Helper()
	s := openSSH(b.t, b.key, lines...)
	self, err := os.Executable()
	check(b.t, err)
	check(b.t, os.WriteFile(b.config.AgentExecutable, []byte("#!/bin/sh\nexec "+self+" \"$@\"\n"), 0o600))
	b.config.Port = s.port
	b.config.TargetPath, b.config.OtherTargetPaths = rootsDir(b.t), nil
	b.attest(s.hostKey)
	return s
}

// rootsDir makes a directory that is root's alone, as those above it are.
func rootsDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/lib", "ironherd-test-") //nolint:usetesting // a directory outside /tmp is meant
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	return dir
}

// smallDisk mounts a file system of 64 KiB for a test.
func smallDisk(t *testing.T, flags uintptr) string {
	t.Helper()
	dir := rootsDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, "size=64k,mode=0755"); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("needs to mount: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// Hosts that misbehave, and get their agent all the same.
func TestHostsThatMisbehaveGetTheirAgent(t *testing.T) {
	t.Parallel()
	full := func(b *bench) string {
		dir := smallDisk(b.t, 0)
		check(b.t, os.WriteFile(dir+"/filler", make([]byte, 64<<10), 0o600))
		return dir
	}
	for name, prepare := range map[string]func(b *bench){
		"nothing special": func(b *bench) { b.onOpenSSH() },
		"no SFTP":         func(b *bench) { b.onOpenSSH("Subsystem other /bin/true") },
		"no SFTP, and noise": func(b *bench) {
			s := b.onOpenSSH("Subsystem sftp /usr/lib/openssh/sftp-server")
			check(b.t, os.WriteFile(s.home+"/.bashrc", []byte("echo Welcome; printf '\\000\\001'; head -c 2000000 /dev/zero\n"), 0o600))
		},
		"a banner": func(b *bench) {
			banner := filepath.Join(b.t.TempDir(), "banner")
			check(b.t, os.WriteFile(banner, bytes.Repeat([]byte("Authorized use only!\n"), 500), 0o600))
			b.onOpenSSH("Banner " + banner)
		},
		"read-only, full, noexec, and open to others": func(b *bench) {
			b.onOpenSSH()
			open := rootsDir(b.t)
			check(b.t, os.Chmod(open, 0o777))
			b.config.TargetPath, b.config.OtherTargetPaths = smallDisk(b.t, syscall.MS_RDONLY)+"/agent",
				[]string{full(b), smallDisk(b.t, syscall.MS_NOEXEC), open, b.config.TargetPath}
		},
		"one in which nothing is executed, in words of its own": func(b *bench) {
			b.onOpenSSH()
			agent, err := os.ReadFile(b.config.AgentExecutable)
			check(b.t, err)
			forbidden := b.config.TargetPath + "/forbidden"
			b.config.TargetPath, b.config.OtherTargetPaths = forbidden, []string{b.config.TargetPath}
			check(b.t, os.WriteFile(b.config.AgentExecutable, bytes.Replace(agent, []byte("exec "),
				[]byte("case $0 in "+forbidden+"/*) echo bash: $0: Keine Berechtigung >&2; exit 126 ;; esac\nexec "), 1), 0o600))
		},
		"no SFTP, read-only, full, noexec": func(b *bench) {
			b.onOpenSSH("Subsystem other /bin/true")
			b.config.TargetPath, b.config.OtherTargetPaths = smallDisk(b.t, syscall.MS_RDONLY)+"/agent",
				[]string{full(b), smallDisk(b.t, syscall.MS_NOEXEC), b.config.TargetPath}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			prepare(b)
			if outcome, ok := b.start().(shepherd.Finish); !ok {
				t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
			}
			if s := b.record().AgentStarted; s == nil || s.BootID != "boot-1" || s.TakeoverGeneration != 1 {
				t.Errorf("recorded %+v", s)
			}
		})
	}
}

// list puts a list of hosts in the place of the provider.
func (b *bench) list(content string) {
	b.t.Helper()
	name := filepath.Join(b.t.TempDir(), "hosts.yaml")
	check(b.t, os.WriteFile(name, []byte(content), 0o600))
	at := time.Now().Add(-time.Hour) // nobody writes it any more
	check(b.t, os.Chtimes(name, at, at))
	p, err := static.New(static.Config{Path: name, InFlight: 1}, provider.Options{})
	check(b.t, err)
	b.sources = []initializer.Source{{Name: source, Provider: p}}
}

// A host may have a port and a user of its own, and be reached through another host only.
func TestAHostIsReachedAsItsListSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(b *bench, machine, jump sshd, access *provider.Access)
		says   string
	}{
		"its own port": {func(b *bench, machine, _ sshd, access *provider.Access) { access.Port, b.config.Port = machine.port, 1 }, ""},
		"its own user": {func(b *bench, _, _ sshd, access *provider.Access) { access.User, b.config.User = "root", "nobody" }, ""},
		"through a jump host": {func(b *bench, _, jump sshd, access *provider.Access) {
			access.Jump = &provider.Jump{Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), jump.port), HostKey: jump.hostKey}
		}, ""},
		"through a jump host with another key": {func(b *bench, machine, jump sshd, access *provider.Access) {
			access.Jump = &provider.Jump{Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), jump.port), HostKey: machine.hostKey}
		}, "dial: jump host: 127.0.0.1"},
		"a jump host that reaches nothing": {func(b *bench, _, jump sshd, access *provider.Access) {
			access.Port = 1
			access.Jump = &provider.Jump{Address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), jump.port), HostKey: jump.hostKey}
		}, "connect from jump host 127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			machine, jump := b.onOpenSSH(), openSSH(t, b.key, "ForceCommand echo only forwarding here")
			b.fake.Change(b.device.ID, func(e *provider.Entry) bool {
				test.change(b, machine, jump, &e.Access)
				return true
			})
			outcome := b.start()
			if _, ok := outcome.(shepherd.Finish); ok != (test.says == "") {
				t.Fatalf("got %T %+v\n%s", outcome, outcome, b.log.String())
			}
			if cause := b.record().Backoffs[fleet.ProcessAgentStart].Cause; !strings.Contains(cause, test.says) || strings.Contains(cause, "host-key accept") {
				t.Errorf("the cause is %q", cause)
			}
		})
	}
}

// foreign is a program of another architecture than this host's.
func foreign(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("/bin/true")
	check(t, err)
	other := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		other = elf.EM_X86_64
	}
	binary.LittleEndian.PutUint16(data[18:], uint16(other)) // e_machine
	return data
}

// Hosts that cannot get an agent. The cause, which `machine explain` shows, is one sentence that
// names the thing and the remedy.
func TestHostsThatMisbehaveAreExplained(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(b *bench)
		says    []string
	}{
		"another command": {
			func(b *bench) { b.onOpenSSH("ForceCommand printf 'backups \\033[31monly'") },
			[]string{`"backups \x1b[31monly"`, "ForceCommand"},
		},
		"noise without end": {func(b *bench) { b.onOpenSSH("ForceCommand yes") }, []string{"more than 4194304 bytes", "ForceCommand"}},
		"passwords only": {
			func(b *bench) { b.onOpenSSH("PubkeyAuthentication no", "PasswordAuthentication yes") },
			[]string{"by public key", "`PubkeyAuthentication yes`"},
		},
		"another key": {func(b *bench) {
			b.onOpenSSH()
			b.attest(b.hostKey)
		}, []string{"nothing was sent", "`ironherd machine host-key accept "}},
		"hangs once we are in": {func(b *bench) {
			b.onOpenSSH("ForceCommand sleep 600")
			// A busy host lets us in before.
			b.config.FirstSilence, b.config.StepTimeout = 6*time.Second, 9*time.Second
		}, []string{"a first command", "within 6s"}},
		"no directory will do": {func(b *bench) {
			b.onOpenSSH()
			b.config.TargetPath, b.config.OtherTargetPaths = smallDisk(b.t, syscall.MS_RDONLY), []string{smallDisk(b.t, syscall.MS_NOEXEC)}
		}, []string{"no directory of the host", "read-only", "noexec", "other_target_paths"}},
		// /bin/true runs, and answers nothing.
		"its agent is the second": {func(b *bench) {
			b.onOpenSSH()
			check(b.t, os.WriteFile(b.config.AgentExecutable, foreign(b.t), 0o600))
			b.config.OtherAgentExecutables = []string{"/bin/true"}
		}, []string{"the agent's answer does not echo what it was given: the host wrote nothing"}},
		"no agent for its architecture": {func(b *bench) {
			b.onOpenSSH()
			check(b.t, os.WriteFile(b.config.AgentExecutable, foreign(b.t), 0o600))
		}, []string{"the host is " + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH], "is built for", "initializer.other_agent_executables"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			test.prepare(b)
			if outcome, ok := b.start().(shepherd.Fail); !ok {
				t.Fatalf("got %T %+v", outcome, outcome)
			}
			waiting := b.record().Backoffs[fleet.ProcessAgentStart]
			for _, says := range test.says {
				if !strings.Contains(waiting.Cause, says) || strings.ContainsAny(waiting.Cause, "\n\x1b") {
					t.Errorf("it does not say %q: %q", says, waiting.Cause)
				}
			}
		})
	}
}

func TestAgentsOfOneArchitectureAreAFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	check(t, os.WriteFile(b.config.AgentExecutable, foreign(t), 0o600))
	script := filepath.Join(t.TempDir(), "script")
	check(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600))
	for other, says := range map[string]string{
		b.config.AgentExecutable: "one executable for each architecture", script: "no executable of an architecture", "/nowhere": "other_agent_executables[0]",
	} {
		b.config.OtherAgentExecutables = []string{other}
		if _, err := newInitializer(b); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", other, err)
		}
	}
}
