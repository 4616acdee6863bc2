package daemon_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/provider/builtin"
)

// TestARefusedStartLeavesTheFleetAsItIs: all control planes follow the newest policy (rule 10), so
// one that does not start sets none, and brings no provider back.
func TestARefusedStartLeavesTheFleetAsItIs(t *testing.T) {
	t.Parallel()
	fleets := settings(t)
	restart(t, fleets)
	managed(t, fleets.Database.Path)
	before := shared(t, fleets.Database.Path)
	if before.number == 0 || len(before.providers) != 2 { // that of managed
		t.Fatalf("%+v", before)
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for name, test := range map[string]struct {
		config  func() config.Config
		refusal string
	}{
		"no key":       {func() config.Config { return joining(t, fleets, "ssh_key") }, "ssh_key is missing, and no other is made"},
		"no authority": {func() config.Config { return joining(t, fleets, "agent-ca.pem") }, "agent-ca.pem is missing, and no other is made"},
		"another authority": {func() config.Config {
			c := joining(t, fleets)
			take(t, filepath.Join(c.Dir, "agent-ca.pem"))
			other := settings(t)
			restart(t, other)
			if err := os.Rename(filepath.Join(other.Dir, "agent-ca.pem"), filepath.Join(c.Dir, "agent-ca.pem")); err != nil {
				t.Fatal(err)
			}
			return c
		}, "agent-ca.pem is another authority than "},
		"no token of a provider": {func() config.Config {
			c := joining(t, fleets)
			c.Providers = append(c.Providers, equinix("cloud", nowhere))
			return c
		}, "provider cloud: token_file: "},
		"a provider's name is taken": {func() config.Config {
			c := joining(t, fleets)
			token := filepath.Join(c.Dir, "token")
			if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Providers[len(c.Providers)-1] = equinix("rack", token)
			return c
		}, "provider rack is of kind static in the database, not equinix: "},
		"no key of the agent API": {func() config.Config {
			c := joining(t, fleets)
			c.AgentAPI.TLS.Certificate, c.AgentAPI.TLS.Key = filepath.Join(fleets.Dir, "agent-server.pem"), nowhere
			return c
		}, "with key " + nowhere},
		"no key of the operator API": {func() config.Config {
			c := joining(t, fleets)
			c.OperatorAPI.TLS.Certificate, c.OperatorAPI.TLS.Key = filepath.Join(fleets.Dir, "operator-server.pem"), nowhere
			return c
		}, "with key " + nowhere},
		"the tokens of operators are everybody's": {func() config.Config {
			c := joining(t, fleets)
			if err := os.WriteFile(c.OperatorAPI.TokensFile, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(c.OperatorAPI.TokensFile, 0o644); err != nil {
				t.Fatal(err)
			}
			return c
		}, "operator_api.tokens_file: "},
	} {
		d, err := daemon.Open(t.Context(), test.config(), daemon.Options{})
		if err == nil {
			t.Fatal(name, "opened", d.Close())
		}
		if !strings.Contains(err.Error(), test.refusal) {
			t.Errorf("%s: %v", name, err)
		}
		if after := shared(t, fleets.Database.Path); !reflect.DeepEqual(after, before) {
			t.Errorf("%s: the fleet has %+v, before %+v", name, after, before)
			before = after
		}
	}
}

// TestAStartTellsThatItReplacesThePolicy, once.
func TestAStartTellsThatItReplacesThePolicy(t *testing.T) {
	t.Parallel()
	fleets := settings(t)
	restart(t, fleets)
	managed(t, fleets.Database.Path)
	before := shared(t, fleets.Database.Path)
	c := joining(t, fleets)
	const told = `msg="another policy takes the place of the newest one" policy=`
	for start := range 2 {
		var log bytes.Buffer
		d, err := daemon.Open(t.Context(), c, daemon.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), told); n != 1-start {
			t.Errorf("start %d: told %d times: %s", start, n, &log)
		}
	}
	after := shared(t, fleets.Database.Path)
	if after.silentAfter != c.Policy.SilentAfter || after.number <= before.number || len(after.providers) != 3 {
		t.Errorf("after a start that is not refused: %+v", after)
	}
}

// joining is a control plane of the fleet that has another policy, and a provider that the database
// does not know. It lacks some of the files that it has in common with the others.
func joining(t *testing.T, fleets config.Config, without ...string) config.Config {
	t.Helper()
	c := settings(t)
	c.Database = fleets.Database
	c.Policy.SilentAfter += time.Minute
	forgotten := config.NewProvider("forgotten", builtin.Static)
	forgotten.Static.Path = filepath.Join(filepath.Dir(c.Dir), "others.yaml")
	if err := os.WriteFile(forgotten.Static.Path, []byte("hosts: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Providers = append([]config.Provider{forgotten}, c.Providers...)
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ssh_key", "agent-ca.pem"} {
		content, err := os.ReadFile(filepath.Join(fleets.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(c.Dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range without {
		take(t, filepath.Join(c.Dir, name))
	}
	return c
}

// TestAFirstStartThatIsRefused leaves an empty database with the default policy and no provider.
// The next one is as the first.
func TestAFirstStartThatIsRefused(t *testing.T) {
	t.Parallel()
	c := settings(t)
	c.Policy.SilentAfter += time.Minute
	token := filepath.Join(filepath.Dir(c.Dir), "token")
	c.Providers = append(c.Providers, equinix("cloud", token))
	d, err := daemon.Open(t.Context(), c, daemon.Options{})
	if err == nil {
		t.Fatal("opened", d.Close())
	}
	if !strings.Contains(err.Error(), "provider cloud: token_file: ") {
		t.Error(err)
	}
	if left := shared(t, c.Database.Path); left.silentAfter != config.Default().Policy.SilentAfter || len(left.providers) != 0 {
		t.Errorf("it leaves %+v", left)
	}
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restart(t, c)
	if now := shared(t, c.Database.Path); now.silentAfter != c.Policy.SilentAfter || len(now.providers) != 2 {
		t.Errorf("after a start that is not refused: %+v", now)
	}
}

// equinix returns a provider that asks for a token when it is opened.
func equinix(name, tokenFile string) config.Provider {
	p := config.NewProvider(name, builtin.Equinix)
	p.Equinix.TokenFile, p.Equinix.Project = tokenFile, "5f8a2b1c-0d3e-4f6a-8b7c-9d0e1f2a3b4c"
	p.Equinix.SSHKeyLabel, p.Equinix.DevicePrefix, p.Equinix.OperatingSystem = "ironherd", "herd-", "debian_13"
	return p
}

// common is what a start sets for all control planes of a fleet.
type common struct {
	number      int64
	silentAfter time.Duration
	providers   []string
}

// shared returns what an embedded database has of it.
func shared(t *testing.T, path string) common {
	t.Helper()
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, path, sqlite.Options{}), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	env, err := db.Environment(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	providers, err := db.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	c := common{number: env.Policy.Number, silentAfter: env.Policy.SilentAfter}
	for _, p := range providers {
		c.providers = append(c.providers, string(p.Name))
	}
	return c
}
