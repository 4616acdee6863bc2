package demo

import (
	"path"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
)

// Preload returns the files that a world puts on every machine so that nothing is uploaded: the
// agent, where the initializer would upload it. For sim.Config's field of the same name.
func Preload(executable string) (map[string]string, error) {
	content, err := remote.ReadContent(executable)
	if err != nil {
		return nil, err
	}
	return map[string]string{content.Path(path.Join(initializer.DefaultConfig().TargetPath, config.AgentName)): executable}, nil
}
