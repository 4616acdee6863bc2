package firstboot

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
)

const diskSize = 8 << 20

// plane is a control plane that refuses a number of reports before it acknowledges them.
type plane struct {
	agentv1.UnimplementedAgentCallbackServer
	endpoint string
	ca       []byte

	mu      sync.Mutex
	refuse  int
	reports []*agentv1.ReportUpRequest
	// wanted is how many further calls it asks for.
	wanted int
	// heard is told of the number of each call. May be nil.
	heard func(n int)
}

func (p *plane) ReportUp(_ context.Context, r *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, r)
	if p.heard != nil {
		p.heard(len(p.reports))
	}
	if len(p.reports) <= p.refuse {
		return nil, status.Error(codes.PermissionDenied, "agent not admitted")
	}
	response := new(agentv1.ReportUpResponse)
	if p.wanted > 0 {
		p.wanted--
		response.CallAgainMs = 1
	}
	return response, nil
}

// calls is how many there were.
func (p *plane) calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.reports)
}

func newPlane(t *testing.T, refuse int) *plane {
	t.Helper()
	return newPlaneFrom(t, refuse, time.Unix(0, 0))
}

// newPlaneFrom is one whose certificate is not valid before an instant.
func newPlaneFrom(t *testing.T, refuse int, notBefore time.Time) *plane {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: notBefore, NotAfter: time.Now().AddDate(3, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{endpoint: listener.Addr().String(), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), refuse: refuse}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	agentv1.RegisterAgentCallbackServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return p
}

// system is an installed system whose root file system is on a partition of sdb; sda holds an older
// install.
type system struct {
	root  string
	token *agentv1.BootToken
	// reloads counts how often sshd was told of its keys.
	reloads int
	// limit is how long a program may take; 0: as ever.
	limit time.Duration
	// reserved: disks have a partition for the first-boot area.
	reserved bool
	// log gets what is logged as a warning or worse. Nil: nobody reads it.
	log io.Writer
}

func newSystem(t *testing.T, p *plane, data string) *system {
	t.Helper()
	s := &system{root: t.TempDir(), token: &agentv1.BootToken{
		MachineId: "m", InstallGeneration: 3, Attempt: 2, Secret: []byte("0123456789abcdef0123456789abcdef"), Endpoint: p.endpoint, CaCertificate: p.ca,
	}}
	for path, text := range map[string]string{
		"proc/self/mountinfo":                "22 1 8:18 / / rw - ext4 /dev/sdb2 rw\n23 22 0:5 / /dev rw - devtmpfs udev rw\n",
		"proc/sys/kernel/random/boot_id":     "boot-1\n",
		"etc/ssh/ssh_host_ed25519_key.pub":   "ssh-ed25519 AAAA root@debian\n",
		"etc/ssh/ssh_host_ed25519_key":       "private",
		"sys/devices/sda/size":               "",
		"sys/devices/sdb/sdb2/partition":     "2\n",
		"sys/devices/virtual/block/dm-0/dev": "",
	} {
		s.write(t, path, text)
	}
	s.link(t, "../devices/sda", "sys/block/sda")
	s.link(t, "../devices/sdb", "sys/block/sdb")
	s.link(t, "../../devices/sdb/sdb2", "sys/dev/block/8:18")
	s.disk(t, "sda", &agentv1.FirstBoot{Token: &agentv1.BootToken{MachineId: "old", Endpoint: p.endpoint, CaCertificate: p.ca}})
	s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Data: []byte(data)})
	return s
}

func (s *system) write(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *system) link(t *testing.T, to, path string) {
	t.Helper()
	path = filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(to), path); err != nil {
		t.Fatal(err)
	}
}

// disk writes a disk with that first-boot area; nil: without one.
func (s *system) disk(t *testing.T, name string, first *agentv1.FirstBoot) {
	t.Helper()
	content := make([]byte, diskSize)
	if first != nil {
		area, err := install.EncodeFirstBoot(first)
		if err != nil {
			t.Fatal(err)
		}
		copy(content[install.FirstBootOffset(diskSize):], area)
	}
	s.write(t, "dev/"+name, string(content))
}

func (s *system) read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (s *system) run(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return s.runUntil(ctx)
}

