package arch_test

import (
	"go/ast"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPublicPackagesNameNothingInternal: another module can name every type that it meets in a
// package which it may import, and `go doc` shows what the type has.
func TestPublicPackagesNameNothingInternal(t *testing.T) {
	t.Parallel()
	public := 0
	for _, s := range sources(t) {
		if s.test || s.pkg != "reconciler" && !strings.HasPrefix(s.pkg, "reconciler/") {
			continue
		}
		public++
		internal := s.internalNames(t)
		for _, d := range s.file.Decls {
			if kind := internalKind.FindString(documentation(d)); kind != "" && len(exported(d)) > 0 {
				t.Errorf("%s: the comment names %s, which is internal: package failure has its public name", s.set.Position(d.Pos()), kind)
			}
			for _, node := range exported(d) {
				ast.Inspect(node, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && internal[x.Name] {
							t.Errorf("%s: %s.%s is internal, and exported here", s.set.Position(n.Pos()), x.Name, sel.Sel.Name)
						}
					}
					return true
				})
			}
		}
	}
	if public < 20 {
		t.Errorf("only %d files of public packages were found", public)
	}
}

// internalKind is how internal packages name a kind of error.
var internalKind = regexp.MustCompile(`\bKind[A-Z]\w*`)

// documentation returns the comment that stands above a declaration.
func documentation(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc.Text()
	case *ast.GenDecl:
		return d.Doc.Text()
	}
	return ""
}

// internalNames returns the names by which a file calls the internal packages that it imports.
func (s source) internalNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, spec := range s.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(p, module+"internal/") {
			continue
		}
		if spec.Name != nil {
			names[spec.Name.Name] = true
		} else {
			names[path.Base(p)] = true
		}
	}
	return names
}

// exported returns what another package sees of a declaration: types, without unexported fields and
// methods, and signatures.
func exported(d ast.Decl) (seen []ast.Node) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && (d.Recv == nil || receiverIsExported(d.Recv)) {
			seen = append(seen, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() {
					seen = append(seen, visible(spec.Type)...)
				}
			case *ast.ValueSpec:
				if spec.Names[0].IsExported() && spec.Type != nil {
					seen = append(seen, spec.Type)
				}
			}
		}
	}
	return seen
}

// visible returns the exported parts of a type.
func visible(of ast.Expr) []ast.Node {
	structure, ok := of.(*ast.StructType)
	if !ok {
		return []ast.Node{of}
	}
	var seen []ast.Node
	for _, f := range structure.Fields.List {
		if len(f.Names) == 0 || f.Names[0].IsExported() {
			seen = append(seen, f.Type)
		}
	}
	return seen
}

func receiverIsExported(receiver *ast.FieldList) bool {
	of := receiver.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if index, ok := of.(*ast.IndexExpr); ok {
		of = index.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}
