package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/image"
	"github.com/ironherd/ironherd/internal/service"
)

func (a *app) imageCommand() *cobra.Command {
	return group("image", "Look at images of operating systems, and make them",
		a.imageListCommand(), group("build", "Make an image from the packages of a distribution", a.imageBuildDebianCommand()))
}

func (a *app) imageListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the images that the control plane knows by name",
		Long:    `List shows the images of the control plane's configuration (images), which machine install takes by their names.`,
		Example: `  ironherd image list`,
		Args:    exactly,
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, _ []string) (*fleetv1.ListImagesResponse, error) {
		return client.ListImages(ctx, &fleetv1.ListImagesRequest{})
	}, func(w *screen, r *fleetv1.ListImagesResponse) { imageTable(w, r.GetImages()) })
}

func imageTable(w *screen, images []*fleetv1.NamedImage) {
	if len(images) == 0 {
		w.line("The control plane knows no images by name: its configuration has none under images.")
		return
	}
	rows := make([][]string, len(images))
	for i, image := range images {
		size := "-"
		if image.GetSize() > 0 {
			size = fmt.Sprintf("%d MiB", image.GetSize()>>20)
		}
		rows[i] = []string{image.GetName(), size, cmp.Or(image.GetArchitecture(), "-"), image.GetCompression(), image.GetFirstBoot(), namedImage(image).ShortIdentity(), image.GetLocation()}
	}
	w.table([]string{"NAME", "SIZE", "ARCHITECTURE", "COMPRESSION", "FIRST BOOT", "DIGEST", "LOCATION"}, rows)
}

// namedImage returns the image as far as people are told of it.
func namedImage(i *fleetv1.NamedImage) fleet.Image {
	return fleet.Image{URL: i.GetLocation(), Digest: i.GetDigest(), FileDigest: i.GetFileDigest()}
}

// builtImage is what image build prints.
type builtImage struct {
	File     string `yaml:"file"`
	Manifest string `yaml:"manifest"`
	Digest   string `yaml:"digest"`
	// FileDigest is that of the file as it is.
	FileDigest string `yaml:"file_digest"`
	Size       int64  `yaml:"size"`
	FileSize   int64  `yaml:"file_size"`
}

// buildOptions are the flags of image build debian.
type buildOptions struct {
	suite, kernel, hostname, sources, aptConfig, agent, size, timestamp string
	packages, sshKeys                                                   []string
	withoutAgent, quiet                                                 bool
}

func (a *app) imageBuildDebianCommand() *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "debian FILE",
		Short: "Make an image of Debian that boots by UEFI and by BIOS",
		Long: `Build puts Debian's packages together with mmdebstrap, as root, on a Debian host; no container engine is used. The image is for amd64, and for
no other architecture. FILE ends in .raw or in .raw.zst. Beside it lies its manifest, FILE with .json as its end: the digest to install it
by, its size, and every package with its version.

The system gets its addresses by DHCP, writes to the first serial port, too, lets root in with the SSH keys that you name, and tells the
control plane that it is up, for which the agent's executable is in it. Name the control plane's own key, too, ssh_key.pub in its dir: a
reinstall logs in with it. The same packages, options and timestamp give the same image to the byte, unless a package makes something of
its own when it is installed: pin the packages by a snapshot in --sources, and the timestamp by --timestamp or SOURCE_DATE_EPOCH.`,
		Example: `  ironherd image build debian debian-13.raw.zst --ssh-key /var/lib/ironherd/ssh_key.pub --ssh-key ~/.ssh/id_ed25519.pub
  ironherd image build debian web.raw.zst --kernel linux-image-amd64 --package nginx --package firmware-linux-free --size 4096
  ironherd image build debian old.raw.zst --suite bookworm --sources snapshot.sources --timestamp 1763769600`,
		Args: exactly,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.suite, "suite", image.DefaultSuite, "release of Debian")
	flags.StringVar(&o.kernel, "kernel", image.DefaultKernel, "package of the kernel; linux-image-amd64 has the drivers of most hardware")
	flags.StringArrayVar(&o.packages, "package", nil, "further package to install; may be repeated")
	flags.StringArrayVar(&o.sshKeys, "ssh-key", nil, "file of public SSH keys, as authorized_keys is, that may log in as root; may be repeated")
	flags.StringVar(&o.hostname, "hostname", "debian", "host name of the system")
	flags.StringVar(&o.size, "size", "", "size of the disk image in MiB (default: what is needed; an install grows the root partition where it is asked to)")
	flags.StringVar(&o.sources, "sources", "", "file of APT sources to take packages from (default: Debian's own)")
	flags.StringVar(&o.aptConfig, "apt-config", "", "file of APT configuration for the time of the build, such as a proxy")
	flags.StringVar(&o.agent, "agent", "", "the agent's executable for amd64 (default: beside this program ironherd-agent, or ironherd-agent-amd64 where that is for another architecture)")
	flags.BoolVar(&o.withoutAgent, "without-agent", false, "make an image that tells the control plane nothing")
	flags.StringVar(&o.timestamp, "timestamp", "", "time that files are given at most, in seconds since 1970 (default: SOURCE_DATE_EPOCH, else today)")
	flags.BoolVar(&o.quiet, "quiet", false, "do not show what the tools say")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options, err := a.buildOptions(o, args[0])
		if err != nil {
			return err
		}
		ctx, stop := service.UntilHangup(cmd.Context())
		defer stop()
		m, err := image.Build(ctx, options)
		if ctx.Err() != nil && isCancelled(err) {
			return interrupted{err}
		}
		if err != nil {
			return err
		}
		dir := filepath.Dir(args[0])
		result := builtImage{
			File: filepath.Join(dir, m.File), Manifest: filepath.Join(dir, image.ManifestName(m.File)),
			Digest: m.Digest, FileDigest: m.FileDigest, Size: m.Size, FileSize: m.FileSize,
		}
		return a.print(*output, result, func(w *screen) {
			w.line("%s  %s", result.Digest, result.File)
			a.note("%s: %d packages, %d MiB on disk, %d MiB to transfer; see %s", result.File, len(m.Packages), m.Size>>20, m.FileSize>>20, result.Manifest)
		})
	}
	return cmd
}