func (s *system) runUntil(ctx context.Context) error {
	logger := slog.New(slog.DiscardHandler)
	if s.log != nil {
		logger = slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return Run(ctx, Options{
		Root: s.root, Version: "v1", Logger: logger, programLimit: s.limit,
		Reload: func(context.Context) error {
			s.reloads++
			return nil
		},
	})
}

// TestWatchedSystemGoesOnCalling on every boot, until the control plane does not want it any more.
func TestWatchedSystemGoesOnCalling(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 1)
	s := newSystem(t, p, "")
	key := &agentv1.SshHostKey{Public: "ssh-ed25519 BBBB", Private: []byte("brought")}
	s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, Data: []byte("#!/bin/sh\necho ran >>runs\n"), SshHostKey: key})
	ctx, powerOff := context.WithCancel(t.Context())
	p.wanted, p.heard = math.MaxInt, func(n int) {
		if n == 10 {
			powerOff()
		}
	}
	if err := s.runUntil(ctx); err != nil || p.calls() < 10 {
		t.Fatalf("it ended with %v after %d calls", err, p.calls())
	}

	s.write(t, hostKeyFile, "a key that somebody has made since")
	s.write(t, "proc/sys/kernel/random/boot_id", "boot-2\n")
	p.mu.Lock() // the call at which the power was cut may not have ended
	p.reports, p.refuse, p.wanted, p.heard = nil, 2, 3, nil
	p.mu.Unlock()
	for range 2 { // nobody waits for it the second time
		if err := s.run(t); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.reports); n != 2+3+1 || p.reports[n-1].GetBootId() != "boot-2" {
		t.Errorf("%d calls: %v", n, p.reports)
	}
	if got := s.read(t, "runs"); got != "ran\n" {
		t.Errorf("the first-boot program has run: %q", got)
	}
	if got := s.read(t, hostKeyFile); got != "a key that somebody has made since" {
		t.Errorf("the host key is %q", got)
	}
}

// TestHostKeyThatWasTakenOverHalfWay: whatever had been done when the power was cut, or the agent
// was killed, the next run ends with both files, the key in the report, and an sshd that knows it.
func TestHostKeyThatWasTakenOverHalfWay(t *testing.T) {
	t.Parallel()
	const private, public = "brought", "ssh-ed25519 BBBB"
	for name, there := range map[string]map[string]string{
		"nothing":              {},
		"the public file":      {hostKeyFile + ".pub": public + "\n"},
		"the private file":     {hostKeyFile: private},
		"half a file":          {hostKeyFile: private, hostKeyFile + ".pub.new": "ssh-"},
		"both, sshd not told":  {hostKeyFile: private, hostKeyFile + ".pub": public + "\n"},
		"the system's is gone": {hostKeyFile: "", hostKeyFile + ".pub": ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t, 0)
			s := newSystem(t, p, "")
			s.disk(t, "sdb", &agentv1.FirstBoot{Token: s.token, SshHostKey: &agentv1.SshHostKey{Public: public, Private: []byte(private)}})
			for path, text := range there {
				s.write(t, path, text)
			}
			if err := s.run(t); err != nil {
				t.Fatal(err)
			}
			if got := s.read(t, hostKeyFile) + " " + s.read(t, hostKeyFile+".pub"); got != private+" "+public+"\n" {
				t.Errorf("the files are %q", got)
			}
			if left, err := filepath.Glob(filepath.Join(s.root, "etc/ssh/*.new")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if p.calls() != 1 || !slices.Equal(p.reports[0].GetHostKeys(), []string{public}) || s.reloads != 1 {
				t.Errorf("reports %v; sshd was told %d times", p.reports, s.reloads)
			}
		})
	}
}

func TestReportsUntilAcknowledgedAndNeverAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 2)
	s := newSystem(t, p, "key: value\n")
	for range 2 {
		if err := s.run(t); err != nil {
			t.Fatal(err)
		}
	}
	want := &agentv1.ReportUpRequest{
		MachineId: "m", InstallGeneration: 3, Attempt: 2, Secret: s.token.GetSecret(), BootId: "boot-1",
		HostKeys: []string{"ssh-ed25519 AAAA root@debian"},
	}
	if diff := cmp.Diff([]*agentv1.ReportUpRequest{want, want, want}, p.reports, protocmp.Transform()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	if got := s.read(t, dataFile); got != "key: value\n" {
		t.Errorf("the data is %q", got)
	}
	info, err := os.Stat(filepath.Join(s.root, dataFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the data can be read by others: %v %v", info.Mode(), err)
	}
}

func TestProgramRunsOnce(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	count := filepath.Join(t.TempDir(), "count")
	s := newSystem(t, p, "#!/bin/sh\necho ran >>"+count+"\necho said\nexit 3\n")
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	// As if the system had been restarted before the control plane acknowledged.
	if err := os.Remove(filepath.Join(s.root, doneFile)); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	runs, err := os.ReadFile(count)
	if err != nil || string(runs) != "ran\n" {
		t.Errorf("the program ran %q, %v", runs, err)
	}
	if got := s.read(t, dataFile+".log"); got != "said\n" {
		t.Errorf("its output is %q", got)
	}
	if len(p.reports) != 2 {
		t.Errorf("%d reports: a program that failed must not hold the report back", len(p.reports))
	}
}

// fifo is what a program writes to when it goes on, and the test reads from.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAProgramThatIsCutShortIsNotStartedAgain: one that restarts the machine would do so on every
// boot.
func TestAProgramThatIsCutShortIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	going := fifo(t)
	s := newSystem(t, p, "#!/bin/sh\necho ran >>runs\necho >"+going+"\nexec sleep 1000\n")
	ctx, restart := context.WithCancel(t.Context())
	defer restart()
	go func() {
		_, _ = os.ReadFile(going)
		restart()
	}()
	if err := s.runUntil(ctx); !errors.Is(err, context.Canceled) || p.calls() != 0 {
		t.Fatalf("it ended with %v after %d calls", err, p.calls())
	}
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	if got := s.read(t, "runs"); got != "ran\n" || p.calls() != 1 {
		t.Errorf("the program was started: %q; %d calls", got, p.calls())
	}
}

