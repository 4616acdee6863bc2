package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/shepherd"
)

// Sources is what a configuration is made of; later ones win.
type Sources struct {
	// File is the path of the YAML file; empty: there is none.
	File string
	// Environ is the environment, as os.Environ returns it. Variables that do not begin with IRONHERD_
	// are ignored, and so are those of ironherd-reconciler.
	Environ []string
	// Flags are keys and values from the command line.
	Flags []Override
	// Executable is the path of the running program; the agent's executable is looked for beside it.
	// May be empty.
	Executable string
	// Contents says that the content of what is named is checked, too: of a provider's list of hosts,
	// and of the file of tokens. A control plane starts with a list that has faults, or when the last
	// token has expired, and shows it. Without it, a list is read only where an endpoint that
	// machines are told is this host alone.
	Contents bool
}

// Override is one key that a flag sets, by its full path.
type Override struct {
	// Flag as the user wrote it, such as "--dir", for faults.
	Flag  string
	Key   string
	Value string
}

const (
	prefix = "IRONHERD_"
	// reconcilerPrefix begins the variables of ironherd-reconciler.
	reconcilerPrefix = prefix + "RECONCILER_"
)

// reserved are the variables that are not part of this configuration, but for clients of a control
// plane or for the agent.
var reserved = []string{"IRONHERD_CONFIG", "IRONHERD_SERVER", "IRONHERD_TOKEN_FILE", "IRONHERD_CA_FILE", "IRONHERD_AGENT_ROOT"}

// serviceLink matches the variables that Kubernetes makes for a service named ironherd.
var serviceLink = regexp.MustCompile(`^IRONHERD_(?:[A-Z0-9_]+_)?(?:SERVICE_(?:HOST|PORT(?:_.*)?)|PORT(?:_\d+_(?:TCP|UDP)(?:_.*)?)?)$`)

// Load reads the file, applies the environment and the flags to it, decodes and checks. Paths in
// the result are absolute; those of the file are relative to its directory.
//
// The error is Faults with all that is wrong, or says why the file cannot be read. It is of kind
// Invalid in both cases. Where files that are named do not answer for a minute, as on a network
// file system whose server is gone, that is what is told, and it passes.
func Load(sources Sources) (Config, error) { return load(sources, answerLimit, blameLimit) }

const (
	// answerLimit is how long the files that are named may take to answer.
	answerLimit = time.Minute
	// blameLimit is how long each of them may take when it is to be found out which do not.
	blameLimit = 5 * time.Second
)

func load(sources Sources, limit, blame time.Duration) (Config, error) {
	config, d, err := read(sources, limit)
	if err != nil {
		return Config{}, err
	}
	d.checkWithin(config, limit, blame)
	if faults := d.sorted(); len(faults) > 0 {
		return Config{}, faults
	}
	return config, nil
}

// read returns what is written, with the faults of that alone.
func read(sources Sources, limit time.Duration) (Config, *document, error) {
	var content []byte
	if sources.File != "" {
		read, err := secret.Within(limit, func() ([]byte, error) { return os.ReadFile(sources.File) })
		if secret.Passes(err) { // it hangs
			return Config{}, nil, Faults{{Problem: unreadable(sources.File, err).Error(), Passes: true}}
		}
		if err != nil {
			return Config{}, nil, unreadable(sources.File, err)
		}
		content = read
	}
	d := newDocument(sources.File, content)
	d.sources = sources
	if len(d.faults) > 0 {
		return Config{}, nil, d.sorted() // it is not YAML, so there is nothing to check
	}
	d.overrideFromEnvironment(sources.Environ)
	d.overrideFromFlags(sources.Flags)
	config := Default()
	d.decode(d.root, "", reflect.ValueOf(&config).Elem())
	for i := range config.Providers {
		section := fmt.Sprintf("providers[%d].provisioner", i)
		config.Providers[i].setKindDefaults(func(key string) bool {
			_, placed := d.places[join(section, key)]
			return placed
		})
	}
	for _, loop := range config.eachLoop() {
		if config.DrainTimeout > 0 && !d.isSet(loop.key+".grace") {
			loop.config.Grace = min(loop.config.Grace, config.DrainTimeout/2)
		}
	}
	config.Resolve(filepath.Dir(sources.File))
	if config.Initializer.AgentExecutable == "" {
		config.Initializer.AgentExecutable = agentBeside(sources.Executable, AgentName)
		if config.Initializer.AgentExecutable != "" && config.Initializer.OtherAgentExecutables == nil {
			config.Initializer.OtherAgentExecutables = otherAgentsBeside(sources.Executable)
		}
	}
	return config, d, nil
}

