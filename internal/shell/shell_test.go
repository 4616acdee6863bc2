package shell

import (
	"os/exec"
	"strings"
	"testing"
)

var words = []string{
	"", "a", "/var/lib/ironherd/a-b_c.d+e@f:g,h%i", "two words", "it's", "''", `\`, `'\''`, "$HOME", "`id`", "$(id)", "a;b", "a&&b", "a|b", ">a", "<a", "/*",
	"?", "[a-z]*", "~", "~root", "#", "a#b", "!", "!!", "{a,b}", "a=b", "=a", "-n", "--", "\t", "\n", "a\nb", "\r", "\"", "é", "\xff", "\x01", "if", "(",
}

// asked runs a word in a shell, alone and behind other letters.
func asked(t *testing.T, word string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s|' before "+Word(word)+" after"+Word(word)).Output()
	if want := "before|" + word + "|after" + word + "|"; err != nil || string(out) != want {
		t.Errorf("%q becomes %q: the shell has %q, %v", word, Word(word), out, err)
	}
}

// TestWord: a shell takes each word as the one that it was. One that needs no quotes has none, so
// that people read the command as they would write it.
func TestWord(t *testing.T) {
	t.Parallel()
	for _, word := range words {
		asked(t, word)
	}
	for word, want := range map[string]string{
		"/etc/ironherd/config.yaml": "/etc/ironherd/config.yaml", "https://fleet.example:8443": "https://fleet.example:8443",
		"": "''", "a b": "'a b'", "it's": `'it'\''s'`, "a=b": "'a=b'",
	} {
		if got := Word(word); got != want {
			t.Errorf("%q becomes %q, want %q", word, got, want)
		}
	}
}

func FuzzWord(f *testing.F) {
	for _, word := range words {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if !strings.ContainsRune(word, 0) {
			asked(t, word)
		}
	})
}
