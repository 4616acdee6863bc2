package cli_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/token"
)

// TestTokens makes, lists and revokes tokens, for a control plane that has never run and listens to
// other hosts.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "ironherd.yaml")
	content := "dir: state\ninitializer: {agent_executable: /dev/null}\nagent_api: {endpoint: 'herd.example:8443'}\noperator_api: {listen: '0.0.0.0:7480'}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, "config", "check", file); r.code != 2 || !strings.Contains(r.stderr, "there is no token that counts: make one with `ironherd token create NAME --role ROLE`") {
		t.Errorf("before there is one: %d, %q", r.code, r.stderr)
	}
	if r := run(t, nil, "token", "list", "--config", file); r.code != 0 || r.stdout != "No tokens.\n" {
		t.Errorf("none: %d, %q", r.code, r.stdout+r.stderr)
	}
	made := run(t, nil, "token", "create", "ada", "--role", "operator", "--days", "1", "--config", file)
	text := strings.TrimSpace(made.stdout)
	if made.code != 0 || !strings.HasPrefix(text, "ironherd_") || strings.Contains(made.stderr, text) || !strings.Contains(made.stderr, "token ada has the role operator and counts until 2") {
		t.Fatalf("%d, %q, %q", made.code, made.stdout, made.stderr)
	}
	stored := filepath.Join(dir, "state", "operator-tokens.yaml")
	if !strings.Contains(made.stderr, ", for a control plane that reads "+stored+"; it is not shown again\n") {
		t.Errorf("where it counts: %q", made.stderr)
	}
	tokens, err := token.Open(stored, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok, err := tokens.Find(text); err != nil || !ok || got.Name != "ada" || got.Role != token.Operator {
		t.Errorf("found %+v, %v, %v", got, ok, err)
	}
	if r := run(t, nil, "config", "check", file); r.code != 0 {
		t.Errorf("with a token: %d, %q", r.code, r.stderr)
	}
	for _, args := range []string{"token list", "token list -o json", "token list -o yaml"} {
		r := run(t, nil, append(strings.Fields(args), "--config", file)...)
		if strings.HasSuffix(args, "json") && !json.Valid([]byte(r.stdout)) {
			t.Errorf("%s is no JSON: %s", args, r.stdout)
		}
		if r.code != 0 || !strings.Contains(r.stdout, "ada") || !strings.Contains(r.stdout, "operator") || strings.Contains(r.stdout, text) || strings.Contains(r.stdout, "sha256") {
			t.Errorf("%s: %d, %q", args, r.code, r.stdout+r.stderr)
		}
	}
	if r := run(t, nil, "token", "create", "ada", "--role", "viewer", "--config", file); r.code != 5 || r.stdout != "" {
		t.Errorf("a name that is taken: %d, %q", r.code, r.stdout+r.stderr)
	}
	if r := run(t, nil, "token", "revoke", "ada", "--config", file, "-o", "json"); r.code != 0 || r.stdout != "{\n  \"name\": \"ada\"\n}\n" {
		t.Errorf("%d, %q, %q", r.code, r.stdout, r.stderr)
	}
	if r := run(t, nil, "token", "revoke", "ada", "--config", file); r.code != 3 {
		t.Errorf("twice: %d, %q", r.code, r.stderr)
	}
	run(t, nil, "token", "create", "bob", "--role", "viewer", "--config", file)
	if r := run(t, nil, "token", "revoke", "bob", "--config", file); r.code != 0 || r.stdout != "token bob does not count any more, for a control plane that reads "+stored+"\n" {
		t.Errorf("%d, %q, %q", r.code, r.stdout, r.stderr)
	}
}

