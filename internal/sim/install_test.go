package sim_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/sim"
)

// plane is the part of a control plane that installed systems report to. It refuses each the first
// two times.
type plane struct {
	agentv1.UnimplementedAgentCallbackServer
	address string
	ca      []byte

	mu      sync.Mutex
	up      []*agentv1.ReportUpRequest
	refused int
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{address: listener.Addr().String(), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	agentv1.RegisterAgentCallbackServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return p
}

// ReportUp notes who is up.
func (p *plane) ReportUp(_ context.Context, request *agentv1.ReportUpRequest) (*agentv1.ReportUpResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused < 2 {
		p.refused++
		return nil, status.Error(codes.PermissionDenied, "not yet")
	}
	p.up = append(p.up, request)
	return &agentv1.ReportUpResponse{}, nil
}

func (p *plane) heard() []*agentv1.ReportUpRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.up)
}

func (p *plane) refusals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// order is what the playing agent is told to install.
func (p *plane) order(t *testing.T, image sim.Image) string {
	t.Helper()
	text, err := proto.Marshal(&agentv1.FirstBoot{
		Token: &agentv1.BootToken{
			MachineId: "machine-1", InstallGeneration: 1, Attempt: 1, Secret: []byte("secret"), Endpoint: p.address, CaCertificate: p.ca,
		},
		Image: &agentv1.Image{Url: image.URL, Digest: image.Digest, Size: image.Size},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// install writes an image to the first disk, well or in one of the ways in which that can go wrong.
func install(ctx context.Context, root, how string, order io.Reader) error {
	text, err := io.ReadAll(order)
	if err != nil {
		return err
	}
	first := new(agentv1.FirstBoot)
	if err := proto.Unmarshal(text, first); err != nil {
		return err
	}
	content, err := fetch(ctx, first.GetImage().GetUrl())
	if err != nil {
		return err
	}
	disks, err := filepath.Glob(filepath.Join(root, "dev/*"))
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(disks[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	switch how {
	case "flipped":
		content[1<<20] ^= 1
	case "short":
		content = content[:len(content)-512]
	case "unknown":
		sum := sha256.Sum256(content[:1<<20])
		content, first.Image.Size, first.Image.Digest = content[:1<<20], 1<<20, fmt.Sprintf("sha256:%x", sum)
	}
	if _, err := disk.WriteAt(content, 0); err != nil || how == "nothing" {
		return err
	}
	payload, err := proto.Marshal(first)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(payload)
	area := binary.BigEndian.AppendUint32([]byte("IRONHERD-BOOT-1\n"), uint32(len(payload)))
	area = append(append(area, sum[:]...), payload...)
	if how == "damaged-area" {
		area[len(area)-1] ^= 1
	}
	info, err := disk.Stat()
	if err != nil {
		return err
	}
	_, err = disk.WriteAt(area, (info.Size()-2<<20)/(1<<20)*(1<<20))
	return err
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	packed, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	reader, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return io.ReadAll(reader)
}
