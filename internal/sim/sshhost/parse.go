package sshhost

import (
	"fmt"
	"strings"
)

// command is one simple command and how it is joined to the one before it.
type command struct {
	// join is "", ";", "&&" or "||".
	join      string
	words     []string
	redirects []redirect
}

// redirect sends one stream elsewhere.
type redirect struct {
	// stream is 0, 1 or 2.
	stream int
	// append is set for >>; same for 2>&1 and 1>&2, where target is the other stream's number.
	append, same bool
	target       string
}

// token is a word or an operator.
type token struct {
	text     string
	operator bool
}

// parse reads a command line. What a shell would do and this one does not is an error, never a
// guess.
func parse(line string) ([]command, error) {
	tokens, err := tokenize(line)
	if err != nil {
		return nil, err
	}
	var script []command
	current := command{}
	end := func(join string) error {
		if len(current.words) == 0 {
			if join == ";" && len(current.redirects) == 0 {
				return nil
			}
			return fmt.Errorf("syntax error: a command is missing before %q", join)
		}
		script = append(script, current)
		current = command{join: join}
		return nil
	}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		switch {
		case !t.operator:
			current.words = append(current.words, t.text)
		case t.text == ";" || t.text == "&&" || t.text == "||":
			if err := end(t.text); err != nil {
				return nil, err
			}
		default:
			r, err := parseRedirect(t.text)
			if err != nil {
				return nil, err
			}
			if !r.same {
				if i++; i == len(tokens) || tokens[i].operator {
					return nil, fmt.Errorf("syntax error: %q has no file", t.text)
				}
				r.target = tokens[i].text
			}
			current.redirects = append(current.redirects, r)
		}
	}
	if len(current.words) > 0 {
		return append(script, current), nil
	}
	if current.join == "&&" || current.join == "||" || len(current.redirects) > 0 {
		return nil, fmt.Errorf("syntax error: a command is missing at the end")
	}
	return script, nil
}

func parseRedirect(operator string) (redirect, error) {
	switch operator {
	case "<":
		return redirect{stream: 0}, nil
	case ">", "1>":
		return redirect{stream: 1}, nil
	case ">>", "1>>":
		return redirect{stream: 1, append: true}, nil
	case "2>":
		return redirect{stream: 2}, nil
	case "2>>":
		return redirect{stream: 2, append: true}, nil
	case "2>&1":
		return redirect{stream: 2, same: true, target: "1"}, nil
	case ">&2", "1>&2":
		return redirect{stream: 1, same: true, target: "2"}, nil
	}
	return redirect{}, fmt.Errorf("%q is not supported", operator)
}

// special are the characters that mean something to a shell and nothing to this one.
const special = "|&`$()*?[]{}#~<>"

// operators, the longest first.
var operators = []string{"2>&1", "1>&2", "2>>", "1>>", ">&2", "&&", "||", ">>", "2>", "1>", ">", "<", ";"}

// tokenize cuts a line into words and operators, and takes the quotes off.
func tokenize(line string) ([]token, error) {
	var tokens []token
	for line != "" {
		switch {
		case strings.ContainsRune(" \t\r\n", rune(line[0])):
			if line[0] == '\n' {
				tokens = append(tokens, token{";", true})
			}
			line = line[1:]
			continue
		}
		if op := leadingOperator(line); op != "" {
			tokens = append(tokens, token{op, true})
			line = line[len(op):]
			continue
		}
		word, rest, err := leadingWord(line)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token{word, false})
		line = rest
	}
	return tokens, nil
}

func leadingOperator(line string) string {
	for _, op := range operators {
		if strings.HasPrefix(line, op) {
			return op
		}
	}
	return ""
}

func leadingWord(line string) (word, rest string, err error) {
	var b strings.Builder
	for line != "" {
		c := line[0]
		switch {
		case c == '\'':
			end := strings.IndexByte(line[1:], '\'')
			if end < 0 {
				return "", "", fmt.Errorf("syntax error: unterminated quoted string")
			}
			b.WriteString(line[1 : 1+end])
			line = line[end+2:]
		case c == '"':
			if line, err = doubleQuoted(&b, line[1:]); err != nil {
				return "", "", err
			}
		case c == '\\' && len(line) > 1:
			b.WriteByte(line[1])
			line = line[2:]
		case strings.IndexByte(" \t\r\n;", c) >= 0 || leadingOperator(line) != "" && (c < '0' || c > '9'):
			return b.String(), line, nil
		case strings.IndexByte(special, c) >= 0 && !isBracket(b.Len(), line):
			return "", "", fmt.Errorf("%q is not supported here", c)
		default:
			b.WriteByte(c)
			line = line[1:]
		}
	}
	return b.String(), "", nil
}

// isBracket reports whether a word is nothing but [ or ], as in a test.
func isBracket(length int, line string) bool {
	return length == 0 && (line[0] == '[' || line[0] == ']') && (len(line) == 1 || strings.IndexByte(" \t\r\n;", line[1]) >= 0)
}

// doubleQuoted reads up to the closing quote and returns what follows it.
func doubleQuoted(b *strings.Builder, line string) (string, error) {
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case '"':
			return line[i+1:], nil
		case '`', '$':
			return "", fmt.Errorf("%q is not supported here", c)
		case '\\':
			if i+1 < len(line) && strings.IndexByte("\"\\$`", line[i+1]) >= 0 {
				i++
			}
			b.WriteByte(line[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", fmt.Errorf("syntax error: unterminated quoted string")
}