// TestTokensOfRoot: root is told when the control plane's user cannot read the file of tokens, and
// what lets it.
func TestTokensOfRoot(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can give a file to somebody else: run this test as root")
	}
	dir := t.TempDir()
	file, state, stored := filepath.Join(dir, "ironherd.yaml"), filepath.Join(dir, "state"), filepath.Join(dir, "tokens.yaml")
	content := "dir: state\ninitializer: {agent_executable: /dev/null}\nagent_api: {endpoint: 'herd.example:8443'}\noperator_api: {tokens_file: tokens.yaml}\n"
	if err := errors.Join(os.WriteFile(file, []byte(content), 0o600), os.Mkdir(state, 0o700), os.Chown(state, 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	command := "chown 4242 " + stored + " && chmod 600 " + stored
	want := "a control plane that runs as the owner of " + state + " cannot read " + stored + " until `" + command + "`"
	for _, args := range []string{"token create ada --role viewer", "token create bob --role viewer", "token revoke bob"} {
		if r := run(t, nil, append(strings.Fields(args), "--config", file)...); r.code != 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %d, %q", args, r.code, r.stderr)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range []string{"token create bob --role viewer", "token revoke bob"} {
		if r := run(t, nil, append(strings.Fields(args), "--config", file)...); r.code != 0 || strings.Contains(r.stderr, "cannot read") {
			t.Errorf("%s, when it may read the file: %d, %q", args, r.code, r.stderr)
		}
	}
	info, err := os.Stat(stored)
	if err != nil {
		t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 4242 || info.Mode() != 0o600 {
		t.Errorf("mode %v, %+v", info.Mode(), owner)
	}
	for _, of := range []struct {
		user, group int
		mode        os.FileMode
	}{{1, 1, 0o600}, {0, 4343, 0o640}} { // whoever reads it goes on doing so
		if err := errors.Join(os.Chown(stored, of.user, of.group), os.Chmod(stored, of.mode)); err != nil {
			t.Fatal(err)
		}
		if r := run(t, nil, "token", "create", "of-"+strconv.Itoa(of.group), "--role", "viewer", "--config", file); r.code != 0 || strings.Contains(r.stderr, "chown") {
			t.Errorf("%+v: %d, %q", of, r.code, r.stderr)
		}
	}
}

// TestPinnedAuthority calls over TLS: the authority of --ca-file counts, and no other.
func TestPinnedAuthority(t *testing.T) {
	t.Parallel()
	_, handler := fleetv1connect.NewFleetServiceHandler(&fakeFleet{})
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	dir := t.TempDir()
	write := func(name string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pinned := write("right.crt", server.Certificate().Raw)
	if r := run(t, nil, "provider", "list", "--server", server.URL, "--ca-file", pinned); r.code != 0 {
		t.Errorf("its own authority: %d, %q", r.code, r.stderr)
	}
	if r := run(t, []string{"IRONHERD_CA_FILE=" + pinned, "IRONHERD_SERVER=" + server.URL}, "provider", "list"); r.code != 0 {
		t.Errorf("from the environment: %d, %q", r.code, r.stderr)
	}
	want := "ironherd: the control plane at " + server.URL + " has no certificate of an authority that is trusted here: name its operator-ca.crt with --ca-file"
	if r := run(t, nil, "provider", "list", "--server", server.URL); r.code != 4 || !strings.HasPrefix(r.stderr, want) {
		t.Errorf("without a pin: %d, %q", r.code, r.stderr)
	}
	other := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	if r := run(t, nil, "provider", "list", "--server", other, "--ca-file", pinned); r.code != 4 || !strings.Contains(r.stderr, "is not for localhost: use a name that it has") {
		t.Errorf("a name that it has not: %d, %q", r.code, r.stderr)
	}
}

// TestCertificateOutOfTime: a certificate that has expired, or is not valid yet, is not taken for
// one of a wrong authority.
func TestCertificateOutOfTime(t *testing.T) {
	t.Parallel()
	_, handler := fleetv1connect.NewFleetServiceHandler(&fakeFleet{})
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, begins := range map[string]time.Time{
		" has expired at 2020-01-03 00:00:00 UTC, and the clock of this host says 20":      time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		" is not valid before 2120-01-01 00:00:00 UTC, and the clock of this host says 20": time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: begins, NotAfter: begins.AddDate(0, 0, 2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(handler)
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}
		server.StartTLS()
		t.Cleanup(server.Close)
		t.Cleanup(server.CloseClientConnections)
		pinned := filepath.Join(t.TempDir(), "operator-ca.crt")
		if err := os.WriteFile(pinned, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		r := run(t, nil, "provider", "list", "--server", server.URL, "--ca-file", pinned)
		if r.code != 4 || !strings.HasPrefix(r.stderr, "ironherd: the certificate of the control plane at "+server.URL+want) {
			t.Errorf("got %d, %q, want %q", r.code, r.stderr, want)
		}
	}
}

// TestTokensAreNotRedirected has a server that sends callers elsewhere.
func TestTokensAreNotRedirected(t *testing.T) {
	t.Parallel()
	asked := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	if r := run(t, nil, "provider", "list", "--server", server.URL); r.code == 0 || asked {
		t.Errorf("followed: %v, %d %q", asked, r.code, r.stderr)
	}
}
