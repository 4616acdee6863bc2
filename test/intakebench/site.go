package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/test/process"
)

// fewestWorlds returns how many worlds must share a fleet, so that none needs more open files than
// a process may have.
func fewestWorlds(machines int) (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("ask for the limit of open files: %w", err)
	}
	for worlds := 1; worlds <= machines; worlds++ {
		if sim.OpenFiles((machines+worlds-1)/worlds+sim.DefaultOnDemand) <= files.Max {
			return worlds, nil
		}
	}
	return 0, fmt.Errorf("a process may open %d files, which is too few for any world", files.Max)
}

// site is one control plane with its worlds.
type site struct {
	ironherd, dir string
	// herds has one for each world. The first one's has the control plane, too.
	herds []*process.Herd
}

// start starts the worlds. Each has a seed, and with that addresses, of its own. They have one SSH
// port, because a control plane knows only one.
func (s *site) start(ctx context.Context, machines, worlds int) error {
	var port string
	for n := range worlds {
		args := []string{"--real-agents", "0", "--preload-agent", "--seed", strconv.Itoa(n + 1)}
		if n > 0 {
			args = append(args, "--ssh-port", port)
		}
		herd := &process.Herd{
			Ironherd: s.ironherd, Dir: filepath.Join(s.dir, strconv.Itoa(n+1)), Machines: (machines + n) / worlds, WorldArgs: args,
		}
		s.herds = append(s.herds, herd)
		if err := herd.StartWorld(ctx); err != nil {
			return err
		}
		config, err := read(herd.Config())
		if err != nil {
			return err
		}
		initializer, _ := config["initializer"].(map[string]any)
		port = fmt.Sprint(initializer["port"])
	}
	return nil
}

// usage returns the processor time of all worlds.
func (s *site) usage() (sum time.Duration, err error) {
	for _, herd := range s.herds {
		u, err := herd.World().Usage()
		if err != nil {
			return 0, err
		}
		sum += u.CPU
	}
	return sum, nil
}

// stop stops the control plane and the worlds.
func (s *site) stop(ctx context.Context) error {
	var errs []error
	for _, herd := range s.herds {
		errs = append(errs, herd.Stop(ctx))
	}
	return errors.Join(errs...)
}

// configure makes the other worlds providers in the first one's configuration, and takes the pace
// of creation out of it, and the install where it is not wanted. Passes that read whole lists come
// as often as the simulator has it for one world with the whole fleet.
func (s *site) configure(machines int, install bool) error {
	config, err := read(s.herds[0].Config())
	if err != nil {
		return err
	}
	loops, _ := config["loops"].(map[string]any)
	initializer, _ := loops["initializer"].(map[string]any)
	policy, _ := config["policy"].(map[string]any)
	if initializer == nil || policy == nil {
		return fmt.Errorf("%s lacks loops.initializer or policy", s.herds[0].Config())
	}
	initializer["claim_rate"] = "1ms,100"
	whole := demo.Settings(s.dir, "", machines, demo.WorldAddress{}).Policy
	policy["update_interval"], policy["provision_interval"] = whole.UpdateInterval.String(), whole.ProvisionInterval.String()
	var providers []any
	for n, herd := range s.herds {
		provider, err := providerOf(herd.Config(), install)
		if err != nil {
			return err
		}
		provider["name"] = fmt.Sprintf("sim-%d", n+1)
		providers = append(providers, provider)
	}
	config["providers"] = providers
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(s.herds[0].Config(), text, 0o600)
}

// providerOf returns the only provider of the configuration that a world has left.
func providerOf(file string, install bool) (map[string]any, error) {
	config, err := read(file)
	if err != nil {
		return nil, err
	}
	providers, _ := config["providers"].([]any)
	if len(providers) != 1 {
		return nil, fmt.Errorf("%s has %d providers, want 1", file, len(providers))
	}
	provider, _ := providers[0].(map[string]any)
	provisioner, _ := provider["provisioner"].(map[string]any)
	if provisioner == nil {
		return nil, fmt.Errorf("%s lacks providers[0].provisioner", file)
	}
	provisioner["create_rate"] = "1ms,100"
	if !install {
		delete(provider, "install")
	}
	return provider, nil
}

func read(file string) (config map[string]any, err error) {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return nil, err
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}
