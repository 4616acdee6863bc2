package test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

// TestEmbed builds a program of another module that embeds the reconciler, as its authors would,
// and runs it.
func TestEmbed(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  strings.Replace(read(t, "embed/go.mod"), "=> ../..", "=> "+root, 1),
		"main.go": read(t, "embed/main.go"),
		"go.sum":  read(t, "../go.sum"), // what Ironherd is built from is known and checked
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-mod=mod", "-o", "embed", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx := bounded(t, 5*time.Minute)
	r := startReconciled(ctx, t)
	p, err := process.Start(ctx, filepath.Join(dir, "embed"), "-etcd=http://"+r.cluster.EtcdEndpoint(), "-kubeconfig="+r.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r.until(ctx, "its object", func() bool {
		return r.status(ctx, r.cluster.APIServer, http.MethodGet, "/api/v1/namespaces/default/configmaps/embedded") == http.StatusOK
	})
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
}
