package resources_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
)

// TestAccess: what the roles allow and deny, asked with real tokens by real requests.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("shapes.yaml", everyShape)
	w.start(resources.Options{}).done()
	token, err := w.in(accounts, "shapes").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": "shapes"},
		"spec": map[string]any{"expirationSeconds": int64(600)},
	}}, metav1.CreateOptions{}, "token")
	if err != nil {
		t.Fatal(err)
	}
	account, _, _ := unstructured.NestedString(token.Object, "status", "token")

	const (
		volume = `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"access"},"spec":{"capacity":{"storage":"1Gi"},` +
			`"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`
		service = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"access"},"spec":{"ports":[{"port":1}]}}`
	)
	for _, c := range []struct {
		user, method, path, body string
		allowed                  bool
	}{
		{builtin.APIServer, "GET", "/api/v1/nodes/none/proxy/healthz", "", true},
		{builtin.APIServer, "GET", "/api/v1/nodes", "", false},
		{builtin.APIServer, "GET", "/api/v1/secrets", "", false},
		{"alice", "GET", "/api/v1/secrets", "", true},
		{"alice", "GET", "/metrics", "", true},
		{"alice", "DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/none", "", true},
		{builtin.Provisioner, "POST", "/api/v1/persistentvolumes?dryRun=All", volume, true},
		{builtin.Provisioner, "GET", "/apis/storage.k8s.io/v1/storageclasses?watch=1&timeoutSeconds=1", "", true},
		{builtin.Provisioner, "GET", "/api/v1/persistentvolumeclaims", "", true},
		{builtin.Provisioner, "DELETE", "/api/v1/namespaces/default/persistentvolumeclaims/none", "", false},
		{builtin.Provisioner, "GET", "/api/v1/secrets", "", false},
		{builtin.Provisioner, "DELETE", "/apis/storage.k8s.io/v1/storageclasses/local?dryRun=All", "", false},
		{builtin.Network, "GET", "/api/v1/services", "", true},
		{builtin.Network, "GET", "/apis/discovery.k8s.io/v1/endpointslices", "", true},
		{builtin.Network, "GET", "/apis/networking.k8s.io/v1/networkpolicies", "", true},
		{builtin.Network, "POST", "/api/v1/namespaces/default/services?dryRun=All", service, false},
		{builtin.Network, "GET", "/api/v1/configmaps", "", false},
		{"mallory", "GET", "/api/v1/services", "", false},
		{"mallory", "GET", "/api/v1/nodes/none/proxy/healthz", "", false},
		{account, "GET", "/api/v1/namespaces/shapes/configmaps", "", true},
		{account, "GET", "/api/v1/namespaces/default/configmaps", "", false},
		{account, "GET", "/api/v1/namespaces/shapes/secrets", "", false},
	} {
		if status := w.ask(c.user, c.method, c.path, c.body); (status != http.StatusForbidden) != c.allowed || status == http.StatusUnauthorized {
			t.Errorf("%.30s %s %s: %d, want allowed: %t", c.user, c.method, c.path, status, c.allowed)
		}
	}
}

// ask makes one request with a token.
func (w *world) ask(token, method, path, body string) int {
	w.Helper()
	config := w.cluster.Config(token)
	request, err := http.NewRequestWithContext(w.Context(), method, config.Host+path, bytes.NewBufferString(body))
	if err != nil {
		w.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.http(config).Do(request)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatal(err)
	}
	var status metav1.Status
	if response.StatusCode == http.StatusForbidden && (json.Unmarshal(text, &status) != nil || status.Reason != metav1.StatusReasonForbidden) {
		w.Errorf("%s %s: forbidden by something else: %s", method, path, text)
	}
	return response.StatusCode
}
