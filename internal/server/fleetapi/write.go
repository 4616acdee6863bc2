package fleetapi

import (
	"context"
	"errors"
	"net/url"
	"regexp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

const (
	maxFirstBoot = 64 << 10
	maxURL       = 2 << 10
	maxSelector  = 256
)

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// InstallMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) InstallMachine(ctx context.Context, req *fleetv1.InstallMachineRequest) (*fleetv1.InstallMachineResponse, error) {
	return answer(ctx, s, writing, func(ctx context.Context, actor string) (*fleetv1.InstallMachineResponse, error) {
		wanted, err := installOf(req)
		if err != nil {
			return nil, err
		}
		id, err := s.resolve(ctx, req.GetMachine())
		if err != nil {
			return nil, err
		}
		generation, err := s.db.RequestInstall(ctx, actor, id, wanted, req.GetReinstall())
		if err != nil {
			return nil, err
		}
		return &fleetv1.InstallMachineResponse{InstallGeneration: int64(generation)}, nil
	})
}

// RetryMachine implements fleetv1connect.FleetServiceHandler.
func (s *Service) RetryMachine(ctx context.Context, req *fleetv1.RetryMachineRequest) (*fleetv1.RetryMachineResponse, error) {
	return answer(ctx, s, writing, func(ctx context.Context, actor string) (*fleetv1.RetryMachineResponse, error) {
		var process fleet.Process
		if req.GetProcess() != "" {
			var err error
			if process, err = fleet.ParseProcess(req.GetProcess()); err != nil {
				return nil, err
			}
			if process.OfProvider() {
				return nil, fleet.Errorf(fleet.KindInvalid, "%s is not a process of a machine: use one of %s", process, join(fleet.MachineProcesses()))
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
		return &fleetv1.RetryMachineResponse{Processes: each(forgotten, func(p fleet.Process) string { return string(p) })}, nil
	})
}

var compressions = map[agentv1.Compression]fleet.Compression{
	agentv1.Compression_COMPRESSION_NONE: fleet.CompressionNone,
	agentv1.Compression_COMPRESSION_ZSTD: fleet.CompressionZstd,
	agentv1.Compression_COMPRESSION_GZIP: fleet.CompressionGzip,
	agentv1.Compression_COMPRESSION_XZ:   fleet.CompressionXZ,
}

var picks = map[agentv1.DiskSelector_Pick]fleet.Pick{
	agentv1.DiskSelector_PICK_UNSPECIFIED: fleet.PickOnly,
	agentv1.DiskSelector_PICK_SMALLEST:    fleet.PickSmallest,
	agentv1.DiskSelector_PICK_LARGEST:     fleet.PickLargest,
}

// installOf reads the request; its error names everything that is wrong with it.
func installOf(req *fleetv1.InstallMachineRequest) (fleet.InstallRequest, error) {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
		}
	}
	image, disk := req.GetImage(), req.GetRootDisk()
	compression, known := compressions[image.GetCompression()]
	pick, knownPick := picks[disk.GetPick()]
	check(isImageURL(image.GetUrl()), "image.url must be an http or https URL of at most %d bytes without credentials", maxURL)
	check(digestForm.MatchString(image.GetDigest()), "image.digest must be sha256: and 64 lower-case hexadecimal digits, not %.80q", image.GetDigest())
	check(known, "image.compression must be none, zstd, gzip or xz")
	check(image.GetSize() >= 0, "image.size must not be negative")
	check(knownPick, "root_disk.pick must be smallest, largest or left out")
	check(len(disk.GetSerial()) <= maxSelector && len(disk.GetWwn()) <= maxSelector, "root_disk.serial and root_disk.wwn have at most %d bytes", maxSelector)
	check(disk.GetMinSize() >= 0, "root_disk.min_size must not be negative")
	check(len(req.GetFirstBootData()) <= maxFirstBoot, "first_boot_data has %d bytes; at most %d are possible", len(req.GetFirstBootData()), maxFirstBoot)
	if len(faults) > 0 {
		return fleet.InstallRequest{}, &fleet.Error{Kind: fleet.KindInvalid, Err: errors.Join(faults...)}
	}
	return fleet.InstallRequest{
		Image:         fleet.Image{URL: image.GetUrl(), Digest: image.GetDigest(), Compression: compression, Size: image.GetSize()},
		RootDisk:      fleet.DiskSelector{Serial: disk.GetSerial(), WWN: disk.GetWwn(), MinSize: disk.GetMinSize(), Pick: pick},
		FirstBootData: req.GetFirstBootData(),
	}, nil
}

func isImageURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && len(s) <= maxURL && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}
