package webui

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// holdsShown is how many of a session's holds are named at once.
const holdsShown = 4

func plural(n int64, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// sentence returns a message as a sentence: with a capital letter and a full stop.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	if message == "" || first == utf8.RuneError {
		return message
	}
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(message[size:], ".") + "."
}

// containsFold says whether a text contains another one, whatever the case.
func containsFold(text, more string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(strings.TrimSuffix(more, ".")))
}

func providerURL(name string) string { return "/machines?" + url.Values{"provider": {name}}.Encode() }

// isID says whether s names a machine rather than a provider.
func isID(s string) bool { return uuid.Validate(s) == nil && len(s) == 36 }

// tail returns the last characters of an ID. Machine IDs begin with the time, so that those of one
// pass begin alike.
func tail(id string) string { return "…" + id[len(id)-8:] }

// distinctLength returns for IDs the number of leading bytes by which each of them can be told from
// the others, at least 8, and the number that all of them have in common.
func distinctLength(ids []string) (length, common int) {
	length = 8
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			if n := commonPrefix(a, b); a != b {
				length = max(length, n+1)
			}
		}
	}
	if len(ids) > 1 {
		common = len(ids[0])
		for _, id := range ids[1:] {
			common = min(common, commonPrefix(ids[0], id))
		}
	}
	return length, min(common, length-1)
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// cut is s[from:to] where s is long enough.
func cut(s string, from, to int) string {
	to = min(to, len(s))
	return strings.ToValidUTF8(s[min(from, to):to], "")
}
