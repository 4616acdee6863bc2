// Package shell writes commands for a POSIX shell, which hosts run and people copy.
package shell

import "strings"

// Word returns what a shell takes as that one word, whatever is in it: as it is where that can mean
// nothing else, and in single quotes otherwise. A word with a NUL is none.
func Word(word string) string {
	if word != "" && strings.IndexFunc(word, special) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// special reports whether a shell may take a character for more than itself. An equals sign makes
// an assignment of a command's first word.
func special(r rune) bool {
	plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_@%+:,./-", r)
	return !plain
}
