package test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// reconcilerUser is whom the page has the reconciler be. In tests its token is its name.
const reconcilerUser = "ironherd:reconciler"

// kubectl applies a file of the source to this node's own API server, as an administrator.
func (h *host) kubectl(ctx context.Context, words []string) {
	h.t.Helper()
	const want = "kubectl --kubeconfig /etc/kubernetes/admin.conf --server https://127.0.0.1:6443 apply -f "
	file, ok := strings.CutPrefix(strings.Join(words, " "), want)
	if !ok {
		h.t.Fatalf("the page has a command that this test cannot run: %s", words)
	}
	config := h.server.Config("") // has the port that 6443 stands for
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		h.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	for document := range strings.SplitSeq(read(h.t, "../"+file), "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			h.t.Fatal(err)
		}
		address := config.Host + "/apis/rbac.authorization.k8s.io/v1/" + strings.ToLower(object.Kind) + "s/" + object.Metadata.Name + "?fieldManager=kubectl"
		request, err := http.NewRequestWithContext(ctx, http.MethodPatch, address, strings.NewReader(document))
		if err != nil {
			h.t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/apply-patch+yaml")
		answer, err := client.Do(request)
		if err != nil {
			h.t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body) // what there is is shown
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusCreated && answer.StatusCode != http.StatusOK {
			h.t.Fatalf("%s: %s: %s: %s", h.name, address, answer.Status, text)
		}
	}
}

// TestPageCertificate runs the commands of docs/ops/kubernetes.md that make the certificate of the
// reconciler's user, with an authority like kubeadm's, and reads the kubeconfig that stands beside
// them. An API server takes the common name for the user's name.
func TestPageCertificate(t *testing.T) {
	t.Parallel()
	page := read(t, "../docs/ops/kubernetes.md")
	_, text, _ := strings.Cut(page, "**The user** is `"+reconcilerUser+"`")
	block := regexp.MustCompile("(?s)```console\n(.*?)```").FindStringSubmatch(text)
	if block == nil {
		t.Fatal("the page has no commands")
	}
	commands, kubeconfig, found := strings.Cut(block[1], "# cat /etc/kubernetes/reconciler.conf\n")
	if !found {
		t.Fatalf("the page has no kubeconfig: %s", block[1])
	}
	dir := t.TempDir()
	here := strings.NewReplacer("/etc/kubernetes/pki", dir)
	authority := writeAuthority(t, dir)
	for line := range strings.Lines(commands) {
		command := exec.CommandContext(t.Context(), "bash", "-euc", here.Replace(strings.TrimPrefix(line, "# ")))
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	path := filepath.Join(dir, "reconciler.conf")
	if err := os.WriteFile(path, []byte(here.Replace(kubeconfig)), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rest.TransportFor(config); err != nil { // reads the files
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" || config.KeyFile != filepath.Join(dir, "reconciler.key") {
		t.Errorf("the kubeconfig leads to %s with %s", config.Host, config.KeyFile)
	}
	if info, err := os.Stat(config.KeyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
	der, more := pem.Decode([]byte(read(t, config.CertFile)))
	if der == nil || len(bytes.TrimSpace(more)) != 0 {
		t.Fatal("there is not one certificate")
	}
	certificate, err := x509.ParseCertificate(der.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if certificate.Subject.CommonName != reconcilerUser || len(certificate.Subject.Organization) != 0 {
		t.Errorf("the user is %s", certificate.Subject)
	}
	if !strings.Contains(read(t, "../deploy/kubernetes/reconciler.yaml"), "kind: User\n  name: "+certificate.Subject.CommonName+"\n") {
		t.Error("the rights are those of somebody else")
	}
}

// writeAuthority writes ca.crt and ca.key, as kubeadm does.
func writeAuthority(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca.crt": {Type: "CERTIFICATE", Bytes: der}, "ca.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}
