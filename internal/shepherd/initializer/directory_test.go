package initializer

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
)

// refusingHost has directories into which nothing can be put.
type refusingHost struct {
	Host
	notRoot string
}

func (refusingHost) Choose(_ context.Context, contents ...*remote.Content) (*remote.Content, error) {
	return contents[0], nil
}

func (h refusingHost) Upload(_ context.Context, content *remote.Content, base string, _ fs.FileMode) (remote.Uploaded, error) {
	directory := path.Dir(base)
	if strings.HasPrefix(directory, "/good") {
		return remote.Uploaded{Path: content.Path(base)}, nil
	}
	return remote.Uploaded{}, &remote.DirectoryError{
		Directory: directory, NotRoot: h.notRoot, Err: fleet.Errorf(fleet.KindForbidden, "%s cannot be made: %s", directory, strings.Repeat("x", 150)),
	}
}

// TestWhereNoDirectoryWillDo the cause says what can be done about it, which for a user who is not
// root is not another directory.
func TestWhereNoDirectoryWillDo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(file, []byte("#!agent\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent, err := remote.ReadContent(file)
	if err != nil {
		t.Fatal(err)
	}
	const directory, user = "name another in initializer.other_target_paths", "user admin (uid 1000) has not root's rights, and sudo is never used"
	for name, test := range map[string]struct {
		others         []string
		notRoot        string
		says, saysNone string
	}{
		"root":                    {[]string{"/b", "/c"}, "", directory, user},
		"another user":            {[]string{"/b", "/c"}, "user admin (uid 1000)", user, directory},
		"root, one directory":     {nil, "", "/a cannot be made", user},
		"another, one directory":  {nil, "user admin (uid 1000)", user, directory},
		"another, and one is his": {[]string{"/good"}, "user admin (uid 1000)", "", user},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Initializer{config: Config{TargetPath: "/a", OtherTargetPaths: test.others}, agents: []*remote.Content{agent}}
			err := i.withAgent(t.Context(), refusingHost{notRoot: test.notRoot}, slog.New(slog.DiscardHandler), func(string) error { return nil })
			if (err != nil) != (test.says != "") {
				t.Fatal(err)
			}
			if err == nil {
				return
			}
			// No more than this much of a cause is kept.
			if shown := err.Error()[:min(500, len(err.Error()))]; test.notRoot != "" && !strings.Contains(shown, test.says) {
				t.Errorf("it does not say %q: %v", test.says, shown)
			}
			if !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), test.saysNone) {
				t.Errorf("it should say %q, and not %q: %v", test.says, test.saysNone, err)
			}
		})
	}
}
