package main

import (
	"fmt"
	"strings"
)

// document is README.md, beside the patches.
func document(all []mutant) string {
	var b strings.Builder
	b.WriteString(`# Planted faults, and the tests that catch them

A test that cannot fail proves nothing. Each fault below is a patch in [patches](patches). ` + "`make mutants`" + ` plants one after the
other, and demands that every test named beside it fails. Rules (1–12) and invariants (I1–I12) are those of
[docs/invariants.md](../../docs/invariants.md); a rule in words is what the package of that name promises. ` + "`make generate`" + ` makes this page from the patches.

| patch | rule | fault | caught by |
|---|---|---|---|
`)
	for _, m := range all {
		tests := make([]string, len(m.tests))
		for i, t := range m.tests {
			tests[i] = "`" + strings.ReplaceAll(t, "|", "\\|") + "`"
		}
		fmt.Fprintf(&b, "| [%s](patches/%s.patch) | %s | %s | %s |\n", m.name, m.name, m.rule, m.fault, strings.Join(tests, "<br>"))
	}
	return b.String()
}
