package image

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	mebibyte = 1 << 20
	// Architecture is that of every image, in Debian's notation, which is Go's here, too.
	Architecture = "amd64"
	// DefaultSuite is the release of Debian that is used unless another one is named.
	DefaultSuite = "trixie"
	// DefaultKernel suits virtual machines and the clouds; linux-image-amd64 has every driver.
	DefaultKernel = "linux-image-cloud-amd64"
)

// Options say what to build.
type Options struct {
	// Output is the file to make. Its name ends in .raw or .raw.zst; the manifest lies beside it, with
	// .json in the place of that.
	Output string
	// Suite of Debian, such as trixie; empty: DefaultSuite.
	Suite string
	// Kernel is the package of the kernel; empty: DefaultKernel.
	Kernel string
	// Packages are installed besides those that every image has.
	Packages []string
	// AuthorizedKeys are the public SSH keys that may log in as root, as in authorized_keys.
	AuthorizedKeys []byte
	// Hostname of the system; empty: debian.
	Hostname string
	// Size of the disk image in bytes, a multiple of 1 MiB; 0: what is needed and some room to boot.
	Size int64
	// Sources is a file of APT sources to use, in either format; empty: Debian's own for the suite.
	Sources string
	// AptConfig is a file of APT configuration for the time of the build; may be empty.
	AptConfig string
	// Agent is the agent's executable for amd64. Empty: the image says nothing to a control plane.
	Agent string
	// Timestamp is the time that everything in the image is given at most, none that lies ahead; zero:
	// today, 0:00 UTC.
	Timestamp time.Time
	// Log is called with each line that the tools print. May be nil.
	Log func(line string)
}

var (
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suiteName   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	hostName    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// withDefaults returns the options with nothing left to guess.
func (o Options) withDefaults() Options {
	if o.Suite == "" {
		o.Suite = DefaultSuite
	}
	if o.Kernel == "" {
		o.Kernel = DefaultKernel
	}
	if o.Hostname == "" {
		o.Hostname = "debian"
	}
	if o.Timestamp.IsZero() {
		o.Timestamp = time.Now().UTC().Truncate(24 * time.Hour)
	}
	o.Timestamp = o.Timestamp.UTC().Truncate(time.Second)
	if o.Log == nil {
		o.Log = func(string) {}
	}
	o.Packages = slices.Compact(slices.Sorted(slices.Values(o.Packages)))
	return o
}

// Validate says everything that is wrong with the options.
func (o Options) Validate() error { return errors.Join(o.Faults()...) }

// Faults returns everything that is wrong with the options, one by one.
func (o Options) Faults() (errs []error) {
	o = o.withDefaults()
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, _, err := o.names(); err != nil {
		errs = append(errs, err)
	}
	if !suiteName.MatchString(o.Suite) {
		fault("the suite %q is not the name of a release of Debian", o.Suite)
	}
	for _, name := range append([]string{o.Kernel}, o.Packages...) {
		if !packageName.MatchString(name) {
			fault("%q is not the name of a package", name)
		}
	}
	if !hostName.MatchString(o.Hostname) {
		fault("%q is not a host name: want lower-case letters, digits and dashes", o.Hostname)
	}
	switch {
	case o.Size%mebibyte != 0:
		fault("the size %d is not a multiple of 1 MiB", o.Size)
	case o.Size != 0 && o.Size < minSize:
		fault("the size of %d MiB is too small: want %d MiB at least", o.Size/mebibyte, minSize/mebibyte)
	}
	switch at := o.Timestamp.Unix(); {
	case at < 0:
		fault("the timestamp lies before 1970")
	case at > time.Now().Unix(): // what the build makes would have the time of the build
		fault("the timestamp %d lies ahead of this host's clock: want seconds since 1970", at)
	}
	return errs
}

// names returns the paths of raw image and manifest, and whether the image is to be compressed.
func (o Options) names() (manifest string, compressed bool, err error) {
	if base, ok := strings.CutSuffix(o.Output, ".raw.zst"); ok && base != "" {
		return base + ".json", true, nil
	}
	if base, ok := strings.CutSuffix(o.Output, ".raw"); ok && base != "" {
		return base + ".json", false, nil
	}
	return "", false, fmt.Errorf("the output %q ends neither in .raw nor in .raw.zst", o.Output)
}

// tools are the programs that a build runs, and Debian's packages that bring them.
var tools = []struct{ program, pkg string }{
	{"mmdebstrap", "mmdebstrap"},
	{"mke2fs", "e2fsprogs"},
	{"debugfs", "e2fsprogs"},
	{"dumpe2fs", "e2fsprogs"},
	{"mkfs.vfat", "dosfstools"},
	{"mcopy", "mtools"},
	{"mmd", "mtools"},
	{"sfdisk", "fdisk"},
}

// findTools returns the path of each program. Those of administrators are not in everybody's PATH.
func findTools() (map[string]string, error) {
	paths := map[string]string{}
	var missing []string
	for _, tool := range tools {
		for _, name := range []string{tool.program, "/usr/sbin/" + tool.program, "/sbin/" + tool.program} {
			if path, err := exec.LookPath(name); err == nil {
				paths[tool.program] = path
				break
			}
		}
		if paths[tool.program] == "" && !slices.Contains(missing, tool.pkg) {
			missing = append(missing, tool.pkg)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("programs are missing on this host: apt-get install %s", strings.Join(missing, " "))
	}
	return paths, nil
}

// findFiles names every file that a build would miss later, when minutes have gone by.
func (o Options) findFiles() error {
	var errs []error
	look := func(what, path string) {
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			err = fmt.Errorf("%s is a directory", path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	if o.Sources != "" {
		look("read the APT sources", o.Sources)
	} else {
		look("the keys of Debian's archive are missing on this host: apt-get install debian-archive-keyring", keyring)
	}
	if o.AptConfig != "" {
		look("read the APT configuration", o.AptConfig)
	}
	if o.Agent != "" {
		before := len(errs)
		if look("read the agent's executable", o.Agent); len(errs) == before {
			errs = append(errs, CheckAgent(o.Agent))
		}
	}
	return errors.Join(append(errs, o.manifestPlace())...)
}

// manifestPlace fails unless the place of the manifest is free, or has that of an earlier build of
// the same file: nothing else is overwritten.
func (o Options) manifestPlace() error {
	name, _, err := o.names()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var there Manifest
	if err == nil {
		err = json.Unmarshal(text, &there)
	}
	if file := filepath.Base(o.Output); err != nil || there.File != file {
		return fmt.Errorf("%s is there and is not the manifest of %s: move it away, or give the image another name", name, file)
	}
	return nil
}

// CheckAgent says why a file cannot be the agent of an image: it is no program, or one for another
// architecture.
func CheckAgent(path string) error {
	is := "no program for Linux"
	program, err := elf.Open(path)
	if err == nil {
		machine := program.Machine
		_ = program.Close() // only read
		if machine == elf.EM_X86_64 {
			return nil
		}
		is = "for " + strings.ToLower(strings.TrimPrefix(machine.String(), "EM_"))
	}
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("the agent's executable cannot be read: %w", failed)
	}
	return fmt.Errorf("the agent's executable %s is %s, and an image is for %s: name ironherd-agent-%[3]s, which `make agents` makes",
		path, is, Architecture)
}

// ManifestName is the name of the manifest of the image in that file.
func ManifestName(file string) string {
	name, _, _ := Options{Output: file}.names()
	return name
}
