package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite"
	"github.com/ironherd/ironherd/internal/bmdb/sqlite/sqlitetest"
)

// TestTextThatIsNoUTF8IsPrinted: JSON cannot have it as it is, and YAML can.
func TestTextThatIsNoUTF8IsPrinted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"agent": "an agent",
		"ironherd.yaml": "dir: state\nagent_api: {listen: '127.0.0.1:0', endpoint: 'herd.example:1'}\n" +
			"initializer: {agent_executable: agent}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "ironherd.yaml")
	made := filepath.Join(dir, "state", "ironherd.db")
	if err := os.Mkdir(filepath.Dir(made), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bmdb.Open(t.Context(), sqlitetest.Open(t, made, sqlite.Options{}), bmdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, format := range []struct {
		name, made, told string
		parse            func([]byte, any) error
	}{
		// Latin-1, and long enough for the encoding of it in YAML to have several lines.
		{
			"json", "aus der Zeit vor der Umstellung auf UTF-8 \xfcbrig gebliebene Sich\xe9rung.db",
			"aus der Zeit vor der Umstellung auf UTF-8 \ufffdbrig gebliebene Sich\ufffdrung.db", json.Unmarshal,
		},
		{"yaml", "Sich\xe9rung.db", "Sich\xe9rung.db", yaml.Unmarshal},
	} {
		r := run(t, nil, "db", "backup", filepath.Join(dir, format.made), "--config", file, "-o", format.name)
		var told struct{ Backup string }
		if err := format.parse([]byte(r.stdout), &told); err != nil || r.code != 0 || told.Backup != filepath.Join(dir, format.told) {
			t.Errorf("%s: %d, %q, %v: %q", format.name, r.code, r.stderr, err, r.stdout)
		}
	}
}