// keyedLoop is the section of a loop.
type keyedLoop struct {
	key    string
	config *shepherd.Config
}

func (c *Config) eachLoop() []keyedLoop {
	return []keyedLoop{
		{"loops.provisioner", &c.Loops.Provisioner},
		{"loops.initializer", &c.Loops.Initializer},
		{"loops.updater", &c.Loops.Updater},
		{"loops.recoverer", &c.Loops.Recoverer},
		{"loops.operations", &c.Loops.Operations},
		{"loops.prober", &c.Loops.Prober},
	}
}

// otherAgentsBeside returns the agent's executables for other architectures beside the program's.
func otherAgentsBeside(executable string) (others []string) {
	for _, architecture := range []string{"amd64", "arm64"} {
		if path := agentBeside(executable, AgentName+"-"+architecture); path != "" && architecture != runtime.GOARCH {
			others = append(others, path)
		}
	}
	return others
}

// agentBeside returns an executable of the agent beside the program's; empty when it is not there.
func agentBeside(executable, name string) string {
	if executable == "" {
		return ""
	}
	path := filepath.Join(filepath.Dir(executable), name)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}

func unreadable(file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fleet.Errorf(fleet.KindInvalid, "configuration file %s does not exist: name one with --config", file)
	}
	return fleet.Errorf(fleet.KindInvalid, "configuration file %s cannot be read: %w", file, pathCause(err))
}

// pathCause is the error without the path, which the sentence around it names already.
func pathCause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// variable returns the name of the variable that sets a key.
func variable(key string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// variables maps names of variables to keys.
func variables() map[string]string {
	byName := map[string]string{}
	visitValues(reflect.TypeFor[Config](), "", func(key string, _ reflect.Type) { byName[variable(key)] = key })
	return byName
}

func (d *document) overrideFromEnvironment(environ []string) {
	known := variables()
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, reconcilerPrefix) || slices.Contains(reserved, name) {
			continue
		}
		key, ok := known[name]
		switch {
		case ok:
			d.override(key, absoluteFile(key, value), "environment "+name)
		case serviceLink.MatchString(name):
		default:
			d.faultAt(place{source: "environment"}, name, "there is no such variable%s", suggest(name, slices.Sorted(maps.Keys(known)), 3,
				": unset it, or see reference/config.md in the docs for those that there are"))
		}
	}
}

// absoluteFile makes a value from the environment or a flag absolute when it is a file name. It is
// relative to the working directory, not to the configuration file. The key of an element of a list
// ends with [0].
func absoluteFile(key, value string) string {
	var config Config
	config.Initializer.OtherAgentExecutables = []string{""}
	isFile := slices.ContainsFunc(config.fileKeys(), func(f fileKey) bool { return f.key == key })
	if !isFile || value == "" {
		return value
	}
	if absolute, err := filepath.Abs(value); err == nil {
		return absolute
	}
	return value
}

func (d *document) overrideFromFlags(flags []Override) {
	var keys []string
	visitValues(reflect.TypeFor[Config](), "", func(key string, _ reflect.Type) { keys = append(keys, key) })
	for _, flag := range flags {
		if !slices.Contains(keys, flag.Key) {
			d.faultAt(place{source: "flag " + flag.Flag}, flag.Key, "there is no such key that a flag can set%s", suggestKey(flag.Key, keys))
			continue
		}
		d.override(flag.Key, absoluteFile(flag.Key, flag.Value), "flag "+flag.Flag)
	}
}

func suggestKey(key string, known []string) string {
	if strings.HasPrefix(key, "providers") {
		return ": lists of sections are written in the file"
	}
	return suggest(key, known, 3, ": see reference/config.md in the docs for those that there are")
}

// faultsOf records what a component's Validate returned. Each fault begins with its key, relative
// to the section.
func (d *document) faultsOf(section string, err error) {
	for _, fault := range fleet.Split(err) {
		text := fault.Error()
		key, _, _ := strings.Cut(text, " ")
		path := join(section, strings.TrimSuffix(key, ":"))
		if d.reported(path) {
			continue // it could not be decoded, so Validate has seen the default
		}
		at := d.nearest(path)
		d.faults = append(d.faults, Fault{Source: at.source, Line: at.line, Key: path, Problem: join(section, text), Passes: secret.Passes(fault)})
	}
}

func (d *document) reported(key string) bool {
	return slices.ContainsFunc(d.faults, func(f Fault) bool { return f.Key == key })
}
