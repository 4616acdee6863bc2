package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
)

// manifestsOf are the manifests of a release, by file name: one object that no release has another
// form of, one that changes with the release, one that only this release has, one with a field that
// cannot be changed, and one that cannot be applied at all, because nobody has defined its kind.
func manifestsOf(s software) map[string]string {
	const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"release":%q}}`
	return map[string]string{
		"kept.json":    fmt.Sprintf(configMap, "kept", "any"),
		"changed.json": fmt.Sprintf(configMap, "changed", s.release),
		"only.json":    fmt.Sprintf(configMap, onlyIn(s), s.release),
		"replaced.json": fmt.Sprintf(`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"replaced"},"provisioner":"example.com/%s"}`,
			s.release),
		"undefined.json": `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"undefined","namespace":"default"}}`,
	}
}

// onlyIn is the object that only this release has.
func onlyIn(s software) string { return "only-" + strings.ReplaceAll(s.release, ".", "-") }

func (h *host) manifests() string { return filepath.Join(h.root, "etc/ironherd/manifests") }

// furnish gives a node the manifests of a release. What was taken away comes back with it.
func (s *storm) furnish(h *host, to software) {
	s.t.Helper()
	for _, directory := range []string{h.manifests(), h.manifests() + ".away"} {
		if err := os.RemoveAll(directory); err != nil {
			s.t.Error(err)
		}
	}
	for name, text := range manifestsOf(to) {
		h.file("etc/ironherd/manifests/"+name, text)
	}
	h.file("etc/ironherd/reconciler.yaml", fmt.Sprintf("%sfull_pass: 1s\nmanifests: %s\n", s.settings[h], h.manifests()))
}

// unmount lets the manifests of a node vanish, as a disk does that is not mounted, and returns what
// brings them back.
func (h *host) unmount() (mount func() error, err error) {
	directory := h.manifests()
	err = errors.Join(os.Rename(directory, directory+".away"), os.Mkdir(directory, 0o755))
	return func() error {
		if entries, err := os.ReadDir(directory); err != nil || len(entries) > 0 {
			return err // another release has brought its own
		}
		return errors.Join(os.Remove(directory), os.Rename(directory+".away", directory))
	}, err
}

// ask asks the API server of a node as its administrator, and decodes the answer.
func (h *host) ask(ctx context.Context, method, path, body string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	config := h.server.Config("")
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(text))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// objects are what a release wants, and what there is.
type objects struct {
	Kept, Changed, Provisioner string
	Only, Roles                []string
}

type list struct {
	Items []struct {
		Metadata    struct{ Name string }
		Data        map[string]string
		Provisioner string
	}
}

func (l list) names(of string) (names []string) {
	for _, item := range l.Items {
		if strings.HasPrefix(item.Metadata.Name, of) {
			names = append(names, item.Metadata.Name)
		}
	}
	slices.Sort(names)
	return names
}

func wantedBy(s software) objects {
	return objects{
		Kept: "any", Changed: s.release, Provisioner: "example.com/" + s.release, Only: []string{onlyIn(s)},
		Roles: []string{"ironherd:csi-provisioner", "ironherd:kubelet-api", "ironherd:network-services", "ironherd:owner"},
	}
}

func (h *host) objects(ctx context.Context) (got objects, err error) {
	var maps, storage, roles list
	err = errors.Join(
		h.ask(ctx, http.MethodGet, "/api/v1/namespaces/default/configmaps", "", &maps),
		h.ask(ctx, http.MethodGet, "/apis/storage.k8s.io/v1/storageclasses", "", &storage),
		h.ask(ctx, http.MethodGet, "/apis/rbac.authorization.k8s.io/v1/clusterroles", "", &roles),
	)
	for _, item := range maps.Items {
		switch item.Metadata.Name {
		case "kept":
			got.Kept = item.Data["release"]
		case "changed":
			got.Changed = item.Data["release"]
		}
	}
	for _, item := range storage.Items {
		if item.Metadata.Name == "replaced" {
			got.Provisioner = item.Provisioner
		}
	}
	got.Only, got.Roles = maps.names("only-"), roles.names("ironherd:")
	return got, err
}

// arrived waits until there is what the release wants, and nothing that another one has left.
func (s *storm) arrived(ctx context.Context, to software) {
	s.t.Helper()
	want := wantedBy(to)
	for {
		got, err := s.hosts[0].objects(ctx)
		difference := cmp.Diff(want, got)
		if err == nil && difference == "" {
			return
		}
		letRun(ctx, 200*time.Millisecond)
		if ctx.Err() != nil {
			s.t.Fatalf("waited for the objects of %s (%v), -want +got:\n%s", to.release, err, difference)
		}
	}
}

// lose removes an object of the release's own set, as somebody does by mistake.
func (s *storm) lose(ctx context.Context, h *host) bool {
	return h.ask(ctx, http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/clusterroles/ironherd:network-services", "", nil) == nil
}

// theirs are objects of a user, which look like ours.
var theirs = map[string]string{
	"/api/v1/namespaces/default/configmaps": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"theirs","namespace":"default",
		"labels":{"ironherd.dev/reconciled":"true"}},"data":{"a":"b"}}`,
	"/apis/storage.k8s.io/v1/storageclasses": `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"theirs",
		"labels":{"ironherd.dev/reconciled":"true"}},"provisioner":"example.com/theirs"}`,
	"/apis/rbac.authorization.k8s.io/v1/clusterroles": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"ironherd-theirs",
		"labels":{"ironherd.dev/reconciled":"true"}},"rules":[]}`,
}

func (s *storm) createUsers(ctx context.Context) string {
	s.t.Helper()
	for path, object := range theirs {
		if err := s.hosts[0].ask(ctx, http.MethodPost, path, object, nil); err != nil {
			s.t.Fatal(err)
		}
	}
	return s.users(ctx)
}

// users says which objects there are that must stay: those of the user, and the one that the
// manifests of every release have. One that was deleted and created again is another one.
func (s *storm) users(ctx context.Context) string {
	var found []string
	for _, key := range []string{"configmaps/default/theirs", "storageclasses/theirs", "clusterroles/ironherd-theirs", "configmaps/default/kept"} {
		answer, err := s.etcd.Get(ctx, "/registry/"+key, clientv3.WithKeysOnly())
		if err != nil || len(answer.Kvs) == 0 {
			found = append(found, fmt.Sprint(key, " is gone ", err))
			continue
		}
		found = append(found, fmt.Sprintf("%s created at %d", key, answer.Kvs[0].CreateRevision))
	}
	return strings.Join(found, ", ")
}
