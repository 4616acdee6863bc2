package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// kubeVersion is the release that the module test/kube pins; the server reports it as its own.
const kubeVersion = "v1.36.3"

// programs are the names that `go build` gives to the tools of the module test/kube: the API
// server, and etcd.
const (
	apiserverProgram = "kube-apiserver"
	etcdProgram      = "server"
)

// Build returns a directory with both programs. It compiles them if they are not there. Concurrent
// calls, in any process, wait for that. It must be called from within the repository.
func Build(ctx context.Context) (string, error) {
	module, err := kubeModule(ctx)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the API server: %w", err)
	}
	flags := []string{
		"build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X k8s.io/component-base/version.gitVersion=" + kubeVersion +
			" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
	}
	key, err := contentKey(module, flags)
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "ironherd", "kube")
	dir := filepath.Join(home, key)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("where to keep the API server: %w", err)
	}
	unlock, err := lock(filepath.Join(home, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // it appears by a rename, so it is whole
	}
	fresh, err := os.MkdirTemp(home, "building-")
	if err != nil {
		return "", fmt.Errorf("build the API server: %w", err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	build := exec.CommandContext(ctx, "go", append(flags, "-o", fresh+string(filepath.Separator), "tool")...)
	build.Dir = module
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	build.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the API server: %w: %s", err, out)
	}
	if err := os.Rename(fresh, dir); err != nil {
		return "", fmt.Errorf("keep the API server: %w", err)
	}
	return dir, nil
}

// kubeModule returns the directory of the module test/kube.
func kubeModule(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	module := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "test", "kube")
	if _, err := os.Stat(filepath.Join(module, "go.mod")); err != nil {
		return "", fmt.Errorf("find the module of the API server: %w", err)
	}
	return module, nil
}

// contentKey names what a build is made from: the pinned modules with their checksums, the
// compiler, the platform, and the flags.
func contentKey(module string, flags []string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("what the API server is built from: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	fmt.Fprintf(h, "%s %s/%s %q", runtime.Version(), runtime.GOOS, runtime.GOARCH, flags)
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// lock waits for a lock that ends with the process at the latest.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the build: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the build: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
