package cli

import "testing"

// TestTypedIn: what the demo prints runs as it stands, also in the directory of the program itself.
func TestTypedIn(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"/home/ada/herd/ironherd":     "./ironherd",
		"/home/ada/herd/bin/ironherd": "bin/ironherd",
		"/usr/bin/ironherd":           "/usr/bin/ironherd",
	} {
		if got := typedIn("/home/ada/herd", program); got != want {
			t.Errorf("%s is typed as %s, want %s", program, got, want)
		}
	}
}
