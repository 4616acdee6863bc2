package postgres

import "github.com/ironherd/ironherd/internal/bmdb"

// storable replaces, in text that came from outside and in lists of it, what this engine cannot
// store.
func storable(args []any) []any {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = bmdb.Storable(arg)
		case []string:
			for k, s := range arg {
				arg[k] = bmdb.Storable(s)
			}
		}
	}
	return args
}
