package resources_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
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
		event   = `{"apiVersion":"v1","kind":"Event","metadata":{"name":"access"},"involvedObject":{"namespace":"default"},"reason":"Access"}`
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
		{builtin.Network, "POST", "/api/v1/namespaces/default/events?dryRun=All", event, true},
		{"node-1", "GET", "/apis/discovery.k8s.io/v1/endpointslices", "", true}, // by its group
		{"node-1", "GET", "/api/v1/persistentvolumeclaims", "", false},
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

// granted is the upper bound of what each role grants, and the lower one too: verbs by resource.
// Whoever makes a role wider has to write it here, where it is read.
var granted = map[string]map[string]string{
	builtin.APIServer: {
		"nodes/checkpoint": "create delete get patch update", "nodes/configz": "create delete get patch update",
		"nodes/healthz": "create delete get patch update", "nodes/log": "create delete get patch update",
		"nodes/metrics": "create delete get patch update", "nodes/pods": "create delete get patch update",
		"nodes/proxy": "create delete get patch update", "nodes/spec": "create delete get patch update",
		"nodes/stats": "create delete get patch update",
	},
	builtin.Provisioner: {
		"events":                              "create get list patch update watch",
		"events.events.k8s.io":                "create get list patch update watch",
		"nodes":                               "get list watch",
		"persistentvolumeclaims":              "get list patch update watch",
		"persistentvolumeclaims/status":       "patch update",
		"persistentvolumes":                   "create delete get list patch update watch",
		"pods":                                "get list watch",
		"csidrivers.storage.k8s.io":           "get list watch",
		"csinodes.storage.k8s.io":             "get list watch",
		"csistoragecapacities.storage.k8s.io": "create delete get list patch update watch",
		"storageclasses.storage.k8s.io":       "get list watch",
		"volumeattachments.storage.k8s.io":    "get list watch",
	},
	builtin.Network: {
		"endpoints":                         "get list watch",
		"endpointslices.discovery.k8s.io":   "get list watch",
		"events":                            "create get list patch update watch",
		"events.events.k8s.io":              "create get list patch update watch",
		"namespaces":                        "get list watch",
		"networkpolicies.networking.k8s.io": "get list watch",
		"nodes":                             "get list watch",
		"pods":                              "get list watch",
		"services":                          "get list watch",
	},
}

// TestRolesGrantExactly: the API server's own authorizer is asked about the verbs of the API and
// every resource that it has, for the user and for the group of each role. Whoever has neither is
// granted nothing of it. TestRolesAreExactly holds the rest.
func TestRolesGrantExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(resources.Options{}).done()
	asked := w.everyResource()
	for _, subject := range []struct {
		user, group, role string
	}{
		{builtin.APIServer, "", builtin.APIServer},
		{"somebody", builtin.APIServer, ""},
		{builtin.Provisioner, "", builtin.Provisioner},
		{"node-1", builtin.Provisioner, builtin.Provisioner},
		{builtin.Network, "", builtin.Network},
		{"node-1", builtin.Network, builtin.Network},
		{builtin.Owners, "", ""}, // the owners are a group, and nobody by name
	} {
		got := w.allowed(subject.user, subject.group, asked)
		if diff := cmp.Diff(granted[subject.role], got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("user %s, group %q (-want +got):\n%s", subject.user, subject.group, diff)
		}
	}
	if got := w.allowed("anna", builtin.Owners, []string{"secrets", "clusterroles.rbac.authorization.k8s.io"}); len(got) != 2 ||
		!strings.Contains(got["secrets"], "deletecollection") || !strings.Contains(got["clusterroles.rbac.authorization.k8s.io"], "escalate") {
		t.Errorf("the owners: %v", got)
	}
}

// TestRolesAreExactly: the rules of every role, and who has it, as they are on the server, whole.
// The authorizer, which TestRolesGrantExactly asks, is not asked about what no discovery names:
// impersonation, signers, paths, single objects, verbs that somebody has made up. Whoever gives or
// takes anything has to write it into testdata/roles.yaml, where it is read.
func TestRolesAreExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(resources.Options{}).done()
	var got []map[string]any
	for _, r := range []schema.GroupVersionResource{clusterRoles, bindings, roles, roleBindings} {
		list, err := w.client.Resource(r).List(w.Context(), metav1.ListOptions{LabelSelector: object.Label})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			pinned := map[string]any{"name": o.GetName(), "labels": o.GetLabels()}
			for key, value := range o.Object {
				if key != "metadata" && key != "apiVersion" {
					pinned[key] = value
				}
			}
			got = append(got, pinned)
		}
	}
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/roles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(text), "\n")); diff != "" {
		t.Errorf("the roles are not those of testdata/roles.yaml (-want +got):\n%s\nall of them:\n%s", diff, text)
	}
}

// everyResource names every resource and subresource that the server has, and those of kubelets,
// which it asks its authorizer about in their name.
func (w *world) everyResource() []string {
	w.Helper()
	config := w.cluster.Config("")
	client, err := discovery.NewDiscoveryClientForConfigAndClient(quick(config), w.http(config))
	if err != nil {
		w.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResourcesWithContext(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	seen := map[string]bool{}
	for _, part := range []string{"checkpoint", "configz", "healthz", "log", "metrics", "pods", "proxy", "spec", "stats", "unknown"} {
		seen["nodes/"+part] = true
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			w.Fatal(err)
		}
		for _, r := range list.APIResources {
			name, part, _ := strings.Cut(r.Name, "/")
			if version.Group != "" {
				name += "." + version.Group
			}
			if part != "" {
				name += "/" + part
			}
			seen[name] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// allowed asks which verbs somebody is granted on resources, in every namespace.
func (w *world) allowed(user, group string, asked []string) map[string]string {
	w.Helper()
	reviews := w.client.Resource(schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"})
	verbs := []string{"bind", "create", "delete", "deletecollection", "escalate", "get", "impersonate", "list", "patch", "update", "use", "watch"}
	groups := []any{}
	if group != "" {
		groups = append(groups, group)
	}
	var (
		mu    sync.Mutex
		found = map[string][]string{}
		wait  errgroup.Group
	)
	wait.SetLimit(8)
	for _, resource := range asked {
		for _, verb := range verbs {
			wait.Go(func() error {
				name, part, _ := strings.Cut(resource, "/")
				name, apiGroup, _ := strings.Cut(name, ".")
				review, err := reviews.Create(w.Context(), &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
					"spec": map[string]any{"user": user, "groups": groups, "resourceAttributes": map[string]any{
						"verb": verb, "group": apiGroup, "resource": name, "subresource": part,
					}},
				}}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				if yes, _, _ := unstructured.NestedBool(review.Object, "status", "allowed"); yes {
					mu.Lock()
					found[resource] = append(found[resource], verb)
					mu.Unlock()
				}
				return nil
			})
		}
	}
	if err := wait.Wait(); err != nil {
		w.Fatal(err)
	}
	got := map[string]string{}
	for resource, verbs := range found {
		slices.Sort(verbs)
		got[resource] = strings.Join(verbs, " ")
	}
	return got
}
