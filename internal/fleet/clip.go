package fleet

import "strings"

// Clip cuts a text that has more bytes than that, at a whole character, and marks the cut. The mark
// is not counted. What it cuts is valid UTF-8 afterwards.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
