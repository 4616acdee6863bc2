package equinixapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody bounds what a request may send.
const maxBody = 1 << 20

// readJSON reads the fields of a request: those of its body and, where the body does not have them,
// those of its query, where some clients put them. A body that is missing is an empty object.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return refuse(http.StatusRequestEntityTooLarge, "The request is larger than 1 MiB")
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "The request could not be read to its end")
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	if text, err = withQuery(text, r.URL.Query(), reflect.TypeOf(into).Elem()); err == nil {
		err = json.Unmarshal(text, into)
	}
	return explain(err)
}

// withQuery adds the fields of a query to a body that does not have them.
func withQuery(body []byte, query url.Values, shape reflect.Type) ([]byte, error) {
	var fields map[string]json.RawMessage
	for i := range shape.NumField() {
		name, _, _ := strings.Cut(shape.Field(i).Tag.Get("json"), ",")
		values, there := query[name]
		if !there {
			values, there = query[name+"[]"]
		}
		if !there || name == "" {
			continue
		}
		if fields == nil {
			if err := json.Unmarshal(body, &fields); err != nil {
				return nil, err
			}
			if fields == nil { // null
				fields = map[string]json.RawMessage{}
			}
		}
		if _, twice := fields[name]; !twice {
			fields[name] = fromQuery(values, shape.Field(i).Type)
		}
	}
	if fields == nil {
		return body, nil
	}
	return json.Marshal(fields)
}

// fromQuery is the JSON of a field that a query gives as text.
func fromQuery(values []string, field reflect.Type) json.RawMessage {
	if field.Kind() == reflect.Pointer {
		field = field.Elem()
	}
	last := values[len(values)-1]
	var value any = last
	switch {
	case field == reflect.TypeFor[names]():
		value = values
	case field == reflect.TypeFor[oneOrMore]() && len(values) > 1:
		value = values
	case field.Kind() == reflect.Bool:
		if truth, err := strconv.ParseBool(last); err == nil {
			value = truth
		}
	case field.Kind() == reflect.Slice, field.Kind() == reflect.Int:
		if json.Valid([]byte(last)) {
			return json.RawMessage(last)
		}
	}
	text, _ := json.Marshal(value) // strings and truths can be marshalled
	return text
}

// explain says what is wrong with a request in the API's words.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := wrong.Field
		if field == "" {
			field = "the request"
		}
		text := field + " must be " + kindOf(wrong.Type)
		if kind, _, _ := strings.Cut(wrong.Value, " "); kind != "" { // "number 7.5"
			text += ", not " + article(kind)
		}
		return unprocessable(text)
	}
	return refuse(http.StatusBadRequest, "Invalid JSON: "+strings.TrimPrefix(err.Error(), "json: "))
}

// wrongType is the error of a type that reads its own JSON. Package json adds the field's name.
func wrongType[T any]() error { return &json.UnmarshalTypeError{Type: reflect.TypeFor[T]()} }

// kindOf is what a request must have for a type.
func kindOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[names]():
		return "a list of strings"
	case reflect.TypeFor[oneOrMore]():
		return "a string or a list of strings"
	case reflect.TypeFor[customData]():
		return "an object, or a string that holds one"
	case reflect.TypeFor[instant]():
		return "a time such as 2026-01-31T12:00:00Z"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	default:
		return "an object"
	}
}

// article is a kind of JSON value in a sentence.
func article(kind string) string {
	switch kind {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	}
	return "a " + kind
}

// names is a list of strings. Some clients write an empty object for an empty list.
type names []string

// UnmarshalJSON reads either.
func (n *names) UnmarshalJSON(text []byte) error {
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) == nil && len(object) == 0 {
		*n = names{}
		return nil
	}
	if json.Unmarshal(text, (*[]string)(n)) != nil {
		return wrongType[names]()
	}
	return nil
}

// oneOrMore is a string or a list of strings.
type oneOrMore []string

// UnmarshalJSON reads either.
func (o *oneOrMore) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*o = nil
		if one != "" {
			*o = oneOrMore{one}
		}
		return nil
	}
	if json.Unmarshal(text, (*[]string)(o)) != nil {
		return wrongType[oneOrMore]()
	}
	return nil
}

// number is a number, quoted or not.
type number float64

// UnmarshalJSON reads either.
func (n *number) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseFloat(strings.Trim(string(text), `"`), 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return wrongType[number]()
	}
	*n = number(value)
	return nil
}

// customData is an object, or a string that holds one.
type customData struct{ object json.RawMessage }

// UnmarshalJSON reads either.
func (c *customData) UnmarshalJSON(text []byte) error {
	var inner string
	if json.Unmarshal(text, &inner) == nil {
		if text = []byte(inner); inner == "" {
			text = []byte("{}")
		}
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		return wrongType[customData]()
	}
	c.object = slices.Clone(text)
	return nil
}

// instant is a time in RFC 3339.
type instant struct{ time.Time }

// UnmarshalJSON reads it.
func (i *instant) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &i.Time) != nil {
		return wrongType[instant]()
	}
	return nil
}

// pointer is nil for nil.
func (i *instant) pointer() *time.Time {
	if i == nil {
		return nil
	}
	return &i.Time
}
