package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

// installOptions are the flags of machine install.
type installOptions struct {
	image, digest, fileDigest, compression, rootDisk, firstBoot string
	size                                                        int64
	reinstall, erase, grow, noCloud, kexec, wait                bool
	cancel, watch, userDataOnly                                 bool
	seenUp, seenUpCA, architecture                              string
}

func (a *app) machineInstallCommand() *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install " + whichMachines,
		Short: "Have an operating system installed, or call that off",
		Long: `Install records that an operating system is wanted on machines. The agent of each fetches the image, checks its digest while
writing it, and restarts the machine; it counts as installed when the installed system has said that it is up. With --kexec, an agent that took
the machine over by kexec starts the kernel of the installed system itself: the firmware, which takes minutes on many servers, does not run.

With --seen-up, the control plane asks instead: by SSH, where the system must own the host key that the install brings (cloud-init and images of
ironherd image build take it), or by a GET of an http or https URL, whose host is only a name: the connection goes to the machine's own address,
and {address} in the place of the host stands for it. With --watch it goes on asking, or the system goes on saying that it is up.

The image is one that the control plane knows by name (see ironherd image list), or a URL with a digest: of the raw image, of the file as it is
served (which publishers give), or both; an oci URL has one. A disk that holds something is only written with --erase, unless that is the newest
install of this machine. The system that a machine has booted from is such a thing: a first install wants --erase, and what the disk holds is
lost. All attempts write the same disk; name it by serial number or WWN where the machine has several of one size. USB and
network disks are written only by name.

With --reinstall, what is on the disk is destroyed: a plan is shown first, see ironherd plan confirm, or give --yes. With --cancel, the install
that was asked for last is called off: the agent is told to stop, if it has begun. As soon as anything was written, what the disk holds is
undefined; machine explain says which it is. A reinstall that wrote nothing brings the installed system back. Calling off the install of one
machine is done at once all the same: the writing is to stop now.
Both want --reason, and can select machines by --provider, --state, --location and --label.`,
		Example: `  ironherd machine install herd-0007 --image debian-13 --grow --erase --wait
  ironherd machine install herd-0007 --image https://images.example/debian.raw.zst --digest sha256:… --erase --wait
  ironherd machine install herd-0007 --image https://images.example/debian.raw.xz --file-digest sha512:… --erase --wait
  ironherd machine install herd-0007 herd-0008 --image http://… --digest sha256:… --root-disk smallest,min-size=200000000000 --erase
  ironherd machine install herd-0007 --image … --digest … --root-disk serial=S4EVNX0R123456 --reinstall --reason "new release"
  ironherd machine install herd-0007 --image debian-13 --erase --seen-up ssh --watch --wait
  ironherd machine install herd-0007 --image debian-13 --erase --seen-up http://{address}:8080/healthz
  ironherd machine install herd-0007 herd-0008 --image debian-13 --erase -o json
  ironherd machine install herd-0007 --cancel --reason "the wrong image"`,
		ValidArgsFunction: a.completeMachines,
	}
	flags := cmd.Flags()
	o.addImageFlags(flags)
	flags.StringVar(&o.rootDisk, "root-disk", "smallest", "disk to write: smallest, largest, serial=…, wwn=…, model=…, min-size=BYTES; joined by commas")
	flags.StringVar(&o.firstBoot, "first-boot", "", "file whose content the installed system finds on its first boot, at most 64 KiB")
	flags.BoolVar(&o.erase, "erase", false, "allow a disk that holds something: a partition table, a file system, a member of a RAID")
	flags.BoolVar(&o.grow, "grow", false, "let the last partition of the image have the whole disk")
	flags.BoolVar(&o.kexec, "kexec", false, "start the installed system by kexec, without the firmware; where that is not possible, the machine is restarted")
	flags.StringVar(&o.seenUp, "seen-up", "unit", "what shows that the installed system is up: unit (it calls in), ssh, or an http or https URL that answers")
	flags.StringVar(&o.seenUpCA, "seen-up-ca", "", "file of the certificates, in PEM form, that an https URL of --seen-up is verified by (default: the public roots)")
	flags.BoolVar(&o.watch, "watch", false, "go on after the system has come up as --seen-up says; a machine that does not answer any more is shown as unreachable, and left alone")
	flags.BoolVar(&o.reinstall, "reinstall", false, "install over whatever the machines have, by a plan")
	flags.BoolVar(&o.cancel, "cancel", false, "call off the install that was asked for")
	flags.BoolVar(&o.wait, "wait", false, "wait until the machines are installed")
	f := a.verbFlags(cmd, true)
	flags.Lookup("reason").Usage = "why, for history and everybody who asks (required with --reinstall and --cancel)"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.reinstall || o.cancel {
			f.wait = o.wait
			return a.reinstallOrCancel(cmd, o, f, args)
		}
		if len(args) == 0 {
			return fleet.Errorf(fleet.KindInvalid, "name the machines to install")
		}
		if f.reason != "" || f.yes || f.selects() {
			return fleet.Errorf(fleet.KindInvalid, "--reason, --yes, --provider, --state, --location, --label, --limit and --after belong to --reinstall and --cancel")
		}
		request, err := o.request()
		if err != nil {
			return err
		}
		limit := *f.timeout
		if limit == 0 && !o.wait {
			limit = confirmTimeout
		}
		return a.ask(cmd, limit, func(ctx context.Context, client fleetClient) error {
			return a.install(ctx, client, args, request, f, o.wait)
		})
	}
	return cmd
}

