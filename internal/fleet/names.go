package fleet

import "strings"

// Names joins names for a sentence.
func Names[T ~string](all []T) string { return strings.Join(Strings(all), ", ") }

// Strings returns names as what takes any text wants them.
func Strings[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, name := range all {
		texts[i] = string(name)
	}
	return texts
}
