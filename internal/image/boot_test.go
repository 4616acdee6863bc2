package image_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/agent/install"
	"github.com/ironherd/ironherd/internal/image"
)

// needsRoot skips a test that cannot be run here. A CI must be able to.
func needsRoot(t *testing.T, programs ...string) {
	t.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "to be root")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program+" (make setup)")
		}
	}
	if len(missing) == 0 {
		return
	}
	if os.Getenv("CI") == "" {
		t.Skipf("this needs %s", strings.Join(missing, " and "))
	}
	t.Fatalf("this needs %s", strings.Join(missing, " and "))
}

// hostOptions build from the packages of this very host's release, from where this host has them.
func hostOptions(t *testing.T) image.Options {
	t.Helper()
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	suite := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(release)
	if suite == nil && os.Getenv("CI") == "" {
		t.Skip("this host is not of a release of Debian")
	} else if suite == nil {
		t.Fatal("this host is not of a release of Debian")
	}
	dir := t.TempDir()
	config, err := exec.CommandContext(t.Context(), "apt-config", "dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	var acquire bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(config))
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "Acquire::") && !strings.HasPrefix(line, "Acquire::Changelogs") {
			acquire.WriteString(line + "\n")
		}
	}
	o := image.Options{Suite: string(suite[1]), AptConfig: filepath.Join(dir, "apt.conf"), Log: func(line string) { t.Log(line) }}
	if err := os.WriteFile(o.AptConfig, acquire.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"} {
		if _, err := os.Stat(file); err == nil && o.Sources == "" {
			o.Sources = file
		}
	}
	o.Agent = filepath.Join(dir, "ironherd-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-tags=grpcnotrace,nethttpomithttp2", "-o", o.Agent, "../../cmd/ironherd-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+image.Architecture)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return o
}