// addImageFlags adds those that describe the image.
func (o *installOptions) addImageFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.image, "image", "", "name of an image, or its URL: http, https or oci, without user and password (required)")
	flags.StringVar(&o.digest, "digest", "", "digest of the raw image: sha256:<64 hexadecimal digits> (with a URL, this or --file-digest is required)")
	flags.StringVar(&o.fileDigest, "file-digest", "", "digest of the file as it is served: sha256:<64 hexadecimal digits> or sha512:<128>")
	flags.StringVar(&o.compression, "compression", "", "none, zstd, gzip, xz, or layer: as the manifest of an oci URL says (default: by the end of the URL; layer with oci)")
	flags.Int64Var(&o.size, "size", 0, "size of the raw image in bytes, where it is known: an image of another size fails the install, no smaller disk is chosen, and progress is told in percent")
	flags.StringVar(&o.architecture, "architecture", "", "what the image is for, amd64 or arm64: no machine of another one is written (with a URL; a named image says it itself)")
	flags.BoolVar(&o.noCloud, "nocloud", false, "give the first-boot file to cloud-init, as user-data of NoCloud, with the machine's name and static addresses (with a URL; a named image says it itself)")
	flags.BoolVar(&o.userDataOnly, "nocloud-user-data", false, "the same as --nocloud, without name and addresses")
}

// installFlags say what is to be installed.
var installFlags = []string{
	"reinstall", "image", "digest", "file-digest", "compression", "size", "architecture", "root-disk", "first-boot", "nocloud", "nocloud-user-data", "erase", "grow", "kexec", "seen-up",
	"seen-up-ca", "watch",
}

// reinstallOrCancel makes the plan of one of the two.
func (a *app) reinstallOrCancel(cmd *cobra.Command, o installOptions, f *verbFlags, machines []string) error {
	if o.cancel {
		for _, name := range installFlags {
			if cmd.Flags().Changed(name) {
				return fleet.Errorf(fleet.KindInvalid, "--cancel and --%s contradict each other: an install is called off without asking for another one", name)
			}
		}
		if o.wait {
			return fleet.Errorf(fleet.KindInvalid, "--cancel has nothing to --wait for: ironherd machine explain says when the agent has stopped")
		}
		request, err := f.request(fleet.VerbCancelInstall, machines)
		if err != nil {
			return err
		}
		return a.carryOut(cmd, request, f)
	}
	install, err := o.request()
	if err != nil {
		return err
	}
	request, err := f.request(fleet.VerbReinstall, machines)
	if err != nil {
		return err
	}
	request.Install = install
	return a.carryOut(cmd, request, f)
}

// wantedInstalls is what machine install prints.
type wantedInstalls struct {
	Machines []wantedInstall `yaml:"machines"`
}

type wantedInstall struct {
	Machine    string `yaml:"machine"`
	Generation int64  `yaml:"installGeneration"`
}

// install requests all installs, and prints each, before it waits for any: they run side by side.
func (a *app) install(ctx context.Context, client fleetClient, machines []string, wanted *fleetv1.InstallMachineRequest, f *verbFlags, wait bool) error {
	var begun wantedInstalls
	caveat := ""
	missed := forEach(ctx, a, machines, asTyped, func(ctx context.Context, machine string) error {
		request := proto.CloneOf(wanted)
		request.Machine = machine
		bounded, cancel := withTimeout(ctx, f.answerWithin())
		defer cancel()
		response, err := client.InstallMachine(bounded, request)
		if err != nil {
			return err
		}
		caveat = response.GetCaveat() // that of all: they are asked for the same
		begun.Machines = append(begun.Machines, wantedInstall{machine, response.GetInstallGeneration()})
		return a.sayOne(*f.output, "%s: install generation %d is wanted", machine, response.GetInstallGeneration())
	})
	a.noteCaveat(caveat)
	if len(begun.Machines) == 0 {
		return missed
	}
	if err := a.inFull(*f.output, begun); err != nil || !wait {
		return cmp.Or(err, missed)
	}
	var pending []*awaited
	for _, m := range begun.Machines {
		pending = append(pending, a.comesUp(ctx, m.Machine, m.Machine, m.Generation, len(begun.Machines) == 1))
	}
	return afterWaiting(ctx, missed, a.await(ctx, client, pending, len(pending)))
}

