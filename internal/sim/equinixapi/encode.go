package equinixapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// raw is JSON that was made before.
type raw []byte

// encode is json.Marshal for what answers are made of. It takes over what is raw without looking at
// it again: most of a list is plans and places, which are always the same. Everything that it is
// given can be encoded: objects, their parts, and raw JSON that was checked when it came in.
func encode(value any) []byte { return appendValue(make([]byte, 0, 4096), value) }

func encodeObject(o obj) []byte { return encode(o) }

func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, "null"...)
	case raw:
		return append(b, v...)
	case obj:
		b = append(b, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(append(appendString(b, name), ':'), v[name])
		}
		return append(b, '}')
	case []obj:
		return appendList(b, v)
	case []string:
		return appendList(b, v)
	case string:
		return appendString(b, v)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case time.Time: // the API knows whole seconds
		return append(v.UTC().AppendFormat(append(b, '"'), time.RFC3339), '"')
	case *time.Time:
		if v == nil {
			return append(b, "null"...)
		}
		return appendValue(b, *v)
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("equinixapi: an answer cannot be encoded: %v", err))
	}
	return append(b, text...)
}

func appendList[T any](b []byte, list []T) []byte {
	b = append(b, '[')
	for i, value := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, value)
	}
	return append(b, ']')
}

// appendString appends a string; one that needs escapes goes the long way.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := json.Marshal(s) // a string can be marshalled
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// constant returns the JSON of something that is always the same, in its plain view.
func (a *API) constant(name string, v view, render func(view) obj) any {
	if len(v.include) > 0 || len(v.exclude) > 0 {
		return render(v)
	}
	if text, ok := a.constants.Load(name); ok {
		return text
	}
	text := raw(encode(render(v)))
	a.constants.Store(name, text)
	return text
}
