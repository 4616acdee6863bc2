package demo

import (
	"path"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
)

// preload returns where the initializer would put the agent on a machine, for the world to put it
// there beforehand.
func preload(executable string) (map[string]string, error) {
	content, err := remote.ReadContent(executable)
	if err != nil {
		return nil, err
	}
	return map[string]string{content.Path(path.Join(initializer.DefaultConfig().TargetPath, config.AgentName)): executable}, nil
}
