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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/ironherd/ironherd/test/process"
)

// adminToken is the token of a member of system:masters.
const adminToken = "admin"

// User is somebody with a token of their own, beside the administrator.
type User struct {
	Name   string
	Groups []string
}

// Cluster is one etcd and one API server. Its methods are not safe for concurrent use.
type Cluster struct {
	dir       string
	programs  string
	etcdPort  int
	port      int
	etcd      *process.Process
	apiserver *process.Process
	audit     audit
}

// Start starts both and returns when the API server says that it is ready. Both keep their files in
// dir, which should be the test's own. A user's token is the user's name.
func Start(ctx context.Context, dir string, users ...User) (*Cluster, error) {
	programs, err := Build(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, programs: programs, etcdPort: ports[0], port: ports[1]}
	if err := c.write(users); err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[2])
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

// write makes the files that the API server reads.
func (c *Cluster) write(users []User) error {
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
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("prepare the API server: %w", err)
		}
	}
	return nil
}

// StartAPIServer starts the API server, at the same address each time, and returns when it says
// that it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	c.apiserver, err = process.Start(ctx, filepath.Join(c.programs, apiserverProgram),
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.etcdPort), fmt.Sprintf("--secure-port=%d", c.port),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--cert-dir="+filepath.Join(c.dir, "certificates"), "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+filepath.Join(c.dir, "accounts.key"),
		"--service-account-key-file="+filepath.Join(c.dir, "accounts.key"),
		"--authorization-mode=RBAC", "--token-auth-file="+filepath.Join(c.dir, "tokens.csv"),
		"--audit-policy-file="+filepath.Join(c.dir, "audit.yaml"), "--audit-log-path="+c.auditPath(), "--audit-log-mode=blocking",
		"--disable-admission-plugins=ServiceAccount", // nobody runs its controller here
		"--v=0")
	if err != nil {
		return err
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err = c.ready(ctx); err == nil {
			return nil
		}
		select {
		case <-c.apiserver.Ended():
			return fmt.Errorf("the API server ended: %s", c.apiserver.Stderr())
		case <-ctx.Done():
			return fmt.Errorf("the API server is not ready: %w: %s", errors.Join(context.Cause(ctx), err), c.apiserver.Stderr())
		case <-ticker.C:
		}
	}
}

// ready asks the API server once.
func (c *Cluster) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.Config(adminToken)) // fails while there is no certificate yet
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Config(adminToken).Host+"/readyz", nil)
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
func (c *Cluster) KillAPIServer() { c.apiserver.Kill() }

// Close kills both. Their files stay.
func (c *Cluster) Close() {
	if c.apiserver != nil {
		c.apiserver.Kill()
	}
	c.etcd.Kill()
}

// Config returns how to reach the API server with a token. An empty token is the administrator's.
func (c *Cluster) Config(token string) *rest.Config {
	if token == "" {
		token = adminToken
	}
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", c.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(c.dir, "certificates", "apiserver.crt")},
	}
}

// Kubeconfig writes a kubeconfig file of the administrator and returns its path.
func (c *Cluster) Kubeconfig() (string, error) {
	config := c.Config(adminToken)
	file := api.NewConfig()
	file.Clusters["cluster"] = &api.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	file.AuthInfos["admin"] = &api.AuthInfo{Token: config.BearerToken}
	file.Contexts["admin"] = &api.Context{Cluster: "cluster", AuthInfo: "admin"}
	file.CurrentContext = "admin"
	path := filepath.Join(c.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig: %w", err)
	}
	return path, nil
}

// EtcdEndpoint is the address of etcd's client API.
func (c *Cluster) EtcdEndpoint() string { return fmt.Sprintf("127.0.0.1:%d", c.etcdPort) }

// freePorts returns ports that were free a moment ago.
func freePorts(ctx context.Context, n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = l.Close() }() // all at the end, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
