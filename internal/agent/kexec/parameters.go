package kexec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxCommandLine is how long the kernel's command line may be with the options of modprobe, in
// bytes. Kernels take 2047.
const maxCommandLine = 1900

// modprobeDirs have the configuration of modprobe. A file hides those of its name in directories
// before its own.
var modprobeDirs = []string{"lib/modprobe.d", "usr/lib/modprobe.d", "usr/local/lib/modprobe.d", "run/modprobe.d", "etc/modprobe.d"}

// takesParameters says whether the module is carried and has the parameters of the old system. The
// agent makes bonds itself, and feeds watchdogs as it wants.
func (p *Plan) takesParameters(module string) bool {
	return slices.ContainsFunc(p.Modules, func(m Module) bool {
		return m.Name == module && module != "bonding" && module != "ipmi_watchdog" && !strings.Contains(m.Path, "drivers/watchdog/")
	})
}

// options returns the parameters that modprobe gives to modules, as words of the kernel's command
// line. Package pid1 gives those to the modules.
func (p *Plan) options() (words []string) {
	files := map[string]string{}
	for _, dir := range modprobeDirs {
		found, _ := filepath.Glob(p.path(dir + "/*.conf"))
		for _, path := range found {
			files[filepath.Base(path)] = path
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, _ := os.ReadFile(files[name])
		for _, line := range strings.Split(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 3 || fields[0] != "options" || !p.takesParameters(normal(fields[1])) {
				continue
			}
			if strings.ContainsAny(line, `"'`) {
				p.warn("the parameters of the module %s in %s are not carried over, because they have quotes", fields[1], files[name])
				continue
			}
			for _, parameter := range fields[2:] {
				words = append(words, normal(fields[1])+"."+parameter)
			}
		}
	}
	return words
}