// noteCaveat tells what may keep an install from being seen as up.
func (a *app) noteCaveat(caveat string) {
	if caveat != "" {
		a.note("Mind that %s.", caveat)
	}
}

// comesUp awaits that install generation, or a later one, to be up on the machine of that ID. It
// calls the machine by its name. How far the image is written is told of one that is alone: of
// many, it would hide what becomes of them.
func (a *app) comesUp(ctx context.Context, id, machine string, generation int64, alone bool) *awaited {
	look := func(response *fleetv1.GetMachineResponse) (now string, done bool, err error) {
		m := response.GetMachine()
		now = m.GetState()
		if p := response.GetInstallProgress(); p != nil && alone {
			now += ", " + progress(p)
		} else if m.GetReason() != "" {
			now += ": " + a.asked(m.GetReason())
		}
		if response.GetInstalledGeneration() >= generation {
			return now, true, nil // it has come up, whatever was done to it since
		}
		switch fleet.State(m.GetState()) {
		case fleet.StateFailed, fleet.StateMissing, fleet.StateUnreadable, fleet.StateRefused, fleet.StateQuarantined, fleet.StateReleasing,
			fleet.StateOff:
			return now, false, fleet.Errorf(fleet.KindConflict, "machine %s cannot be installed: it is %s (%s)", machine, m.GetState(), a.asked(m.GetReason()))
		}
		if off := calledOff(response); off != "" && m.GetInstallGeneration() >= generation {
			return now, false, fleet.Errorf(fleet.KindConflict, "machine %s is not installed: %s", machine, a.asked(off))
		}
		return now, false, nil
	}
	return &awaited{id: id, name: machine, look: look, ended: func(last string, err error) error { return a.waitEnded(ctx, id, machine, last, err) }}
}

// calledOff says that nobody wants the newest install any more; "" while somebody does.
func calledOff(r *fleetv1.GetMachineResponse) string {
	for _, d := range r.GetDecisions() {
		if d.GetProcess() == string(fleet.ProcessInstall) && d.GetVerdict() == "not-wanted" {
			return d.GetReason()
		}
	}
	return ""
}

// waitEnded tells that the install goes on without somebody who waits. Commands name the machine by
// its ID, because a host name is foreign text.
func (a *app) waitEnded(ctx context.Context, id, machine, last string, err error) error {
	explain := a.command("machine explain " + id)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		a.note("%s: the install goes on; see `%s`", machine, explain)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fleet.Errorf(fleet.KindTimeout, "machine %s was not installed in time; it is %s. The install goes on: see `%s`",
			machine, cmp.Or(last, "not known how far it is"), explain)
	case kindOf(err) != fleet.KindNotFound:
		return fleet.Errorf(kindOf(err), "%s. The install goes on: see `%s`", whileWaiting(err), explain)
	}
	return err
}

// imageFlags and diskFlags are what the command line calls the fields of an image and of a disk
// selector.
var (
	imageFlags = map[string]string{
		"url": "--image", "digest": "--digest", "file_digest": "--file-digest", "compression": "--compression", "size": "--size", "first_boot": "--nocloud",
		"architecture": "--architecture",
	}
	diskFlags = map[string]string{"serial": "--root-disk: serial", "wwn": "--root-disk: wwn", "model": "--root-disk: model", "min_size": "--root-disk: min-size", "pick": "--root-disk"}
)

// request checks the flags, all of them, and makes the request without a machine.
func (o installOptions) request() (*fleetv1.InstallMachineRequest, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}
	image, name := o.imageMessage(fault)
	disk, err := parseRootDisk(o.rootDisk)
	if err != nil {
		faults = append(faults, err)
	}
	for _, f := range disk.Validate() {
		fault("%s %s", diskFlags[f.Field], f.Problem)
	}
	switch {
	case o.noCloud && o.userDataOnly:
		fault("--nocloud and --nocloud-user-data contradict each other: give one of them")
	case (o.noCloud || o.userDataOnly) && o.firstBoot == "":
		fault("--nocloud says how the file of --first-boot is given: name one")
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
	seenUp := o.seen(fault)
	if len(faults) > 0 {
		return nil, fleet.JoinFaults(faults)
	}
	return &fleetv1.InstallMachineRequest{
		Image: image, ImageName: name,
		RootDisk: &agentv1.DiskSelector{
			Serial: disk.Serial, Wwn: disk.WWN, Model: disk.Model, MinSize: disk.MinSize, Pick: picks[disk.Pick], Erase: o.erase, Grow: o.grow,
		},
		FirstBootData: data, SeenUp: seenUp.String(), SeenUpCa: seenUp.CA, Watch: seenUp.Watch, Kexec: o.kexec,
	}, nil
}

