package secret_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/secret"
)

// rights are whose a file is, and who may do what with it.
type rights struct {
	user, group int
	mode        os.FileMode
}

func rightsOf(t *testing.T, path string) rights {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner")
	}
	return rights{int(stat.Uid), int(stat.Gid), info.Mode()}
}

// TestWriteKeepsRights: whoever could read the file that root replaces can read the new one, and
// nobody else can.
func TestWriteKeepsRights(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can give a file to somebody else: run this test as root")
	}
	const service, group, other = 4242, 4343, 4444
	const known = 1 // daemon
	for name, test := range map[string]struct {
		directory int
		old       *rights
		want      rights
	}{
		"none, in root's directory":         {0, nil, rights{0, 0, 0o600}},
		"none, in the service's":            {service, nil, rights{service, service, 0o600}},
		"root's alone, in root's":           {0, &rights{0, 0, 0o600}, rights{0, 0, 0o600}},
		"root's alone, in the service's":    {service, &rights{0, 0, 0o600}, rights{service, service, 0o600}},
		"root's for a group, in root's":     {0, &rights{0, group, 0o640}, rights{0, group, 0o640}},
		"root's for a group, elsewhere":     {other, &rights{0, group, 0o640}, rights{0, group, 0o640}},
		"root's, open to all":               {0, &rights{0, group, 0o666}, rights{0, group, 0o640}},
		"the service's, in root's":          {0, &rights{known, group, 0o600}, rights{known, group, 0o600}},
		"the service's, elsewhere":          {other, &rights{known, group, 0o600}, rights{known, group, 0o600}},
		"of another host's number":          {service, &rights{other, other, 0o600}, rights{service, service, 0o600}},
		"of a number without a name":        {0, &rights{other, other, 0o600}, rights{other, other, 0o600}},
		"root's for its own group":          {service, &rights{0, 0, 0o640}, rights{service, service, 0o600}},
		"the service's, open to its groups": {0, &rights{known, group, 0o664}, rights{known, group, 0o600}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "token")
		if test.old != nil {
			if err := errors.Join(os.WriteFile(path, []byte("old"), 0o600), os.Chown(path, test.old.user, test.old.group),
				os.Chmod(path, test.old.mode)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(dir, test.directory, test.directory); err != nil {
			t.Fatal(err)
		}
		if err := secret.Write(path, []byte("new"), true); err != nil {
			t.Fatal(err)
		}
		if got := rightsOf(t, path); got != test.want {
			t.Errorf("%s: %+v, not %+v", name, got, test.want)
		}
	}
}
