package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/ironherd/ironherd/test/freeport"
	"github.com/ironherd/ironherd/test/process"
)

// adminToken is the token of a member of system:masters.
const adminToken = "admin"

// User is somebody with a token of their own, beside the administrator.
type User struct {
	Name   string
	Groups []string
}

// Cluster is one etcd and one API server, or more. Its methods are not safe for concurrent use.
type Cluster struct {
	*APIServer // the first one

	dir      string
	programs string
	etcdPort int
	etcd     *process.Process
	others   []*APIServer
}

// Start starts both and returns when the API server says that it is ready. Both keep their files in
// dir, which should be the test's own. A user's token is the user's name.
func Start(ctx context.Context, dir string, users ...User) (*Cluster, error) {
	programs, err := Build(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c := &Cluster{dir: dir, programs: programs, etcdPort: ports[0]}
	if err := WriteFiles(dir, users...); err != nil {
		return nil, err
	}
	if c.APIServer, err = NewAPIServer(ctx, dir, dir, client); err != nil {
		return nil, err
	}
	c.etcd, err = process.Start(ctx, filepath.Join(programs, etcdProgram), "--name=etcd", "--data-dir="+filepath.Join(dir, "etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=etcd="+peer, "--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Another starts one more API server over the same etcd, with the same users. It ends with the
// cluster. name is that of a directory for its files.
func (c *Cluster) Another(ctx context.Context, name string) (*APIServer, error) {
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	s, err := NewAPIServer(ctx, c.dir, dir, "http://"+c.EtcdEndpoint())
	if err != nil {
		return nil, err
	}
	c.others = append(c.others, s)
	return s, s.StartAPIServer(ctx)
}

// APIServer is one API server, running or not. Its methods are not safe for concurrent use.
type APIServer struct {
	// Etcd is the client URLs of etcd, separated by commas.
	Etcd string

	shared   string // directory of the files that all API servers of a cluster have in common
	dir      string
	programs string
	port     int
	running  *process.Process
	audit    audit
}

// NewAPIServer prepares an API server with a port of its own, which stays the same. shared is a
// directory that WriteFiles has filled; dir is this one's own.
func NewAPIServer(ctx context.Context, shared, dir, etcd string) (*APIServer, error) {
	programs, err := Build(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	return &APIServer{Etcd: etcd, shared: shared, dir: dir, programs: programs, port: ports[0]}, nil
}

// WriteFiles makes the files that the API servers of a cluster have in common.
func WriteFiles(dir string, users ...User) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("key of the service accounts: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("key of the service accounts: %w", err)
	}
	tokens := adminToken + ",admin,admin,system:masters\n"
	for _, u := range users {
		tokens += fmt.Sprintf("%s,%s,%s,%q\n", u.Name, u.Name, u.Name, strings.Join(u.Groups, ","))
	}
	files := map[string]string{
		"accounts.key": string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})),
		"tokens.csv":   tokens,
		"audit.yaml":   "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("prepare the API server: %w", err)
		}
	}
	return nil
}

// Close kills both. Their files stay.
func (c *Cluster) Close() {
	for _, s := range append(c.others, c.APIServer) {
		s.KillAPIServer()
	}
	c.etcd.Kill()
}

// StartAPIServer starts the API server, at the same address each time, and returns when it says
// that it is ready.
func (s *APIServer) StartAPIServer(ctx context.Context) (err error) {
	s.running, err = process.Start(ctx, filepath.Join(s.programs, apiserverProgram),
		"--etcd-servers="+s.Etcd, fmt.Sprintf("--secure-port=%d", s.port),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--cert-dir="+filepath.Join(s.dir, "certificates"), "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+filepath.Join(s.shared, "accounts.key"),
		"--service-account-key-file="+filepath.Join(s.shared, "accounts.key"),
		"--authorization-mode=RBAC", "--token-auth-file="+filepath.Join(s.shared, "tokens.csv"),
		"--audit-policy-file="+filepath.Join(s.shared, "audit.yaml"), "--audit-log-path="+s.auditPath(), "--audit-log-mode=blocking",
		"--disable-admission-plugins=ServiceAccount", // nobody runs its controller here
		"--v=0")
	if err != nil {
		return err
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err = s.ready(ctx); err == nil {
			return nil
		}
		select {
		case <-s.running.Ended():
			return fmt.Errorf("the API server ended: %s", s.running.Stderr())
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w: %s", errors.Join(context.Cause(ctx), err), s.running.Stderr())
		case <-ticker.C:
		}
	}
}

// ready asks the API server once.
func (s *APIServer) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.Config(adminToken)) // fails while there is no certificate yet
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config(adminToken).Host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", response.Status)
	}
	return nil
}

// KillAPIServer kills the API server with SIGKILL, and returns when the process is gone.
func (s *APIServer) KillAPIServer() {
	if s.running != nil {
		s.running.Kill()
	}
}

// PauseAPIServer stops the process without ending it: it takes connections and does not answer.
func (s *APIServer) PauseAPIServer() error { return s.running.Signal(syscall.SIGSTOP) }

// ResumeAPIServer lets it go on.
func (s *APIServer) ResumeAPIServer() error { return s.running.Signal(syscall.SIGCONT) }

// Address is where it listens.
func (s *APIServer) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// Config returns how to reach the API server with a token. An empty token is the administrator's.
func (s *APIServer) Config(token string) *rest.Config {
	if token == "" {
		token = adminToken
	}
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.dir, "certificates", "apiserver.crt")},
	}
}

// Kubeconfig writes a kubeconfig file of the administrator and returns its path.
func (s *APIServer) Kubeconfig() (string, error) { return s.KubeconfigOf(adminToken) }

// KubeconfigOf is Kubeconfig for whoever has the token.
func (s *APIServer) KubeconfigOf(token string) (string, error) {
	config := s.Config(token)
	file := api.NewConfig()
	file.Clusters["cluster"] = &api.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	file.AuthInfos["user"] = &api.AuthInfo{Token: config.BearerToken}
	file.Contexts["user"] = &api.Context{Cluster: "cluster", AuthInfo: "user"}
	file.CurrentContext = "user"
	path := filepath.Join(s.dir, "kubeconfig-"+token)
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}

// EtcdEndpoint is the address of etcd's client API.
func (c *Cluster) EtcdEndpoint() string { return fmt.Sprintf("127.0.0.1:%d", c.etcdPort) }

// freePorts returns ports that stay free while their servers are down.
func freePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = freeport.Find(ctx); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
