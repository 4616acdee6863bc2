package equinix

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/remote"
)

// firstBoot runs Debian's cloud-init as the first boot of a device would: in a root of its own over
// this system's, with the keys that an image brings, and with our user data.
const firstBoot = `set -eu
exec 2>&1
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
for d in dev run tmp; do mkdir -p /mnt/root/$d; mount -t tmpfs none /mnt/root/$d; done
for n in null zero urandom; do : >/mnt/root/dev/$n; mount --bind /dev/$n /mnt/root/dev/$n; done
mkdir /mnt/root/run/outside && mount --bind "$OUTSIDE" /mnt/root/run/outside
mkdir /mnt/root/run/packages && mount --bind "$PACKAGES" /mnt/root/run/packages
mount -t proc none /mnt/root/proc
exec chroot /mnt/root sh -s
`

const cloudInit = `set -eu
export DEBIAN_FRONTEND=noninteractive
printf 'exit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
dpkg --install /run/packages/*.deb >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; exit 1; }
rm -rf /etc/ssh/ssh_host_* /var/lib/cloud
for kind in rsa ecdsa ed25519; do ssh-keygen -q -t $kind -N '' -C image -f /etc/ssh/ssh_host_${kind}_key; done
seed=/var/lib/cloud/seed/nocloud
mkdir -p $seed && cp /run/outside/user-data $seed/ && echo 'instance-id: device-1' >$seed/meta-data
echo 'datasource_list: [NoCloud]' >/etc/cloud/cloud.cfg.d/99_source.cfg
cloud-init init --local && cloud-init init
echo "== keys"; ls /etc/ssh | grep ssh_host_
echo "== public"; cat /etc/ssh/ssh_host_ed25519_key.pub
echo "== private"; ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key
`

// TestCloudInitBringsTheHostKey runs the real cloud-init, because what it does with a key of a
// slightly other form is not written anywhere: it would make keys that nobody expects.
func TestCloudInitBringsTheHostKey(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("a root directory of one's own needs root: run this test as root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	packages := cloudInitPackages(ctx, t)
	key, private, err := remote.NewKey("")
	if err != nil {
		t.Fatal(err)
	}
	public := strings.TrimSpace(key.Public())
	dir := t.TempDir()
	text := sentUserData(t, true, provider.NewHostKey(public, key.Fingerprint(), string(private)))
	if err := os.WriteFile(filepath.Join(dir, "user-data"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", firstBoot)
	run.Stdin = strings.NewReader(cloudInit)
	run.Env = []string{"OUTSIDE=" + dir, "PACKAGES=" + packages, "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v (the packages are in %s; remove it to have them fetched again)\n%s", err, packages, out)
	}
	found := map[string]string{}
	for part := range strings.SplitSeq(string(out), "== ") {
		name, said, _ := strings.Cut(part, "\n")
		found[name] = strings.TrimSpace(said)
	}
	if found["keys"] != "ssh_host_ed25519_key\nssh_host_ed25519_key.pub" || found["public"] != public || found["private"] != public {
		t.Errorf("the device has %q; want only the key %s; cloud-init:\n%s", found, public, out)
	}
}

// cloudInitPackages returns a directory with Debian's cloud-init and what it needs besides this
// system. They are fetched once, and kept in the user's cache directory.
func cloudInitPackages(ctx context.Context, t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "ironherd", "cloud-init")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	fresh := dir + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(filepath.Join(fresh, "partial"), 0o700)); err != nil {
		t.Fatal(err)
	}
	fetch := []string{
		"--yes", "--quiet", "--no-install-recommends", "--download-only", "--reinstall",
		"-o", "Dir::Cache::archives=" + fresh, "-o", "APT::Sandbox::User=root", "install", "cloud-init",
	}
	out, err := exec.CommandContext(ctx, "apt-get", fetch...).CombinedOutput()
	if err != nil { // the lists of packages may be old, or missing
		update, _ := exec.CommandContext(ctx, "apt-get", "--quiet", "update").CombinedOutput()
		out, err = exec.CommandContext(ctx, "apt-get", fetch...).CombinedOutput()
		out = append(update, out...)
	}
	if err != nil {
		t.Fatalf("fetch the packages of cloud-init: %v\n%s", err, out)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(fresh, "partial")), os.Remove(filepath.Join(fresh, "lock")), os.Rename(fresh, dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}
