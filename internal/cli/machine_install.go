package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// installOptions are the flags of machine install.
type installOptions struct {
	image, digest, compression, rootDisk, firstBoot string
	size                                            int64
	reinstall, wait                                 bool
}

func (a *app) machineInstallCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install MACHINE...",
		Short: "Have an operating system installed",
		Long: `Install records that an operating system is wanted on machines. The agent of each fetches the image, checks its digest while
writing it, and restarts the machine; it counts as installed when the installed system has said that it is up.`,
		Example: `  ironherd machine install herd-0007 --image https://images.example/debian.raw.zst --digest sha256:… --wait
  ironherd machine install herd-0007 herd-0008 --image http://… --digest sha256:… --root-disk smallest,min-size=200000000000
  ironherd machine install herd-0007 --image … --digest … --root-disk serial=S4EVNX0R123456 --reinstall`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeMachines,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.image, "image", "", "URL of the image, http or https, without user and password (required)")
	flags.StringVar(&o.digest, "digest", "", "digest of the raw image: sha256:<64 hexadecimal digits> (required)")
	flags.StringVar(&o.compression, "compression", "", "none, zstd, gzip or xz (default: by the end of the URL)")
	flags.Int64Var(&o.size, "size", 0, "size of the raw image in bytes, for progress in percent")
	flags.StringVar(&o.rootDisk, "root-disk", "smallest", "disk to write: smallest, largest, serial=…, wwn=…, min-size=BYTES; joined by commas")
	flags.StringVar(&o.firstBoot, "first-boot", "", "file whose content the installed system finds on its first boot, at most 64 KiB")
	flags.BoolVar(&o.reinstall, "reinstall", false, "allow an install over a running installed operating system")
	flags.BoolVar(&o.wait, "wait", false, "wait until the machines are installed")
	timeout := timeoutFlag(cmd, 0, timeoutUsage+" (default: 30s without --wait, no limit with it)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := o.request()
		if err != nil {
			return err
		}
		limit := *timeout
		if limit == 0 && !o.wait {
			limit = defaultTimeout
		}
		return a.ask(cmd, limit, func(ctx context.Context, client fleetClient) error {
			return a.install(ctx, client, args, request, o.wait)
		})
	}
	return cmd
}

// install requests all installs before it waits for any, so that they run side by side.
func (a *app) install(ctx context.Context, client fleetClient, machines []string, wanted *fleetv1.InstallMachineRequest, wait bool) error {
	generations := map[string]int64{}
	ask := func(ctx context.Context, machine string) error {
		request := &fleetv1.InstallMachineRequest{
			Machine: machine, Image: wanted.GetImage(), RootDisk: wanted.GetRootDisk(),
			FirstBootData: wanted.GetFirstBootData(), Reinstall: wanted.GetReinstall(),
		}
		response, err := client.InstallMachine(ctx, request)
		if err != nil {
			return err
		}
		generations[machine] = response.GetInstallGeneration()
		a.note("%s: install generation %d is wanted", machine, generations[machine])
		return nil
	}
	asked := a.forEach(ctx, machines, ask)
	if !wait || len(generations) == 0 {
		return asked
	}
	var begun []string
	for _, m := range machines {
		if _, ok := generations[m]; ok {
			begun = append(begun, m)
		}
	}
	err := a.forEach(ctx, begun, func(ctx context.Context, machine string) error {
		return a.waitInstalled(ctx, client, machine, generations[machine])
	})
	if err == nil || asked == nil {
		return errors.Join(asked, err)
	}
	return partly{errSilent}
}

// pollInterval is how often a waiting command asks.
const pollInterval = 500 * time.Millisecond

// waitInstalled polls the machine until that install generation, or a later one, is up. It prints
// every change.
func (a *app) waitInstalled(ctx context.Context, client fleetClient, machine string, generation int64) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	told := ""
	for {
		response, err := client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: machine})
		if err != nil {
			return a.waitEnded(ctx, machine, told, err)
		}
		m := response.GetMachine()
		now := m.GetState()
		if p := response.GetInstallProgress(); p != nil {
			now += ", " + progress(p)
		} else if m.GetReason() != "" {
			now += ": " + m.GetReason()
		}
		if now != told {
			a.note("%s: %s", machine, clean(now))
			told = now
		}
		switch fleet.State(m.GetState()) {
		case fleet.StateInstalled:
			if m.GetInstallGeneration() >= generation {
				return nil
			}
		case fleet.StateFailed, fleet.StateMissing, fleet.StateUnreadable, fleet.StateQuarantined:
			return fleet.Errorf(fleet.KindConflict, "machine %s cannot be installed: it is %s (%s)", machine, m.GetState(), m.GetReason())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return a.waitEnded(ctx, machine, told, context.Cause(ctx))
		}
	}
}

