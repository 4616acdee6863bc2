package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// parse reads the options of a command, each of which has a value: --name VALUE or --name=VALUE,
// with one dash or two. The package flag would do it as well, and costs the agent 20 KiB.
func parse(command string, args []string, options map[string]func(value string) error) error {
	for len(args) > 0 {
		option, value, has := strings.Cut(args[0], "=")
		args = args[1:]
		name := strings.TrimPrefix(strings.TrimPrefix(option, "-"), "-")
		set := options[name]
		switch {
		case name == option:
			return fmt.Errorf("%s takes no argument %q", command, option)
		case set == nil:
			return fmt.Errorf("%s has no option %s", command, option)
		case !has && len(args) == 0:
			return fmt.Errorf("%s needs a value", option)
		case !has:
			value, args = args[0], args[1:]
		}
		if err := set(value); err != nil {
			return fmt.Errorf("%s cannot be %q: %w", option, value, err)
		}
	}
	return nil
}

// text and number are options that set a variable.
func text(to *string) func(string) error {
	return func(value string) error {
		*to = value
		return nil
	}
}

func number(to *int) func(string) error {
	return func(value string) (err error) {
		*to, err = strconv.Atoi(value)
		return err
	}
}
