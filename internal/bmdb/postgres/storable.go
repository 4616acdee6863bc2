package postgres

import "strings"

// replacement stands for what cannot be stored as text.
const replacement = "\uFFFD"

// storable replaces, in text that came from outside and in lists of it, what this engine cannot
// store: NUL and what is not UTF-8.
func storable(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = storableText(arg)
		case []string:
			for k, s := range arg {
				arg[k] = storableText(s)
			}
		}
	}
	return args
}

func storableText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", replacement), replacement)
}
