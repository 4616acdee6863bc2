package postgres

import "strings"

// replacement stands for what cannot be stored as text.
const replacement = "\uFFFD"

// storable replaces, in text that came from outside, what this engine cannot store: NUL and what is not UTF-8.
func storable(args []any) []any {
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			args[i] = storableText(s)
		}
	}
	return args
}

func storableText(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", replacement)
	}
	return strings.ToValidUTF8(s, replacement)
}
