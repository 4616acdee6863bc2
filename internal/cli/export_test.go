package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// Commands returns every command as it is typed after "ironherd", the root as "".
func Commands() []string {
	var names []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		names = append(names, strings.TrimSpace(strings.TrimPrefix(c.CommandPath(), "ironherd")))
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk((&app{}).root())
	return names
}
