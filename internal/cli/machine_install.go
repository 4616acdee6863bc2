package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
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

// maximumFirstBoot is the contract's limit for first-boot data.
const maximumFirstBoot = 64 << 10

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
	flags.StringVar(&o.image, "image", "", "URL of the image, http or https (required)")
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

// install asks for all installs first, then waits for each: they run side by side.
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
	asked := a.each(ctx, machines, ask)
	if !wait || len(generations) == 0 {
		return asked
	}
	var begun []string
	for _, m := range machines {
		if _, ok := generations[m]; ok {
			begun = append(begun, m)
		}
	}
	err := a.each(ctx, begun, func(ctx context.Context, machine string) error {
		return a.waitInstalled(ctx, client, machine, generations[machine])
	})
	if err == nil || asked == nil {
		return errors.Join(asked, err)
	}
	return partly{errSilent}
}

// pollInterval is how often a waiting command looks.
const pollInterval = 500 * time.Millisecond

// waitInstalled looks at the machine until that install generation (or a later one) is up, telling
// what changes.
func (a *app) waitInstalled(ctx context.Context, client fleetClient, machine string, generation int64) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	told := ""
	for {
		response, err := client.GetMachine(ctx, &fleetv1.GetMachineRequest{Machine: machine})
		if err != nil {
			return waitEnded(ctx, machine, told, err)
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
		case fleet.StateFailed, fleet.StateMissing, fleet.StateQuarantined:
			return fleet.Errorf(fleet.KindConflict, "machine %s cannot be installed: it is %s (%s)", machine, m.GetState(), m.GetReason())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return waitEnded(ctx, machine, told, context.Cause(ctx))
		}
	}
}

func waitEnded(ctx context.Context, machine, last string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fleet.Errorf(fleet.KindTimeout, "machine %s was not installed in time; it is %s. The install goes on: see ironherd machine explain %s",
			machine, firstOf(last, "not known how far it is"), machine)
	}
	return err
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// request checks the flags, all of them, and makes the request without a machine.
func (o installOptions) request() (*fleetv1.InstallMachineRequest, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	if !strings.HasPrefix(o.image, "http://") && !strings.HasPrefix(o.image, "https://") {
		fault("--image must be an http or https URL, not %q", o.image)
	}
	if !digestForm.MatchString(o.digest) {
		fault("--digest must be sha256: and 64 lower-case hexadecimal digits, not %q", o.digest)
	}
	if o.size < 0 {
		fault("--size must not be negative")
	}
	compression, err := parseCompression(o.compression, o.image)
	if err != nil {
		faults = append(faults, err)
	}
	disk, err := parseRootDisk(o.rootDisk)
	if err != nil {
		faults = append(faults, err)
	}
	var data []byte
	if o.firstBoot != "" {
		data, err = os.ReadFile(o.firstBoot)
		if err != nil {
			fault("first-boot file %s cannot be read: %w", o.firstBoot, pathCause(err))
		} else if len(data) > maximumFirstBoot {
			fault("first-boot file %s has %d bytes: at most %d are possible", o.firstBoot, len(data), maximumFirstBoot)
		}
	}
	if len(faults) > 0 {
		return nil, sentences(faults)
	}
	return &fleetv1.InstallMachineRequest{
		Image:    &agentv1.Image{Url: o.image, Digest: o.digest, Compression: compression, Size: o.size},
		RootDisk: disk, FirstBootData: data, Reinstall: o.reinstall,
	}, nil
}

func parseCompression(name, url string) (agentv1.Compression, error) {
	if name == "" {
		switch path, _, _ := strings.Cut(url, "?"); {
		case strings.HasSuffix(path, ".zst"), strings.HasSuffix(path, ".zstd"):
			name = "zstd"
		case strings.HasSuffix(path, ".gz"):
			name = "gzip"
		case strings.HasSuffix(path, ".xz"):
			name = "xz"
		default:
			name = "none"
		}
	}
	value, ok := agentv1.Compression_value["COMPRESSION_"+strings.ToUpper(name)]
	if !ok || value == 0 || name != strings.ToLower(name) {
		return 0, fleet.Errorf(fleet.KindInvalid, "--compression must be none, zstd, gzip or xz, not %q", name)
	}
	return agentv1.Compression(value), nil
}

func parseRootDisk(text string) (*agentv1.DiskSelector, error) {
	disk := &agentv1.DiskSelector{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case key == "smallest" && value == "":
			disk.Pick = agentv1.DiskSelector_PICK_SMALLEST
		case key == "largest" && value == "":
			disk.Pick = agentv1.DiskSelector_PICK_LARGEST
		case key == "serial" && value != "":
			disk.Serial = value
		case key == "wwn" && value != "":
			disk.Wwn = value
		case key == "min-size":
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil || size < 1 {
				return nil, fleet.Errorf(fleet.KindInvalid, "--root-disk: min-size must be a number of bytes, not %q", value)
			}
			disk.MinSize = size
		default:
			return nil, fleet.Errorf(fleet.KindInvalid,
				"--root-disk: %q is none of smallest, largest, serial=…, wwn=… and min-size=BYTES", part)
		}
	}
	return disk, nil
}

// sentences joins faults of one command line into one error of kind Invalid, a line each.
func sentences(faults []error) error {
	if len(faults) == 1 {
		return faults[0]
	}
	return fleet.Errorf(fleet.KindInvalid, "%w", fmt.Errorf("%d things are wrong: %w", len(faults), joined(faults)))
}

type joined []error

func (j joined) Error() string {
	parts := make([]string, len(j))
	for i, e := range j {
		parts[i] = e.Error()
	}
	return strings.Join(parts, "; ")
}
