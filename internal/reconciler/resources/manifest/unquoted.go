package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// saying is how a parser's words begin, and ours for it; none: they are the same.
type saying struct{ begin, ours string }

// sayings of the YAML parser. Only what is here can be in a fault: any other words may quote the
// text, and so show the value of a Secret.
var sayings = []saying{
	{"unknown anchor ", "a value begins with * and is not quoted, or names an anchor that is not there"},
	{"anchor ", "a value contains itself by its anchor"},
	{"cannot decode ", "a value is not what its tag says: quote it, if it begins with !"},
	{"!!binary value contains invalid base64 data", ""},
	{"key ", "a key is there twice"},
	{"invalid map key: ", "a key is a map or a list: quote a value that begins with { or ["},
	{"unsupported map key ", "a key is neither text nor a number"},
	{"json: unsupported value: ", "a number is infinite, or none: quote .inf and .nan"},
	{"invalid Yaml document separator: ", "something follows a separator --- on its line: it belongs onto the next one"},
	{"map merge requires map or sequence of maps as the value", ""},
	{"document contains excessive aliasing", ""},
	{"block sequence entries are not allowed in this context", ""},
	{"control characters are not allowed", ""},
	{"could not find expected ':'", ""},
	{"did not find expected '-' indicator", ""},
	{"did not find expected ',' or ']'", ""},
	{"did not find expected ',' or '}'", ""},
	{"did not find expected alphabetic or numeric character", ""},
	{"did not find expected comment or line break", ""},
	{"did not find expected <document start>", ""},
	{"did not find expected key", ""},
	{"did not find expected node content", ""},
	{"did not find expected whitespace or line break", ""},
	{"exceeded max depth", ""},
	{"found a tab character", "a tab where there may be none: indent with spaces"},
	{"found character that cannot start any token", ""},
	{"found undefined tag handle", ""},
	{"found unexpected document indicator", "a quoted value has no end before --- or ..."},
	{"found unexpected end of stream", "a quoted value has no end"},
	{"found unknown escape character", ""},
	{"mapping keys are not allowed in this context", ""},
	{"mapping values are not allowed in this context", ""},
}

// yamlError matches what the YAML parser's errors begin with. The line is of the document, not of
// the file.
var yamlError = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\n  )?(?:(line [0-9]+): )?`)

// unquotedYAML is an error of the YAML parser, without anything of the text.
func unquotedYAML(err error) error {
	head := yamlError.FindStringSubmatch(err.Error())
	said, what := strings.TrimPrefix(err.Error(), head[0]), "it is no valid YAML"
	for _, s := range sayings {
		if !strings.HasPrefix(said, s.begin) {
			continue
		}
		if what = s.ours; what == "" {
			what = s.begin
		}
		break
	}
	if line := head[1]; line != "" {
		return errors.New(line + " of the document: " + what)
	}
	return errors.New(what)
}

// unquotedJSON is an error of the JSON parser, without anything of the text. The line is of the
// file.
func unquotedJSON(err error, text []byte) error {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case errors.As(err, &syntax) && syntax.Offset > 0 && syntax.Offset <= int64(len(text)):
		before := text[:syntax.Offset-1]
		return fmt.Errorf("line %d, byte %d: it is no valid JSON", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
	}
	return errors.New("it is no valid JSON")
}
