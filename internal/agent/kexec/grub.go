package kexec

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// entry is what a boot loader starts.
type entry struct {
	// Kernel and Initrd are paths in the file system that the configuration is in.
	Kernel string
	Initrd []string
	// Parameters of the kernel, each a word.
	Parameters []string
}

// commandLine is what the kernel gets, as GRUB gives it.
func (e entry) commandLine() string {
	words := []string{"BOOT_IMAGE=" + e.Kernel}
	for _, word := range e.Parameters {
		if strings.ContainsAny(word, " \t") {
			word = `"` + word + `"`
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// firstEntry returns the first entry of a GRUB configuration (GRUB manual, "Writing full
// configuration files directly"), which has to be the default one. It does not evaluate the script:
// of an entry it takes the first linux and the first initrd behind it, whatever the conditions. A
// parameter that is a variable counts as empty, as a variable that nobody has set does.
func firstEntry(config []byte) (found entry, err error) {
	depth := 0
	for line := range bytes.Lines(config) {
		words, err := grubWords(string(line))
		if err != nil || len(words) == 0 {
			continue
		}
		last := words[len(words)-1]
		switch {
		case depth == 0 && words[0] == "set" && len(words) == 2:
			value, ok := strings.CutPrefix(words[1], "default=")
			if ok && value != "" && value != "0" && !strings.Contains(value, variable) {
				return entry{}, fmt.Errorf("its default entry is not the first one, but %q", value)
			}
		case depth == 0 && words[0] == "menuentry" && last == "{":
			depth = 1
		case depth == 0:
		case last == "{":
			depth++
		case words[0] == "}":
			if depth--; depth == 0 {
				return found, found.usable()
			}
		case found.Kernel == "" && isCommand(words[0], "linux") && len(words) > 1:
			if found, err = linuxOf(words[1:]); err != nil {
				return entry{}, err
			}
		case found.Kernel != "" && found.Initrd == nil && isCommand(words[0], "initrd"):
			for _, path := range words[1:] {
				found.Initrd = append(found.Initrd, withoutDevice(path))
			}
		}
	}
	if depth > 0 {
		return entry{}, errors.New("its first entry has no end")
	}
	return entry{}, errors.New("it has no entry")
}

// usable wants plain paths.
func (e entry) usable() error {
	if e.Kernel == "" {
		return errors.New("its first entry starts no Linux")
	}
	for _, path := range append([]string{e.Kernel}, e.Initrd...) {
		if !strings.HasPrefix(path, "/") || strings.Contains(path, variable) {
			return fmt.Errorf("its first entry has a path that is not plain: %q", strings.ReplaceAll(path, variable, "$"))
		}
	}
	return nil
}

// isCommand says whether a word is the command, by one of its names on PCs.
func isCommand(word, command string) bool {
	return word == command || word == command+"efi" || word == command+"16"
}

// linuxOf reads the arguments of the command linux.
func linuxOf(words []string) (entry, error) {
	e := entry{Kernel: withoutDevice(words[0])}
	for _, word := range words[1:] {
		switch {
		case word == variable:
		case strings.Contains(word, variable):
			return entry{}, fmt.Errorf("its first entry has a parameter with a variable: %q", strings.ReplaceAll(word, variable, "$"))
		default:
			e.Parameters = append(e.Parameters, word)
		}
	}
	return e, nil
}

// withoutDevice leaves out a device before a path, such as (hd0,gpt3) or ($root).
func withoutDevice(path string) string {
	if strings.HasPrefix(path, "(") {
		if _, rest, ok := strings.Cut(path, ")"); ok {
			return rest
		}
	}
	return path
}

// variable stands for the value of a variable in a word. It cannot be part of a configuration that
// is text.
const variable = "\x00"

// grubWords splits a line as GRUB's shell does (GRUB manual, "Shell-like scripting": quoting,
// variable expansion, comments). It fails for a quote without an end, and for a line that goes on
// in the next one.
func grubWords(line string) (words []string, err error) {
	var word []byte
	in, quote := false, byte(0)
	line = strings.ReplaceAll(strings.TrimRight(line, "\r\n"), variable, " ")
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '\'':
			word = append(word, c)
		case c == '\\' && i+1 == len(line):
			return nil, errors.New("it goes on in the next line")
		case c == '\\':
			i++
			word, in = append(word, line[i]), true
		case c == '$':
			i += variableName(line[i+1:])
			word, in = append(word, variable...), true
		case quote != 0:
			word = append(word, c)
		case c == '"' || c == '\'':
			quote, in = c, true
		case c == '#' && !in:
			return words, nil
		case strings.IndexByte(" \t\r\n;", c) >= 0:
			if in {
				words = append(words, string(word))
			}
			word, in = nil, false
		default:
			word, in = append(word, c), true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote has no end")
	}
	if in {
		words = append(words, string(word))
	}
	return words, nil
}

// variableName returns how long the name of a variable is, with its braces, behind a dollar sign.
func variableName(text string) int {
	if strings.HasPrefix(text, "{") {
		if end := strings.IndexByte(text, '}'); end >= 0 {
			return end + 1
		}
		return len(text)
	}
	n := 0
	for n < len(text) && (text[n] == '_' || text[n] >= '0' && text[n] <= '9' || text[n] >= 'a' && text[n] <= 'z' || text[n] >= 'A' && text[n] <= 'Z') {
		n++
	}
	return n
}
