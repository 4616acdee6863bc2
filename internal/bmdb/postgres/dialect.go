package postgres

import (
	"strings"
	"sync"
)

// The shared statements read lists of rows from one JSON argument, an array of arrays, with the table function and the operator that
// SQLite has for it. PostgreSQL has the operator, and another name for the function; that is the one difference.
const (
	sharedList = "json_each("
	ourList    = "jsonb_array_elements("
)

// dialects remembers what became of each statement; there are as many as the programs text has.
var dialects sync.Map

// dialect returns a shared statement as this engine runs it.
func dialect(query string) string {
	if !strings.Contains(query, sharedList) {
		return query
	}
	if known, ok := dialects.Load(query); ok {
		return known.(string)
	}
	ours := strings.ReplaceAll(query, sharedList, ourList)
	dialects.Store(query, ours)
	return ours
}

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