// seenUpFlags are what the command line calls the fields of how a system is seen.
var seenUpFlags = map[string]string{"seen_up": "--seen-up", "ca": "--seen-up-ca", "watch": "--watch"}

// seen returns how the installed system is to be seen.
func (o installOptions) seen(fault func(format string, args ...any)) fleet.SeenUp {
	s := fleet.ParseSeenUp(o.seenUp)
	s.Watch = o.watch
	if o.seenUpCA != "" {
		ca, err := os.ReadFile(o.seenUpCA)
		if err != nil {
			fault("--seen-up-ca: file %s cannot be read: %w", o.seenUpCA, pathCause(err))
			return s
		}
		if s.CA = string(ca); s.CA == "" {
			fault("--seen-up-ca must hold certificates in PEM form: file %s is empty", o.seenUpCA)
		}
	}
	for _, f := range s.Validate() {
		fault("%s %s", seenUpFlags[f.Field], f.Problem)
	}
	return s
}

// imageMessage returns the image that the flags describe, or the name that they give.
func (o installOptions) imageMessage(fault func(format string, args ...any)) (image *agentv1.Image, name string) {
	if o.image == "" {
		fault("--image must be set to the http, https or oci URL of an image, or to the name of one (`ironherd image list`)")
		return nil, ""
	}
	if name, err := fleet.ParseImageName(o.image); err == nil {
		if o.digest != "" || o.fileDigest != "" || o.compression != "" || o.size != 0 || o.architecture != "" || o.noCloud || o.userDataOnly {
			fault("--image %s is a name: --digest, --file-digest, --compression, --size, --architecture and --nocloud are for a URL", name)
		}
		return nil, name
	}
	i := fleet.Image{
		URL: o.image, Digest: o.digest, FileDigest: o.fileDigest, Compression: fleet.Compression(o.compression), Size: o.size,
		Architecture: fleet.Architecture(o.architecture),
	}
	if i.Compression == "" {
		i.Compression = fleet.CompressionOf(o.image)
	}
	for _, f := range i.Validate() {
		fault("%s %s", imageFlags[f.Field], f.Problem)
	}
	image = &agentv1.Image{
		Url: i.URL, Digest: i.Digest, FileDigest: i.FileDigest, Compression: compressions[i.Compression], Size: i.Size, Architecture: string(i.Architecture),
	}
	switch {
	case o.noCloud:
		image.FirstBootForm = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD
	case o.userDataOnly:
		image.FirstBootForm = agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA
	}
	return image, ""
}

var compressions = map[fleet.Compression]agentv1.Compression{
	fleet.CompressionNone:  agentv1.Compression_COMPRESSION_NONE,
	fleet.CompressionZstd:  agentv1.Compression_COMPRESSION_ZSTD,
	fleet.CompressionGzip:  agentv1.Compression_COMPRESSION_GZIP,
	fleet.CompressionXZ:    agentv1.Compression_COMPRESSION_XZ,
	fleet.CompressionLayer: agentv1.Compression_COMPRESSION_LAYER,
}

var picks = map[fleet.Pick]agentv1.DiskSelector_Pick{
	fleet.PickOnly:     agentv1.DiskSelector_PICK_UNSPECIFIED,
	fleet.PickSmallest: agentv1.DiskSelector_PICK_SMALLEST,
	fleet.PickLargest:  agentv1.DiskSelector_PICK_LARGEST,
}

func parseRootDisk(text string) (fleet.DiskSelector, error) {
	var disk fleet.DiskSelector
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if (key == "smallest" || key == "largest") && disk.Pick != "" {
			return disk, fleet.Errorf(fleet.KindInvalid, "--root-disk: %s and %s contradict each other: give one of them", disk.Pick, key)
		}
		switch {
		case key == "smallest" && value == "":
			disk.Pick = fleet.PickSmallest
		case key == "largest" && value == "":
			disk.Pick = fleet.PickLargest
		case key == "serial" && value != "":
			disk.Serial = value
		case key == "wwn" && value != "":
			disk.WWN = value
		case key == "model" && value != "":
			disk.Model = value
		case key == "min-size":
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return disk, fleet.Errorf(fleet.KindInvalid, "--root-disk: min-size must be a number of bytes, not %q", value)
			}
			disk.MinSize = size
		default:
			return disk, fleet.Errorf(fleet.KindInvalid,
				"--root-disk: %q is none of smallest, largest, serial=…, wwn=…, model=… and min-size=BYTES", part)
		}
	}
	return disk, nil
}
