package config

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// field is one key of a section.
type field struct {
	name  string
	index []int
	typ   reflect.Type
}

// fieldsOf lists the keys of a section in order. A key's name is its yaml tag, else its json tag,
// else the field's name in snake case. The tag "-" hides a field. The keys of a section that is
// marked inline stand in the section around it.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, tagged := tag(f)
		switch {
		case !f.IsExported() || name == "-":
		case f.Anonymous && (!tagged || options == "inline"), options == "inline":
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				fields = append(fields, inner)
			}
		default:
			fields = append(fields, field{name: name, index: []int{i}, typ: f.Type})
		}
	}
	return fields
}

func tag(f reflect.StructField) (name, options string, tagged bool) {
	for _, key := range []string{"yaml", "json"} {
		if value, ok := f.Tag.Lookup(key); ok {
			name, options, _ = strings.Cut(value, ",")
			if name == "" && options != "inline" {
				name = snake(f.Name)
			}
			return name, options, true
		}
	}
	return snake(f.Name), "", false
}

// snake turns RootDisk into root_disk and CACertificate into ca_certificate.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		startsWord := unicode.IsUpper(r) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if startsWord {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func names(fields []field) []string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	return all
}

func find(fields []field, name string) (field, bool) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return fields[i], true
}

// isSection reports whether a type is decoded from keys of its own.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// visitValues calls visit for each key that a variable or a flag can set: single values and lists
// of them, but nothing in a list of sections.
func visitValues(t reflect.Type, prefix string, visit func(path string, t reflect.Type)) {
	for _, f := range fieldsOf(t) {
		path := join(prefix, f.name)
		element := f.typ
		for element.Kind() == reflect.Pointer || element.Kind() == reflect.Slice && element.Elem().Kind() != reflect.Uint8 {
			element = element.Elem()
		}
		switch {
		case isSection(f.typ):
			visitValues(f.typ, path, visit)
		case isSection(element):
		default:
			visit(path, f.typ)
		}
	}
}

// suggest continues "there is no such key" with what may have been meant: the first of the known
// names that are closest, at most that far away. Where none is, it says otherwise.
func suggest(name string, known []string, most int, otherwise string) string {
	best, least := "", most+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return "; did you mean " + best + "?"
	}
	return otherwise
}

func enumerate(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

// distance counts the insertions, deletions and replacements from a to b.
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current := make([]int, len(b)+1)
		current[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current[j+1] = min(previous[j+1]+1, current[j]+1, previous[j]+cost)
		}
		previous = current
	}
	return previous[len(b)]
}