// TestAProgramThatHangsIsKilled with what it has started, and does not hold back the report.
func TestAProgramThatHangsIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	held := fifo(t)
	file, err := os.OpenFile(held, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	s := newSystem(t, p, "#!/bin/sh\nexec >"+held+"\nsleep 1000\n")
	s.limit = time.Second
	if err := s.run(t); err != nil || p.calls() != 1 {
		t.Fatalf("it ended with %v after %d calls", err, p.calls())
	}
	if err := file.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := file.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("what the program has started goes on: %d, %v", n, err)
	}
}

func TestWithoutAnAreaThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.disk(t, "sda", nil)
	s.disk(t, "sdb", nil)
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	if len(p.reports) != 0 {
		t.Error("something was reported")
	}
}

// TestOnlyTheDisksOfTheRootAreRead: the area of a recycled disk, of a USB stick or of a LUN has a
// program of somebody else.
func TestOnlyTheDisksOfTheRootAreRead(t *testing.T) {
	t.Parallel()
	for name, mounts := range map[string]string{
		"a disk":     "22 1 8:18 / / rw - ext4 /dev/sdb2 rw\n",
		"no disk":    "22 1 0:31 / / rw - overlay overlay rw,lowerdir=/media/root-ro\n",
		"no mounts":  "",
		"a ZFS pool": "22 1 0:31 / / rw - zfs sda rw\n",
	} {
		p := newPlane(t, 0)
		s := newSystem(t, p, "")
		s.write(t, "proc/self/mountinfo", mounts)
		s.disk(t, "sda", &agentv1.FirstBoot{Token: s.token, Data: []byte("#!/bin/sh\necho ran >>runs\n")})
		s.disk(t, "sdb", nil)
		err := s.run(t)
		if _, there := os.Stat(filepath.Join(s.root, "runs")); err != nil || p.calls() != 0 || there == nil {
			t.Errorf("the root is on %s: the program of another disk was run, or %d calls were made: %v", name, p.calls(), err)
		}
	}
}

// TestRootOnBtrfs: its number is of no block device.
func TestRootOnBtrfs(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.write(t, "proc/self/mountinfo", "22 1 0:31 /@ / rw,relatime shared:1 - btrfs /dev/disk/root rw,subvol=/@\n")
	s.write(t, "dev/sdb2", "")
	s.link(t, "../sdb2", "dev/disk/root")
	s.link(t, "../../devices/sdb/sdb2", "sys/class/block/sdb2")
	if err := s.run(t); err != nil || p.calls() != 1 || p.reports[0].GetMachineId() != "m" {
		t.Errorf("reports: %v, %v", p.reports, err)
	}
}

// TestDamagedAreaIsNoArea holds for whatever foreign bytes lie where an area would.
func TestDamagedAreaIsNoArea(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.disk(t, "sda", nil)
	path := filepath.Join(s.root, "dev/sdb")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[install.FirstBootOffset(diskSize)+60] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t); err != nil || len(p.reports) != 0 {
		t.Errorf("%v, %d reports", err, len(p.reports))
	}
}

func TestDiskWithoutAnswer(t *testing.T) {
	t.Parallel()
	p := newPlane(t, 0)
	s := newSystem(t, p, "")
	s.disk(t, "sda", nil)
	if err := os.Remove(filepath.Join(s.root, "dev/sdb")); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t); err == nil || !strings.Contains(err.Error(), "sdb") {
		t.Errorf("got %v: the disk of the root file system could not be read", err)
	}
}

func TestRootDisksOfARAID(t *testing.T) {
	t.Parallel()
	s := newSystem(t, newPlane(t, 0), "")
	s.write(t, "proc/self/mountinfo", "22 1 253:0 / / rw - ext4 /dev/mapper/root rw\n")
	s.link(t, "../../devices/virtual/block/dm-0", "sys/dev/block/253:0")
	s.write(t, "sys/devices/virtual/block/md0/dev", "")
	s.link(t, "../../md0", "sys/devices/virtual/block/dm-0/slaves/md0")
	s.write(t, "sys/devices/sda/sda2/partition", "2\n")
	s.link(t, "../../../../sda/sda2", "sys/devices/virtual/block/md0/slaves/sda2")
	s.link(t, "../../../../sdb/sdb2", "sys/devices/virtual/block/md0/slaves/sdb2")
	if got := rootDisks(s.root); !slices.Equal(got, []string{"sda", "sdb"}) {
		t.Errorf("got %v", got)
	}
}
