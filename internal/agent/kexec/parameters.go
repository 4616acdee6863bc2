package kexec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

const (
	// maxCommandLine is how long the kernel's command line may be with the options of modprobe, in
	// bytes, and longestCommandLine what kernels take.
	maxCommandLine     = 1900
	longestCommandLine = 2047
)

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
func (p *Plan) options() (list []string) {
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
				list = append(list, normal(fields[1])+"."+parameter)
			}
		}
	}
	return list
}

// quoted warns of parameters of carried modules on the running kernel's command line that have
// quotes. They are not carried: the agent splits words at spaces.
func (p *Plan) quoted() {
	for _, word := range words(p.text("proc/cmdline")) {
		if module, _, ofModule := strings.Cut(word, "."); ofModule && p.takesParameters(normal(module)) && strings.Contains(word, `"`) {
			p.warn("the parameter %s on the kernel's command line is not carried over, because it has quotes", word)
		}
	}
}

// words splits a kernel's command line as the kernel does (next_arg of lib/cmdline.c): spaces in
// quotes end no word.
func words(line string) []string {
	inQuotes := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			inQuotes = !inQuotes
		}
		return !inQuotes && unicode.IsSpace(r)
	})
}
