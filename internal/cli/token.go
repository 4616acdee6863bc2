package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/token"
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Say who may call the operator API over TCP, and what they may do",
		a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

// loadTokensFile returns the name of the configuration's file of tokens. warn tells root when the
// control plane's user cannot read it.
func (a *app) loadTokensFile() (file string, warn func(), err error) {
	loaded, err := a.loadConfig(nil)
	file = loaded.OperatorAPI.TokensFile
	return file, func() {
		if command := secret.GiveToOwner(loaded.Dir, file); command != "" {
			a.note("a control plane that runs as the owner of %s cannot read %s until `%s`", loaded.Dir, file, command)
		}
	}, err
}

// madeToken is what token create prints.
type madeToken struct {
	Name    string    `yaml:"name"`
	Role    string    `yaml:"role"`
	Expires time.Time `yaml:"expires"`
	Token   string    `yaml:"token"`
}

const day = 24 * time.Hour

func (a *app) tokenCreateCommand() *cobra.Command {
	var role string
	var days int
	cmd := &cobra.Command{
		Use:   "create NAME --role ROLE",
		Short: "Make a token and print it, once",
		Long: `Create makes a token and prints it. Only its hash is kept, in operator_api.tokens_file of the configuration, so nobody can show it again.
It counts at once, for a control plane that runs, too. History records the name.

  metrics    may read /metrics
  viewer     may read everything
  operator   may also do everything to machines and providers, but for accepting host keys
  admin      may do everything

Tokens that expired more than 30 days ago go from the file when it has no room left.

As a password in a browser, with any user name, a token may at most read.`,
		Example: `  ironherd token create prometheus --role metrics --days 365
  (umask 077; ironherd token create ada --role operator > ada.token)`,
		Args: exactly,
	}
	cmd.Flags().StringVar(&role, "role", "", "metrics, viewer, operator or admin (required)")
	cmd.Flags().IntVar(&days, "days", 90, "for how many days it counts")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"metrics", "viewer", "operator", "admin"}, cobra.ShellCompDirectiveNoFileComp))
	output := outputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if most := int(token.MaxLife / day); days < 1 || days > most {
			return fleet.Errorf(fleet.KindInvalid, "--days must be from 1 to %d, not %d", most, days)
		}
		if _, err := token.ParseRole(role); err != nil {
			return fleet.Errorf(fleet.KindInvalid, "--role: %w", err)
		}
		file, warn, err := a.loadTokensFile()
		if err != nil {
			return err
		}
		text, made, err := token.Create(file, args[0], token.Role(role), time.Duration(days)*day)
		if err != nil {
			return err
		}
		result := madeToken{Name: made.Name, Role: role, Expires: made.Expires, Token: text}
		if err := a.print(*output, result, func(w *screen) { w.line("%s", text) }); err != nil {
			return err
		}
		a.note("token %s has the role %s and counts until %s, for a control plane that reads %s; it is not shown again",
			made.Name, role, made.Expires.Format(time.RFC3339), file)
		warn()
		return nil
	}
	return cmd
}

// listedToken is a token as token list prints it.
type listedToken struct {
	Name    string    `yaml:"name"`
	Role    string    `yaml:"role"`
	Created time.Time `yaml:"created"`
	Expires time.Time `yaml:"expires"`
	Expired bool      `yaml:"expired"`
}

func (a *app) tokenListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without what would let anybody in",
		Example: `  ironherd token list`,
		Args:    exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		file, _, err := a.loadTokensFile()
		if err != nil {
			return err
		}
		all, err := token.Read(file)
		if err != nil {
			return err
		}
		now := time.Now()
		tokens := make([]listedToken, len(all))
		for i, t := range all {
			tokens[i] = listedToken{Name: t.Name, Role: string(t.Role), Created: t.Created, Expires: t.Expires, Expired: t.Expired(now)}
		}
		return a.print(*output, struct {
			Tokens []listedToken `yaml:"tokens"`
		}{tokens}, func(w *screen) { tokenTable(w, tokens) })
	}
	return cmd
}

func tokenTable(w *screen, tokens []listedToken) {
	if len(tokens) == 0 {
		w.line("No tokens.")
		return
	}
	rows := make([][]string, len(tokens))
	for i, t := range tokens {
		expires := t.Expires.UTC().Format(time.RFC3339)
		if t.Expired {
			expires += " (expired)"
		}
		rows[i] = []string{t.Name, t.Role, t.Created.UTC().Format(time.RFC3339), expires}
	}
	w.table([]string{"NAME", "ROLE", "CREATED", "EXPIRES"}, rows)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Take a token back",
		Long:  `Revoke takes a token out of the file. It does not count from the next call on, for a control plane that runs, too.`,
		Example: `  ironherd token revoke ada
  ironherd token revoke ada -o json`,
		Args: exactly,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		file, warn, err := a.loadTokensFile()
		if err != nil {
			return err
		}
		if err := token.Revoke(file, args[0]); err != nil {
			return err
		}
		warn()
		return a.say(*output, struct {
			Name string `yaml:"name"`
		}{args[0]}, "token %s does not count any more, for a control plane that reads %s", args[0], file)
	}
	return cmd
}