// buildOptions checks the flags, all of them.
func (a *app) buildOptions(o buildOptions, file string) (image.Options, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	options := image.Options{
		Output: file, Suite: o.suite, Kernel: o.kernel, Packages: o.packages, Hostname: o.hostname, Sources: o.sources, AptConfig: o.aptConfig,
	}
	if !o.quiet {
		options.Log = func(line string) { a.note("%s", line) }
	}
	if o.size != "" {
		mebibytes, err := strconv.ParseInt(o.size, 10, 32)
		if err != nil || mebibytes <= 0 {
			fault("--size must be a number of MiB, not %q", o.size)
		} else {
			options.Size = mebibytes << 20
		}
	}
	name, stamp := "--timestamp", o.timestamp
	if stamp == "" {
		name, stamp = "SOURCE_DATE_EPOCH", a.getenv("SOURCE_DATE_EPOCH")
	}
	if stamp != "" {
		seconds, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			fault("%s must be a number of seconds since 1970, not %q", name, stamp)
		} else {
			options.Timestamp = time.Unix(seconds, 0)
		}
	}
	for _, path := range o.sshKeys {
		keys, err := os.ReadFile(path)
		if err != nil {
			fault("SSH key %s cannot be read: %w", path, pathCause(err))
			continue
		}
		if strings.Contains(string(keys), "PRIVATE KEY") {
			fault("%s holds a private key; an image gets the public one", path)
			continue
		}
		if err := image.CheckKeys(keys); err != nil {
			fault("%s is no file of public SSH keys: %w", path, err)
			continue
		}
		options.AuthorizedKeys = append(options.AuthorizedKeys, strings.TrimRight(string(keys), "\n")+"\n"...)
	}
	if !o.withoutAgent {
		options.Agent = cmp.Or(o.agent, a.imageAgent())
		if _, err := os.Stat(options.Agent); err != nil {
			fault("the agent's executable %s cannot be read: %w (--agent, or --without-agent)", options.Agent, pathCause(err))
		} else if err := image.CheckAgent(options.Agent); err != nil {
			fault("%w (--agent, or --without-agent)", err)
		}
	} else if o.agent != "" {
		fault("--agent and --without-agent contradict each other")
	}
	faults = append(faults, options.Faults()...)
	if len(faults) > 0 {
		return options, fleet.JoinFaults(faults)
	}
	return options, nil
}

// imageAgent returns the agent beside this program that an image gets: its own, or that for amd64
// where its own is of another architecture.
func (a *app) imageAgent() string {
	own := a.agentExecutable()
	if other := own + "-" + image.Architecture; image.CheckAgent(own) != nil && image.CheckAgent(other) == nil {
		return other
	}
	return own
}
