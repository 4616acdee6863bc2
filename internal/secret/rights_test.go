package secret_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/ironherd/ironherd/internal/secret"
)

// The user and the groups of the process that TestHelperChecks is.
const processUser, processGroup, secondGroup = 4242, 4243, 4244

// TestHelperChecks is no test, but a process of somebody else's that checks a file.
func TestHelperChecks(*testing.T) {
	path := os.Getenv("IRONHERD_TEST_CHECK")
	if path == "" {
		return
	}
	if err := secret.Check(path); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
	os.Exit(0)
}

// checkAs returns what secret.Check says to a process of that user; "" when nothing.
func checkAs(t *testing.T, user, group uint32, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestHelperChecks$")
	cmd.Env = []string{"IRONHERD_TEST_CHECK=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: group, Groups: []uint32{secondGroup}}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestCommandsLetTheProcessRead does what the sentence says: the process can read the file
// afterwards, and nobody else can who could not before.
func TestCommandsLetTheProcessRead(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("only root can give a file to somebody else: run this test as root")
	}
	command := regexp.MustCompile("`([^`]+)`")
	for name, test := range map[string]struct {
		file    rights
		process uint32
		says    string
		want    rights
	}{
		"root's, open to all":           {rights{0, 0, 0o644}, processUser, "then as root `chown 4242 FILE && chmod 600 FILE`", rights{processUser, 0, 0o600}},
		"root's, for a group and all":   {rights{0, processGroup, 0o644}, processUser, "then as root `chmod 640 FILE`", rights{0, processGroup, 0o640}},
		"root's, for a second group":    {rights{0, secondGroup, 0o664}, processUser, "then as root `chmod 640 FILE`", rights{0, secondGroup, 0o640}},
		"root's, for a strange group":   {rights{0, 4444, 0o644}, processUser, "then put 4242 into its group, 4444, and close it to others, or give 4242 a copy", rights{0, 4444, 0o644}},
		"root's, closed to strangers":   {rights{0, 4444, 0o640}, processUser, "denied: put 4242 into its group, 4444, and close it to others, or give 4242 a copy", rights{0, 4444, 0o640}},
		"somebody's alone":              {rights{4444, 4444, 0o600}, processUser, "denied: it is 4444's: give 4242 a copy", rights{4444, 4444, 0o600}},
		"root's alone":                  {rights{0, 0, 0o600}, processUser, "permission denied: as root `chown 4242 FILE && chmod 600 FILE`", rights{processUser, 0, 0o600}},
		"root's, closed to its group":   {rights{0, processGroup, 0o600}, processUser, "as root `chown 4242 FILE && chmod 600 FILE`", rights{processUser, processGroup, 0o600}},
		"somebody's, open to all":       {rights{4444, processGroup, 0o644}, processUser, "then it is 4444's: give 4242 a copy", rights{4444, processGroup, 0o644}},
		"its own, open to all":          {rights{processUser, processGroup, 0o644}, processUser, "then `chmod 600 FILE`", rights{processUser, processGroup, 0o600}},
		"its own, closed to itself":     {rights{processUser, processGroup, 0o200}, processUser, "denied: `chmod 600 FILE`", rights{processUser, processGroup, 0o600}},
		"root's, to root":               {rights{0, 0, 0o644}, 0, "then `chmod 600 FILE`", rights{0, 0, 0o600}},
		"root's for a group, to root":   {rights{0, processGroup, 0o644}, 0, "then `chmod 640 FILE`", rights{0, processGroup, 0o640}},
		"root's, not the group's":       {rights{0, processGroup, 0o604}, 0, "then `chmod 600 FILE`", rights{0, processGroup, 0o600}},
		"somebody's, open, to root":     {rights{4444, processGroup, 0o644}, 0, "then `chmod 600 FILE`", rights{4444, processGroup, 0o600}},
		"root's for a group, in itself": {rights{0, processGroup, 0o640}, processUser, "", rights{0, processGroup, 0o640}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "token")
			if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.WriteFile(path, []byte("hunter2"), 0o600),
				os.Chown(path, test.file.user, test.file.group), os.Chmod(path, test.file.mode)); err != nil {
				t.Fatal(err)
			}
			group := uint32(processGroup)
			if test.process == 0 {
				group = 0
			}
			said := checkAs(t, test.process, group, path)
			if !strings.Contains(said, strings.ReplaceAll(test.says, "FILE", path)) || (said == "") != (test.says == "") {
				t.Errorf("it says %q", said)
			}
			found := command.FindStringSubmatch(said)
			if found != nil {
				if out, err := exec.CommandContext(t.Context(), "sh", "-c", found[1]).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", found[1], err, out)
				}
			}
			if said := checkAs(t, test.process, group, path); found != nil && said != "" {
				t.Errorf("and afterwards %q", said)
			}
			if got := rightsOf(t, path); got != test.want {
				t.Errorf("it is %+v, not %+v", got, test.want)
			}
		})
	}
}
