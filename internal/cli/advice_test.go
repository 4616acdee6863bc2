package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/cli"
)

// filledIn stands in a text for what the program puts there.
const filledIn = "\x01"

// chosen is what a person may put in the place of a word in capitals, where not just any word will
// do.
var chosen = map[string]string{"DIGEST": strings.Repeat("0", 64), "URL": "http://images.example/debian.raw", "ROLE": "viewer"}

// TestCommandsThatArePrintedAreAccepted: a command in backticks, in whatever sentence of the
// program, is accepted as it stands, but for words in capitals, which a person replaces.
func TestCommandsThatArePrintedAreAccepted(t *testing.T) {
	t.Parallel()
	nobody := "unix://" + filepath.Join(t.TempDir(), "nobody.sock")
	refused := func(command string) string {
		args := strings.Fields(command)[1:]
		switch args[0] {
		case "serve", "demo", "sim", "rehearse", "image", "db", "token", "config": // these would begin
			if err := cli.Parse(args); err != nil {
				return err.Error()
			}
			return ""
		}
		if r := run(t, nil, append(args, "--server", nobody)...); r.code == 2 {
			return r.stderr
		}
		return ""
	}
	found := 0
	for at, texts := range printed(t) {
		for _, text := range texts {
			for _, command := range commandsIn(at, text) {
				found++
				var why string
				accepted := slices.ContainsFunc(fillIn(command), func(line string) bool {
					why = refused(line)
					return why == ""
				})
				if !accepted {
					t.Errorf("%s: `%s` is refused: %s", at, strings.ReplaceAll(command, filledIn, "%s"), strings.TrimSpace(why))
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d commands were found", found)
	}
}

// commandsIn returns the commands of a text. What the API has of a next step, and what the page
// shows by itself, is a command without backticks; one that ends in a blank is a beginning.
func commandsIn(at, text string) (commands []string) {
	if strings.Contains(at, "/internal/server/") && strings.HasPrefix(text, "ironherd ") && !strings.Contains(text, "`") {
		if strings.HasSuffix(text, " ") {
			return nil
		}
		return []string{text}
	}
	for _, quoted := range regexp.MustCompile("`(ironherd [^`]*)").FindAllStringSubmatch(text, -1) {
		commands = append(commands, quoted[1])
	}
	return commands
}

// fillIn returns command lines that a command may stand for: where the program fills in which
// command of a group it is, one for each of these but the list, which is of no machine.
func fillIn(command string) (lines []string) {
	// What is filled in after a flag is more flags, or none.
	command = regexp.MustCompile(`(--[a-z-]+)`+filledIn).ReplaceAllString(command, "$1")
	command = regexp.MustCompile(`\b[A-Z]+\b`).ReplaceAllStringFunc(command, func(word string) string {
		if value, known := chosen[word]; known {
			return value
		}
		return "word"
	})
	heads := []string{command}
	if group, rest, ok := strings.Cut(command, " "+filledIn); ok {
		all := cli.Commands()
		for _, name := range all {
			holds := slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(other, name+" ") })
			if strings.HasPrefix("ironherd "+name, group+" ") && !holds && !strings.HasSuffix(name, " list") {
				heads = append(heads, "ironherd "+name+rest)
			}
		}
	}
	for _, line := range heads {
		lines = append(lines, strings.ReplaceAll(line, filledIn, "word"))
	}
	return lines
}

// printed returns the texts of the program, by where they are.
func printed(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	files := token.NewFileSet()
	visit := func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasSuffix(path, "test"):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		var look func(n ast.Node) bool
		look = func(n ast.Node) bool {
			text, others, is := textOf(n)
			if !is {
				return true
			}
			if strings.Contains(text, "ironherd ") {
				at := files.Position(n.Pos()).String()
				all[at] = append(all[at], text)
			}
			for _, other := range others {
				ast.Inspect(other, look)
			}
			return false
		}
		ast.Inspect(file, look)
		return nil
	}
	for _, dir := range []string{"../../internal", "../../cmd"} {
		if err := filepath.WalkDir(dir, visit); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// verbs are what Printf puts something in the place of.
var verbs = regexp.MustCompile(`%[#+]?[.0-9]*[a-z]`)

// textOf returns the text of a string that is written in the source, or put together with +, and
// the expressions that are filled in.
func textOf(n ast.Node) (text string, others []ast.Expr, is bool) {
	switch e := n.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if e.Kind != token.STRING || err != nil {
			return "", nil, false
		}
		return verbs.ReplaceAllStringFunc(text, func(verb string) string {
			if strings.HasSuffix(verb, "d") {
				return "1"
			}
			return filledIn
		}), nil, true
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", nil, false
		}
		for _, part := range []ast.Expr{e.X, e.Y} {
			more, inside, is := textOf(part)
			if !is {
				more, inside = filledIn, []ast.Expr{part}
			}
			text, others = text+more, append(others, inside...)
		}
		return text, others, true
	}
	return "", nil, false
}
