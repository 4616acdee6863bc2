package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Check a configuration", a.configCheckCommand())
}

// checkedConfig is what config check prints.
type checkedConfig struct {
	File      string        `yaml:"file"`
	Faults    []configFault `yaml:"faults"`
	Providers []string      `yaml:"providers"`
	Roles     []string      `yaml:"roles"`
}

// configFault is config.Fault as it is printed.
type configFault struct {
	Source  string `yaml:"source"`
	Line    int    `yaml:"line"`
	Key     string `yaml:"key"`
	Problem string `yaml:"problem"`
}

func (a *app) configCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file and report every fault at once",
		Long: `Check loads the configuration as "ironherd serve" would, the environment included, and reports all that is wrong, each with its line
and what would be right. It reads the lists of hosts that are files, too: "ironherd serve" starts with a list that has faults, leaves
those hosts out, and "ironherd provider show" says why. It asks for a token that counts where other hosts reach the operator API, which
"ironherd serve" does not, because tokens expire. It starts nothing and asks nobody. Without FILE, it checks what
"ironherd serve" would use. Root can read what the user of the service cannot, so run it as that user.`,
		Example: `  ironherd config check /etc/ironherd/ironherd.yaml
  ironherd config check /etc/ironherd/ironherd.yaml -o json`,
		Args: exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 1 {
			a.configFile = args[0]
		}
		loaded, err := a.loadConfigFrom(config.Sources{Contents: true})
		result := checkedConfig{File: a.configFile, Faults: []configFault{}, Providers: []string{}, Roles: []string{}}
		if err != nil {
			return a.printFaults(*output, result, err)
		}
		for _, p := range loaded.Providers {
			result.Providers = append(result.Providers, p.Name)
		}
		for _, r := range loaded.Roles {
			result.Roles = append(result.Roles, string(r))
		}
		err = a.say(*output, result, "%s is right: %s, %s", a.configFile, plural(len(loaded.Providers), "provider"), plural(len(loaded.Roles), "role"))
		for _, caveat := range loaded.Caveats() {
			a.note("%s", caveat)
		}
		a.noteOwner(loaded.Dir)
		return err
	}
	return cmd
}

// printFaults returns the failure of a check, and prints its faults where they are not for people,
// who are told them as a failure.
func (a *app) printFaults(f format, result checkedConfig, failed error) error {
	faults, ok := errors.AsType[config.Faults](failed)
	if !ok || f == formatTable {
		return failed
	}
	for _, one := range faults {
		result.Faults = append(result.Faults, configFault{Source: one.Source, Line: one.Line, Key: one.Key, Problem: one.Problem})
	}
	if err := a.print(f, result, nil); err != nil {
		return err
	}
	return failed
}

// noteOwner tells root that the control plane is somebody else's, who may not be able to read what
// root has found right.
func (a *app) noteOwner(dir string) {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return
	}
	id := strconv.FormatUint(uint64(stat.Uid), 10)
	name, as := "user "+id, fmt.Sprintf("setpriv --reuid %d --regid %d --clear-groups", stat.Uid, stat.Gid)
	if u, err := user.LookupId(id); err == nil {
		name, as = u.Username, "runuser -u "+u.Username
	}
	a.note("That is what root can read. %s is %s's, so check it as that user: %s -- ironherd config check %s", dir, name, as, shell.Word(a.configFile))
}

// namedConfig returns the configuration file that was named; "" when none was.
func (a *app) namedConfig() string { return cmp.Or(a.configFile, a.getenv("IRONHERD_CONFIG")) }

// systemConfig is used when no file is named.
const systemConfig = "/etc/ironherd/ironherd.yaml"

// loadConfig loads the configuration of a control plane: --config, else IRONHERD_CONFIG, else that
// of the system or the user.
func (a *app) loadConfig(flags []config.Override) (config.Config, error) {
	return a.loadConfigFrom(config.Sources{Flags: flags})
}

// loadConfigFrom is loadConfig with sources, which it completes.
func (a *app) loadConfigFrom(sources config.Sources) (config.Config, error) {
	if err := a.completeSources(&sources); err != nil {
		return config.Config{}, err
	}
	return config.Load(sources)
}

func (a *app) completeSources(sources *config.Sources) error {
	a.configFile = a.namedConfig()
	if a.configFile == "" {
		for _, file := range a.wellKnownConfigs() {
			if _, err := os.Stat(file); err == nil {
				a.configFile = file
				break
			}
		}
	}
	if a.configFile == "" {
		return fleet.Errorf(fleet.KindInvalid, "there is no %s: name the configuration with --config or $IRONHERD_CONFIG", strings.Join(a.wellKnownConfigs(), ", and no "))
	}
	sources.File, sources.Environ, sources.Executable = a.configFile, a.env.Environ, a.env.Executable
	return nil
}

func (a *app) wellKnownConfigs() []string {
	files := []string{systemConfig}
	if user := config.UserDir(a.env.Environ); user != "" {
		files = append(files, filepath.Join(user, "ironherd.yaml"))
	}
	return files
}
