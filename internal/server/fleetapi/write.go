package fleetapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/fleet"
)

// InstallMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) InstallMachine(ctx context.Context, req *fleetv1.InstallMachineRequest) (*fleetv1.InstallMachineResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceInstallMachineProcedure, func(ctx context.Context, actor string) (*fleetv1.InstallMachineResponse, error) {
		wanted, err := s.installOf(req)
		if err != nil {
			return nil, err
		}
		id, err := s.resolve(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		if err := s.suits(ctx, id, wanted.Image); err != nil {
			return nil, err
		}
		generation, err := s.db.RequestInstall(ctx, actor, id, wanted, req.GetReinstall())
		if err != nil {
			return nil, err
		}
		return &fleetv1.InstallMachineResponse{InstallGeneration: int64(generation), Caveat: wanted.Caveat("--seen-up ssh")}, nil
	})
}

// RetryMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) RetryMachine(ctx context.Context, req *fleetv1.RetryMachineRequest) (*fleetv1.RetryMachineResponse, error) {
	return answer(ctx, s, fleetv1connect.FleetServiceRetryMachineProcedure, func(ctx context.Context, actor string) (*fleetv1.RetryMachineResponse, error) {
		var process fleet.Process
		if req.GetProcess() != "" {
			var err error
			if process, err = fleet.ParseProcess(req.GetProcess()); err != nil {
				return nil, err
			}
			if process.OfProvider() {
				return nil, fleet.Errorf(fleet.KindInvalid, "%s is not a process of a machine: use one of %s", process, fleet.Names(fleet.MachineProcesses()))
			}
		}
		id, err := s.resolve(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		forgotten, err := s.db.Retry(ctx, actor, id, process)
		if err != nil {
			return nil, err
		}
		return &fleetv1.RetryMachineResponse{Processes: fleet.Strings(forgotten)}, nil
	})
}

var compressions = map[agentv1.Compression]fleet.Compression{
	agentv1.Compression_COMPRESSION_UNSPECIFIED: "",
	agentv1.Compression_COMPRESSION_NONE:        fleet.CompressionNone,
	agentv1.Compression_COMPRESSION_ZSTD:        fleet.CompressionZstd,
	agentv1.Compression_COMPRESSION_GZIP:        fleet.CompressionGzip,
	agentv1.Compression_COMPRESSION_LAYER:       fleet.CompressionLayer,
	agentv1.Compression_COMPRESSION_XZ:          fleet.CompressionXZ,
}

var picks = map[agentv1.DiskSelector_Pick]fleet.Pick{
	agentv1.DiskSelector_PICK_UNSPECIFIED: fleet.PickOnly,
	agentv1.DiskSelector_PICK_SMALLEST:    fleet.PickSmallest,
	agentv1.DiskSelector_PICK_LARGEST:     fleet.PickLargest,
}

// valueOf returns the fleet's word for an enum's value. A value that this build does not know stays
// as it is written, so that Validate refuses it by name.
func valueOf[E interface {
	comparable
	fmt.Stringer
}, V ~string](words map[E]V, e E,
) V {
	if word, ok := words[e]; ok {
		return word
	}
	return V(e.String())
}

var firstBootForms = map[agentv1.FirstBootForm]fleet.FirstBootForm{
	agentv1.FirstBootForm_FIRST_BOOT_FORM_UNSPECIFIED:       fleet.FirstBootArea,
	agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD:           fleet.FirstBootNoCloud,
	agentv1.FirstBootForm_FIRST_BOOT_FORM_NOCLOUD_USER_DATA: fleet.FirstBootNoCloudUserData,
}

// imageOf returns the image that a request names, by name or by URL and digest, and what is wrong
// with it.
func (s *Service) imageOf(req *fleetv1.InstallMachineRequest) (image fleet.Image, faults []error) {
	if name := req.GetImageName(); name != "" {
		if req.GetImage() != nil {
			return image, []error{errors.New("image and image_name contradict each other: set one of them")}
		}
		image, err := s.namedImage(name)
		if err != nil {
			return image, []error{err}
		}
		return image, nil
	}
	asked := req.GetImage()
	image = fleet.Image{
		URL: asked.GetUrl(), Digest: asked.GetDigest(), FileDigest: asked.GetFileDigest(), Compression: valueOf(compressions, asked.GetCompression()), Size: asked.GetSize(),
		FirstBoot: valueOf(firstBootForms, asked.GetFirstBootForm()), Architecture: fleet.Architecture(asked.GetArchitecture()),
	}
	for _, f := range image.Validate() {
		faults = append(faults, fmt.Errorf("image.%s %s", f.Field, f.Problem))
	}
	return image, faults
}

