// Package builtin is the table of the kinds of provider that this binary has. Whoever adds a kind
// adds a section to Sections and a row to the table; nothing else in the control plane names a
// kind.
//
// A row says how the kind is called, what the defaults of its section are, which of its keys are
// file names, when it is valid, and how a provider is made of it. Package config decodes and checks
// sections through this table; package daemon makes providers through it.
//
// The table is data, not a registry: importing a kind changes nothing.
package builtin

import (
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/equinix"
	"github.com/ironherd/ironherd/internal/provider/static"
)

// Sections is what a provider's configuration holds for its kind: one section for each kind, under
// the kind's name. Only the section of the provider's own kind counts.
type Sections struct {
	// Equinix is an API that is compatible with Equinix Metal's.
	Equinix equinix.Config `yaml:"equinix"`
	// Static is a list of hosts that exist already.
	Static static.Config `yaml:"static"`
}

// The names of the kinds. They are stored with providers and must not change.
const (
	Equinix = "equinix"
	Static  = "static"
)

// table has a row for each kind, in the order in which people are shown them.
var table = []Kind{
	{
		Name:     Equinix,
		defaults: func(s *Sections) { s.Equinix = equinix.DefaultConfig() },
		Files: func(s *Sections) []File {
			return []File{{Key: "token_file", Path: &s.Equinix.TokenFile, Check: equinix.CheckToken}}
		},
		Pace: func(s Sections) Pace {
			return Pace{Limits: s.Equinix.Limits(), PageSize: s.Equinix.PageSize, Account: s.Equinix.Account()}
		},
		Section: func(s Sections) Section { return s.Equinix },
		Open: func(s Sections, key string, options provider.Options) (provider.Provider, error) {
			s.Equinix.SSHPublicKey = key
			return equinix.New(s.Equinix, options)
		},
	},
	{
		Name:     Static,
		IsList:   true,
		defaults: func(s *Sections) { s.Static = static.DefaultConfig() },
		Files: func(s *Sections) []File {
			return []File{{Key: "path", Path: &s.Static.Path, CheckContent: static.CheckList}}
		},
		Section: func(s Sections) Section { return s.Static },
		Open: func(s Sections, _ string, options provider.Options) (provider.Provider, error) {
			return static.New(s.Static, options)
		},
	},
}

// Kind is one kind of provider: a row of the table.
type Kind struct {
	// Name is what the kind is called in configurations and in the BMDB.
	Name string
	// IsList says that providers of this kind are lists of hosts that are there already: a machine
	// costs nothing, and making one calls nobody.
	IsList bool
	// Files returns the file names in the section of this kind.
	Files func(*Sections) []File
	// Pace returns how calls to a provider of this kind are paced. Nil: what is asked about one
	// machine is no call of its own.
	Pace func(Sections) Pace
	// Section returns the section of this kind.
	Section func(Sections) Section
	// Open makes a provider of this kind from its section, which is valid. It asks the provider
	// nothing. sshPublicKey is the key that machines are reached with, in authorized_keys form.
	Open func(s Sections, sshPublicKey string, options provider.Options) (provider.Provider, error)

	defaults func(*Sections)
}

// Pace is how calls to a provider are paced.
type Pace struct {
	Limits provider.Limits
	// PageSize is how many rows of a list one call brings.
	PageSize int
	// Account is what the calls count against, with those of other providers that have the same.
	Account string
}

// Section is what every kind's section tells of a provider.
type Section interface {
	// Validate reports every fault of the section. Each is of kind Invalid and begins with its key,
	// relative to the section.
	Validate() error
	// Source returns what the machines of a provider are listed in (a list of hosts, a project of an
	// API), and the key that names it, relative to the section: two providers with one source would
	// both manage every machine of it. Both are empty where none is named.
	Source() (key, source string)
	// Identity returns what the machines of a provider belong to, whatever it is reached by: the UUID
	// of a project. It is recorded, and must stay the same for the same machines. Empty: nothing
	// tells.
	Identity() string
	// Elsewhere names something that shows that machines of this provider are not on this host: where
	// its API is, or one of its hosts. Empty: nothing does, as far as can be told without asking
	// anybody.
	Elsewhere() string
}

// File is a key of a section whose value is a file name.
type File struct {
	// Key is relative to the section.
	Key string
	// Path is where the section has the file's name; empty when none is named.
	Path *string
	// Check says what is wrong with a file of that name; nil: it must be readable, no more.
	Check func(path string) error
	// CheckContent says what is wrong with the content of the file, each fault an error of its own. A
	// control plane starts all the same. Nil: nothing is said.
	CheckContent func(path string) error
}

// Kinds lists the kinds.
func Kinds() []Kind { return slices.Clone(table) }

// Find returns the kind of that name. The error is of kind Invalid and lists the names.
func Find(name string) (Kind, error) {
	if i := slices.IndexFunc(table, func(k Kind) bool { return k.Name == name }); i >= 0 {
		return table[i], nil
	}
	names := make([]string, len(table))
	for i, k := range table {
		names[i] = k.Name
	}
	return Kind{}, fleet.Errorf(fleet.KindInvalid, "%q is no kind of provider: use one of %s", name, strings.Join(names, ", "))
}

// Defaults returns the sections with the documented defaults of every kind.
func Defaults() Sections {
	var s Sections
	for _, k := range table {
		k.defaults(&s)
	}
	return s
}
