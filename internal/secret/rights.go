package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

// groupReads is the right of a group to read a file.
const groupReads = 0o040

// private refuses a regular file that others may read.
func private(path string, info fs.FileInfo) error {
	others := fs.FileMode(0o077)
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid == 0 {
		others &^= groupReads
	}
	if mode := info.Mode(); mode.IsRegular() && mode.Perm()&others != 0 {
		return fleet.Errorf(fleet.KindInvalid, "%s is open to others (mode %04o): replace the secret if they may have read it, then %s",
			path, mode.Perm(), remedy(path, info))
	}
	return nil
}

// unopened returns the error of a file that cannot be opened, and how to mend it where its owner
// and its mode are the cause.
func unopened(path string, err error) error {
	fault := Unreadable(path, err)
	if !errors.Is(err, fs.ErrPermission) {
		return fault
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || mayRead(info) {
		return fault
	}
	return fleet.Errorf(fleet.KindInvalid, "%w: %s", fault, remedy(path, info))
}

// remedy returns the command, and who calls it, after which this process may read a file and no
// stranger may; where others may have it for themselves, what to do instead. A file of root's that
// a group of the process may read stays one.
func remedy(path string, info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	me, caller := os.Geteuid(), "as root "
	if !ok || me == 0 || int(stat.Uid) == me {
		caller = ""
	}
	switch {
	case byGroup(info) && (me == 0 || inGroup(stat.Gid)):
		return fmt.Sprintf("%s`chmod 640 %s`", caller, shell.Word(path))
	case caller == "":
		return fmt.Sprintf("`chmod 600 %s`", shell.Word(path))
	case byGroup(info):
		return fmt.Sprintf("put %s into its group, %s, and close it to others, or give %[1]s a copy", nameOf(me), groupOf(stat.Gid))
	case stat.Uid != 0:
		return fmt.Sprintf("it is %s's: give %s a copy", nameOf(int(stat.Uid)), nameOf(me))
	}
	return fmt.Sprintf("%s`%s`", caller, giveTo(me, path))
}

func giveTo(user int, path string) string {
	return fmt.Sprintf("chown %s %s && chmod 600 %[2]s", nameOf(user), shell.Word(path))
}

// byGroup reports whether a file is root's for a group.
func byGroup(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid == 0 && stat.Gid != 0 && info.Mode()&groupReads != 0
}

// GiveToOwner returns the command after which the owner of a directory can read a file of root's,
// where root alone can and calls this; "" in all other cases. That of a group may be readable:
// which groups a service has, its unit may say.
func GiveToOwner(dir, path string) string {
	file, err := os.Stat(path)
	if err != nil {
		return ""
	}
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	stat, ok := file.Sys().(*syscall.Stat_t)
	owner, okay := info.Sys().(*syscall.Stat_t)
	if !ok || !okay || os.Geteuid() != 0 || owner.Uid == 0 || stat.Uid != 0 || byGroup(file) {
		return ""
	}
	return giveTo(int(owner.Uid), path)
}

// mayRead reports whether mode and owner of a file let this process read it.
func mayRead(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || os.Geteuid() == 0:
		return true
	case int(stat.Uid) == os.Geteuid():
		return info.Mode()&0o400 != 0
	case inGroup(stat.Gid):
		return info.Mode()&groupReads != 0
	}
	return info.Mode()&0o004 != 0
}

func inGroup(group uint32) bool {
	groups, _ := os.Getgroups()
	return os.Getegid() == int(group) || slices.Contains(groups, int(group))
}

// isUser reports whether this host knows a user of that number.
func isUser(id uint32) bool {
	_, err := user.LookupId(strconv.Itoa(int(id)))
	return err == nil
}

// groupOf returns the name of a group, or the number of one that has none here.
func groupOf(id uint32) string {
	number := strconv.Itoa(int(id))
	if found, err := user.LookupGroupId(number); err == nil {
		return found.Name
	}
	return number
}

// nameOf returns the name of a user, or the number of one that has none here.
func nameOf(id int) string {
	number := strconv.Itoa(id)
	if found, err := user.LookupId(number); err == nil {
		return found.Username
	}
	return number
}