// TestDebian makes an image twice, which must be the same, installs it with the agent's own code on
// a disk of 2 GiB, and boots that disk by BIOS and by UEFI until the system has said that it is up.
func TestDebian(t *testing.T) {
	t.Parallel()
	if os.Getenv("IRONHERD_TEST_VM") == "" {
		t.Skip("builds an image twice and boots it on virtual machines: make test-vm runs it")
	}
	needsRoot(t, "mmdebstrap", "qemu-system-x86_64", "nc", "apt-config")
	options := hostOptions(t)
	dir := t.TempDir()
	options.Timestamp = time.Now().Add(-48 * time.Hour)
	options.Output = filepath.Join(dir, "debian.raw.zst")
	manifest, err := image.Build(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	checkManifest(t, options.Output, manifest)

	t.Run("the same once more", func(t *testing.T) {
		t.Parallel()
		again := options
		again.Output = filepath.Join(dir, "again.raw")
		second, err := image.Build(t.Context(), again)
		if err != nil {
			t.Fatal(err)
		}
		if second.Digest != manifest.Digest {
			t.Errorf("the same packages made %s and %s", manifest.Digest, second.Digest)
		}
	})
	for _, firmware := range []string{"BIOS", "UEFI"} {
		t.Run(firmware, func(t *testing.T) {
			t.Parallel()
			bootInstalled(t, firmware, options.Output, manifest)
		})
	}
}

func checkManifest(t *testing.T, path string, m image.Manifest) {
	t.Helper()
	text, err := os.ReadFile(strings.TrimSuffix(path, ".raw.zst") + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var stored image.Manifest
	if err := json.Unmarshal(text, &stored); err != nil || stored.Digest != m.Digest || len(stored.Packages) < 50 {
		t.Errorf("the manifest has the digest %s and %d packages: %v", stored.Digest, len(stored.Packages), err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".ironherd-image-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

const diskSize = 2 << 30

func bootInstalled(t *testing.T, firmware, path string, m image.Manifest) {
	t.Helper()
	p := newPlane(t)
	root := t.TempDir()
	disk := filepath.Join(root, "dev/vda")
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, diskSize); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(path))))
	defer server.Close()
	token := &agentv1.BootToken{
		MachineId: "m", InstallGeneration: 1, Attempt: 1, Secret: bytes.Repeat([]byte("s"), 32), Endpoint: p.endpoint, CaCertificate: p.ca,
	}
	report := install.Run(t.Context(), &agentv1.InstallRequest{
		InstallGeneration: 1, Attempt: 1,
		Image:     &agentv1.Image{Url: server.URL + "/" + m.File, Digest: m.Digest, Compression: agentv1.Compression_COMPRESSION_ZSTD, Size: m.Size},
		RootDisk:  &agentv1.DiskSelector{Grow: true},
		BootToken: token, FirstBootData: []byte("#!/bin/sh\necho first boot data ran on $(cat /etc/hostname) >/dev/console\n"),
	}, install.Options{Root: root, MachineID: "m", Disks: []*agentv1.BlockDevice{{Name: "vda", SizeBytes: diskSize}}})
	if !report.GetOk() {
		t.Fatal(report.GetError())
	}
	started := time.Now()
	console, ended := boot(t, firmware, disk, p.port)
	said := func() string {
		text, _ := os.ReadFile(console)
		return string(text)
	}
	select {
	case up := <-p.up:
		t.Logf("up after %s", time.Since(started).Round(time.Second))
		if up.GetMachineId() != "m" || !bytes.Equal(up.GetSecret(), token.GetSecret()) || len(up.GetHostKeys()) == 0 || up.GetBootId() == "" {
			t.Errorf("it said %v", up)
		}
	case <-ended:
		t.Fatalf("QEMU has ended:\n%s", tail(said()))
	case <-time.After(15 * time.Minute):
		t.Fatalf("the system did not come up:\n%s", tail(said()))
	}
	text := said()
	if !strings.Contains(text, "first boot data ran on debian") {
		t.Errorf("the first-boot data did not run:\n%s", tail(text))
	}
	if !regexp.MustCompile(`EXT4-fs \(vda3\): resized filesystem to \d+`).MatchString(text) {
		t.Errorf("the root file system did not grow:\n%s", tail(text))
	}
}

func tail(text string) string { return text[max(0, len(text)-4000):] }

// boot starts a machine from the disk, and returns the file that its console writes. The machine
// reaches that one port of this host, and nothing else.
func boot(t *testing.T, firmware, disk string, port int) (console string, ended <-chan struct{}) {
	t.Helper()
	dir := t.TempDir()
	console = filepath.Join(dir, "console")
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "768", "-smp", "2",
		"-device", "virtio-rng-pci", "-serial", "file:" + console, "-drive", "if=virtio,format=raw,cache=unsafe,file=" + disk,
		"-netdev", fmt.Sprintf("user,id=n,restrict=on,guestfwd=tcp:%s:%d-cmd:nc -N 127.0.0.1 %d", guestSees, port, port), "-device", "virtio-net-pci,netdev=n,romfile=",
	}
	if firmware == "UEFI" {
		variables := filepath.Join(dir, "variables.fd")
		template, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.fd")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(variables, template, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd", "-drive", "if=pflash,format=raw,unit=1,file="+variables)
	}
	// The thread that starts QEMU lives as long as QEMU: it is what the kernel watches to end it.
	stop, started, gone := make(chan struct{}), make(chan error, 1), make(chan struct{})
	cmd := exec.Command("qemu-system-x86_64", args...) //nolint:noctx // ended below
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	go func() {
		defer close(gone)
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		go func() {
			<-stop
			_ = cmd.Process.Kill()
		}()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		<-gone
	})
	return console, gone
}

// guestSees is the address of the control plane for the guest.
const guestSees = "10.0.2.100"

// plane is a control plane that only takes the word of installed systems.
type plane struct {
	agentv1.UnimplementedAgentCallbackServer
	endpoint string
	port     int
	ca       []byte
	up       chan *agentv1.ReportUpRequest
}

func (p *plane) ReportUp(_ context.Context, r *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	select {
	case p.up <- r:
	default:
	}
	return &agentv1.ReportUpResponse{}, nil
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(10, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.ParseIP(guestSees)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	p := &plane{
		endpoint: fmt.Sprintf("%s:%d", guestSees, port), port: port, up: make(chan *agentv1.ReportUpRequest, 1),
		ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	agentv1.RegisterAgentCallbackServer(server, p)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return p
}