func (a *app) waitEnded(ctx context.Context, machine, last string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		a.note("%s: the install goes on; see ironherd machine explain %s", machine, machine)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fleet.Errorf(fleet.KindTimeout, "machine %s was not installed in time; it is %s. The install goes on: see ironherd machine explain %s",
			machine, cmp.Or(last, "not known how far it is"), machine)
	}
	return err
}

// imageFlags and diskFlags are what the command line calls the fields of an image and of a disk
// selector.
var (
	imageFlags = map[string]string{"url": "--image", "digest": "--digest", "compression": "--compression", "size": "--size"}
	diskFlags  = map[string]string{"serial": "--root-disk: serial", "wwn": "--root-disk: wwn", "min_size": "--root-disk: min-size", "pick": "--root-disk"}
)

// request checks the flags, all of them, and makes the request without a machine.
func (o installOptions) request() (*fleetv1.InstallMachineRequest, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	image := fleet.Image{URL: o.image, Digest: o.digest, Compression: fleet.Compression(o.compression), Size: o.size}
	if image.Compression == "" {
		image.Compression = compressionOf(o.image)
	}
	for _, f := range image.Validate() {
		fault("%s %s", imageFlags[f.Field], f.Problem)
	}
	disk, err := parseRootDisk(o.rootDisk)
	if err != nil {
		faults = append(faults, err)
	}
	for _, f := range disk.Validate() {
		fault("%s %s", diskFlags[f.Field], f.Problem)
	}
	var data []byte
	if o.firstBoot != "" {
		data, err = os.ReadFile(o.firstBoot)
		if err != nil {
			fault("first-boot file %s cannot be read: %w", o.firstBoot, pathCause(err))
		} else if len(data) > fleet.MaxFirstBootData {
			fault("first-boot file %s has %d bytes: at most %d are possible", o.firstBoot, len(data), fleet.MaxFirstBootData)
		}
	}
	if len(faults) > 0 {
		return nil, joinFaults(faults)
	}
	return &fleetv1.InstallMachineRequest{
		Image:         &agentv1.Image{Url: image.URL, Digest: image.Digest, Compression: compressions[image.Compression], Size: image.Size},
		RootDisk:      &agentv1.DiskSelector{Serial: disk.Serial, Wwn: disk.WWN, MinSize: disk.MinSize, Pick: picks[disk.Pick]},
		FirstBootData: data, Reinstall: o.reinstall,
	}, nil
}

var compressions = map[fleet.Compression]agentv1.Compression{
	fleet.CompressionNone: agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionZstd: agentv1.Compression_COMPRESSION_ZSTD,
	fleet.CompressionGzip: agentv1.Compression_COMPRESSION_GZIP,
	fleet.CompressionXZ:   agentv1.Compression_COMPRESSION_XZ,
}

var picks = map[fleet.Pick]agentv1.DiskSelector_Pick{
	fleet.PickOnly:     agentv1.DiskSelector_PICK_UNSPECIFIED,
	fleet.PickSmallest: agentv1.DiskSelector_PICK_SMALLEST,
	fleet.PickLargest:  agentv1.DiskSelector_PICK_LARGEST,
}

// compressionOf returns the compression that the end of an image's URL stands for.
func compressionOf(url string) fleet.Compression {
	switch path, _, _ := strings.Cut(url, "?"); {
	case strings.HasSuffix(path, ".zst"), strings.HasSuffix(path, ".zstd"):
		return fleet.CompressionZstd
	case strings.HasSuffix(path, ".gz"):
		return fleet.CompressionGzip
	case strings.HasSuffix(path, ".xz"):
		return fleet.CompressionXZ
	}
	return fleet.CompressionNone
}

func parseRootDisk(text string) (fleet.DiskSelector, error) {
	var disk fleet.DiskSelector
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case key == "smallest" && value == "":
			disk.Pick = fleet.PickSmallest
		case key == "largest" && value == "":
			disk.Pick = fleet.PickLargest
		case key == "serial" && value != "":
			disk.Serial = value
		case key == "wwn" && value != "":
			disk.WWN = value
		case key == "min-size":
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return disk, fleet.Errorf(fleet.KindInvalid, "--root-disk: min-size must be a number of bytes, not %q", value)
			}
			disk.MinSize = size
		default:
			return disk, fleet.Errorf(fleet.KindInvalid,
				"--root-disk: %q is none of smallest, largest, serial=…, wwn=… and min-size=BYTES", part)
		}
	}
	return disk, nil
}

// joinFaults returns one error of kind Invalid that names every fault of a command line.
func joinFaults(faults []error) error {
	if len(faults) == 1 {
		return faults[0]
	}
	return fleet.Errorf(fleet.KindInvalid, "%w", fmt.Errorf("%d things are wrong: %w", len(faults), faultList(faults)))
}

type faultList []error

func (j faultList) Error() string {
	parts := make([]string, len(j))
	for i, e := range j {
		parts[i] = e.Error()
	}
	return strings.Join(parts, "; ")
}
