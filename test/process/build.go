package process

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Build builds the programs into a directory and returns the path of ironherd; the agent is beside
// it. It must be called from within the module.
func Build(ctx context.Context, dir string) (string, error) {
	for _, name := range []string{"ironherd-agent", "ironherd"} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test",
			"-o", filepath.Join(dir, name), "github.com/ironherd/ironherd/cmd/"+name)
		build.Env = append(build.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return filepath.Join(dir, "ironherd"), nil
}