// suits refuses an image that is for another architecture than the machine has, as far as its
// hardware report says. Its agent refuses it, too, but by then the system that it had may have
// ended for nothing.
func (s *Service) suits(ctx context.Context, id fleet.MachineID, image fleet.Image) error {
	if image.Architecture == fleet.ArchitectureUnknown {
		return nil
	}
	encoded, err := s.db.HardwareReport(ctx, id)
	if err != nil && fleet.KindOf(err) != fleet.KindNotFound {
		return err
	}
	var report agentv1.HardwareReport
	unreadable := proto.Unmarshal(encoded, &report) // then its agent decides
	if has := report.GetSystem().GetArchitecture(); unreadable == nil && has != "" && has != string(image.Architecture) {
		return fleet.Errorf(fleet.KindConflict, "the image is for %s, and machine %s is %s by its hardware report: choose an image for %s", image.Architecture, id, has, has)
	}
	return nil
}

// namedImage returns an image of the catalogue.
func (s *Service) namedImage(name string) (fleet.Image, error) {
	known := each(s.options.Images, func(i fleet.Image) string { return i.Name })
	if i := slices.Index(known, name); i >= 0 {
		return s.options.Images[i], nil
	}
	if len(known) == 0 {
		return fleet.Image{}, fleet.Errorf(fleet.KindInvalid, "no image is named %.80q: this control plane has no images in its configuration", name)
	}
	return fleet.Image{}, fleet.Errorf(fleet.KindInvalid, "no image is named %.80q: this control plane knows %s", name, strings.Join(known, ", "))
}

// seenUpFields are what the API calls the fields of how a system is seen.
var seenUpFields = map[string]string{"seen_up": "seen_up", "ca": "seen_up_ca", "watch": "watch"}

// installOf reads the request. Its error names everything that is wrong with it.
func (s *Service) installOf(req *fleetv1.InstallMachineRequest) (fleet.InstallRequest, error) {
	disk := req.GetRootDisk()
	image, faults := s.imageOf(req)
	image.Kexec = req.GetKexec()
	wanted := fleet.InstallRequest{
		Image: image,
		RootDisk: fleet.DiskSelector{
			Serial: disk.GetSerial(), WWN: disk.GetWwn(), Model: disk.GetModel(), MinSize: disk.GetMinSize(), Pick: valueOf(picks, disk.GetPick()),
			Erase: disk.GetErase(), Grow: disk.GetGrow(),
		},
		FirstBootData: req.GetFirstBootData(),
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, f := range wanted.RootDisk.Validate() {
		fault("root_disk.%s %s", f.Field, f.Problem)
	}
	wanted.SeenUp = fleet.ParseSeenUp(req.GetSeenUp())
	wanted.SeenUp.CA, wanted.SeenUp.Watch = req.GetSeenUpCa(), req.GetWatch()
	for _, f := range wanted.SeenUp.Validate() {
		fault("%s %s", seenUpFields[f.Field], f.Problem)
	}
	authorities := wanted.SeenUp.Authorities()
	if len(authorities) > 0 && !slices.ContainsFunc(authorities, func(c *x509.Certificate) bool { return c.NotAfter.After(time.Now()) }) {
		fault("seen_up_ca must hold a certificate that has not expired")
	}
	if n := len(wanted.FirstBootData); n > fleet.MaxFirstBootData {
		fault("first_boot_data has %d bytes: at most %d are possible", n, fleet.MaxFirstBootData)
	}
	if len(faults) > 0 {
		return fleet.InstallRequest{}, &fleet.Error{Kind: fleet.KindInvalid, Err: errors.Join(faults...)}
	}
	return wanted, nil
}
