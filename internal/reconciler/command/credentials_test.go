package command_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/reconciler/election"
)

// TestRejectedCredentials: a leader that its API server does not let in says so, to whoever checks
// the configuration, too. Clients have credentials of their own, and are let to the API server.
func TestRejectedCredentials(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) }))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.Replace(kubeconfig, "http://127.0.0.1:9", server.URL, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProgram(t)
	p.env = append(p.env, "IRONHERD_RECONCILER_KUBECONFIG="+file, "IRONHERD_RECONCILER_LISTEN=127.0.0.1:0", "IRONHERD_RECONCILER_ELECTION_TTL=2s")
	const rejected = "rejects our credentials"
	_, said := p.run(7, "config", "check", "--connect")
	contains(t, "config check --connect", said, rejected)
	p.put(p.layout().Status(), `{"state":"working","version":"v0.1.0","minimumCompatible":"v0.1.0"}`)
	ctx, cancel := context.WithCancel(t.Context())
	_, stderr, code := p.start(ctx, "run")
	await(t, "it leads, and tells the candidates", func() bool {
		leader, _, err := election.Leader(t.Context(), shared.Client(t), p.layout().Election())
		return err == nil && strings.Contains(leader.Fault, rejected)
	})
	address := listens(stderr.String())
	if status, body := get(t, address, "/healthz"); status != http.StatusServiceUnavailable || !strings.Contains(body, rejected) {
		t.Errorf("its health: %d %s", status, body)
	}
	if status, body := get(t, address, "/servez"); status != http.StatusOK {
		t.Errorf("clients are kept away: %d %s", status, body)
	}
	cancel()
	code()
}

// TestCheckWithoutOneMember: etcd works without one of its members, so that is no fault of the
// configuration. It is told all the same.
func TestCheckWithoutOneMember(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(emptyServer(t, "uid")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProgram(t)
	p.env = append(p.env, "IRONHERD_RECONCILER_KUBECONFIG="+file)
	_, said := p.run(0, "config", "check", "--connect", "--etcd-endpoints", "http://127.0.0.1:9,"+shared.Endpoints()[0])
	contains(t, "config check --connect", said, "not every endpoint does: http://127.0.0.1:9: nobody listens there", "the configuration is good")
}

// TestCheckOfTwoClusters: a node that was given the etcd of another cluster is told so before its
// service begins.
func TestCheckOfTwoClusters(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(emptyServer(t, "uid-of-b")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newProgram(t)
	p.env = append(p.env, "IRONHERD_RECONCILER_KUBECONFIG="+file)
	p.run(0, "config", "check", "--connect") // the keys are of no cluster yet
	p.put(p.layout().Cluster(), "uid-of-a")
	_, said := p.run(2, "config", "check", "--connect")
	contains(t, "config check --connect", said, "two Kubernetes clusters", "uid-of-a", "uid-of-b", p.layout().Cluster())
	p.put(p.layout().Cluster(), "uid-of-b")
	p.run(0, "config", "check", "--connect")
	if err := os.WriteFile(file, []byte(emptyServer(t, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, said = p.run(7, "config", "check", "--connect") // nothing was compared
	contains(t, "config check --connect", said, "does not tell which cluster it is of")
}

// emptyServer returns a kubeconfig of what answers as an API server that has nothing but the
// namespace kube-system with a UID; empty: not even that.
func emptyServer(t *testing.T, uid string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if uid != "" && r.URL.Path == "/api/v1/namespaces/kube-system" {
			_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kube-system","uid":"` + uid + `"}}`))
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not found","reason":"NotFound","code":404}`))
	}))
	t.Cleanup(server.Close)
	return strings.Replace(kubeconfig, "http://127.0.0.1:9", server.URL, 1)
}
