package demo

import (
	"path"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
)

// preload returns the files that the world puts on every machine: the agent, where the initializer
// would upload it.
func preload(executable string) (map[string]string, error) {
	content, err := remote.ReadContent(executable)
	if err != nil {
		return nil, err
	}
	return map[string]string{content.Path(path.Join(initializer.DefaultConfig().TargetPath, config.AgentName)): executable}, nil
}
