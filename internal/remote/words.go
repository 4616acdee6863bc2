package remote

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// wordsLimit is how much of a host's words an error shows, in bytes: a cause has room for 500, and
// what they mean must fit beside them.
const wordsLimit = 160

// Quote shows what a host said: on one line, in quotes, with nothing that a terminal would act on,
// and bounded.
func Quote(said string) string {
	said = strings.TrimRight(said, "\r\n")
	if said == "" {
		return "nothing"
	}
	shown := clip(strconv.Quote(said), wordsLimit)
	if strings.HasSuffix(shown, "…") {
		return fmt.Sprintf(`%s" (%d bytes)`, shown, len(said))
	}
	return shown
}

// clip cuts a text behind a whole character, and marks the cut.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	// Half an escape would show other characters than there were.
	cut := text[:limit]
	if at := strings.LastIndexByte(cut, '\\'); at >= 0 && len(cut)-at < 4 {
		cut = cut[:at]
	}
	return cut + "…"
}

// digests are those in the names of files.
var digests = regexp.MustCompile(`\b([0-9a-f]{12})[0-9a-f]{52}\b`)

// shown is a name of a file for a message, where a digest in it needs no more than its beginning.
func shown(name string) string { return digests.ReplaceAllString(name, "$1…") }

// said is the error of a library, whose text may hold words of the host.
type said struct{ err error }

// Error bounds the text and escapes what a terminal would act on.
func (e said) Error() string {
	escaped := new(strings.Builder)
	for _, r := range e.err.Error() {
		if strconv.IsPrint(r) {
			escaped.WriteRune(r)
		} else {
			escaped.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		if escaped.Len() > 2*wordsLimit {
			break
		}
	}
	return clip(escaped.String(), 2*wordsLimit)
}

// Unwrap returns the library's error.
func (e said) Unwrap() error { return e.err }

// What people can do about the causes that are known.
const (
	hintOtherCommand = "something else ran in its place: look for ForceCommand in sshd_config, for command= in authorized_keys, " +
		"and at the login shell"
	hintNoLogin  = "the user's login shell is nologin: give it a shell, or use another user"
	hintFull     = "no space left on the host: make room, or use a directory on another file system"
	hintNoExec   = "the file system is mounted noexec, or a security module forbids it: use another directory"
	hintNotRun   = "the host did not execute it, as where the file system is mounted noexec: use another directory"
	hintReadOnly = "the file system is mounted read-only, as it is after a fault of the disk: use another directory, or repair it"
	hintFormat   = "the program is not built for the host's architecture"
)

// notExecutable is the exit status with which a shell says that it cannot execute a file. It tells
// the reason in the language of the host. A wrong format is the one that no directory mends, and
// unlikely: the host was asked for its architecture before it was sent the program.
const notExecutable = 126

// hint returns what is known of the cause of a command's failure; empty: nothing.
func (e *ExitError) hint() string {
	words := strings.ToLower(e.words())
	for _, known := range []struct{ words, hint string }{
		{"no space left on device", hintFull},
		{"disk quota exceeded", hintFull},
		{"read-only file system", hintReadOnly},
		{"account is currently not available", hintNoLogin},
		{"exec format error", hintFormat},
		{"cannot execute binary file", hintFormat},
		{"this service allows sftp connections only", hintOtherCommand},
	} {
		if strings.Contains(words, known.words) {
			return known.hint
		}
	}
	switch {
	case e.other:
		return hintOtherCommand
	case e.Status == notExecutable && (strings.Contains(words, "permission denied") || strings.Contains(words, "operation not permitted")):
		return hintNoExec
	case e.Status == notExecutable:
		return hintNotRun
	}
	return ""
}

// words are the last that the command wrote to standard error, or else the first on standard
// output.
func (e *ExitError) words() string {
	if e.Stderr != "" {
		return e.Stderr
	}
	return e.Stdout
}
