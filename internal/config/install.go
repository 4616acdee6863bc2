package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Install is an operating system that every new machine gets.
type Install struct {
	// Image is the name of one of images, in the place of url, digest, file_digest, compression, size
	// and architecture.
	Image string `yaml:"image"`
	// URL of the image, http, https or oci, without user and password.
	URL string `yaml:"url"`
	// Digest of the raw image: sha256: and 64 hexadecimal digits. It may be left out where file_digest
	// is given, and with an oci URL.
	Digest string `yaml:"digest"`
	// FileDigest is the digest of the file as it is served: sha256: and 64 hexadecimal digits, or
	// sha512: and 128. All that are given must match.
	FileDigest string `yaml:"file_digest"`
	// Compression is none, zstd, gzip, xz, or layer: as the manifest of an oci URL says. Default: by
	// the end of the URL; layer for an oci one.
	Compression fleet.Compression `yaml:"compression"`
	// Size of the raw image in bytes; 0: not known. An image of another size fails the install, no
	// smaller disk is chosen, and progress is told in percent.
	Size int64 `yaml:"size"`
	// Architecture that the image is for, amd64 or arm64: no machine of another one is written.
	// Default: it is not known, and an image for another one is written as any other is.
	Architecture fleet.Architecture `yaml:"architecture"`
	// RootDisk picks the disk: all that is set must match; pick (smallest, largest) decides among
	// several.
	RootDisk fleet.DiskSelector `yaml:"root_disk"`
	// FirstBootDataFile has what the installed system finds on its first boot, at most 64 KiB.
	FirstBootDataFile string `yaml:"first_boot_data_file"`
	// SeenUp is what shows that the installed system is up: unit (it calls in), ssh, or an http or
	// https URL that answers. Default: unit.
	SeenUp string `yaml:"seen_up"`
	// SeenUpCAFile has the certificates, in PEM form, that an https URL is verified by. Default: the
	// public roots.
	SeenUpCAFile string `yaml:"seen_up_ca_file"`
	// Watch goes on after the system has come up: it is asked again and again as seen_up says, or its
	// unit goes on calling. A machine that does not answer any more is shown as unreachable, and left
	// alone.
	Watch bool `yaml:"watch"`
	// Kexec starts the installed system by kexec, so that the firmware does not run. Where that is not
	// possible, the machine is restarted.
	Kexec bool `yaml:"kexec"`
}

// readFirstBootData returns the content of the first-boot data file; nil when there is none. An
// error is of kind Invalid.
func (i Install) readFirstBootData() ([]byte, error) {
	if i.FirstBootDataFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(i.FirstBootDataFile)
	switch {
	case err != nil:
		return nil, fleet.Errorf(fleet.KindInvalid, "first_boot_data_file: %w", secret.Unreadable(i.FirstBootDataFile, err))
	case len(data) > fleet.MaxFirstBootData:
		return nil, fleet.Errorf(fleet.KindInvalid, "first_boot_data_file has %d bytes: at most %d are possible", len(data),
			fleet.MaxFirstBootData)
	}
	return data, nil
}

// seenUpKeys are what the configuration calls the fields of how a system is seen.
var seenUpKeys = map[string]string{"seen_up": "seen_up", "ca": "seen_up_ca_file", "watch": "watch"}

// seenUp returns how the installed system is seen. The error, of kind Invalid, names every fault.
func (i Install) seenUp() (fleet.SeenUp, error) {
	s := fleet.ParseSeenUp(i.SeenUp)
	s.Watch = i.Watch
	if i.SeenUpCAFile != "" {
		ca, err := os.ReadFile(i.SeenUpCAFile)
		if err != nil {
			return s, fleet.Errorf(fleet.KindInvalid, "seen_up_ca_file: %w", secret.Unreadable(i.SeenUpCAFile, err))
		}
		if s.CA = string(ca); s.CA == "" {
			return s, fleet.Errorf(fleet.KindInvalid, "seen_up_ca_file must hold certificates in PEM form, and is empty")
		}
	}
	var faults []error
	for _, f := range s.Validate() {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "%s %s", seenUpKeys[f.Field], f.Problem))
	}
	return s, errors.Join(faults...)
}

// image returns the image, found by its name or as it is described.
func (i Install) image(catalogue []fleet.Image) (fleet.Image, error) {
	if i.Image == "" {
		compression := cmp.Or(i.Compression, fleet.CompressionOf(i.URL))
		return fleet.Image{URL: i.URL, Digest: i.Digest, FileDigest: i.FileDigest, Compression: compression, Size: i.Size, Architecture: i.Architecture}, nil
	}
	for _, image := range catalogue {
		if image.Name == i.Image {
			return image, nil
		}
	}
	return fleet.Image{}, fleet.Errorf(fleet.KindInvalid, "image must be the name of one of images, not %q", i.Image)
}

// Request returns the install that is asked for on new machines, with its image found in the
// catalogue and its first-boot data read.
func (i Install) Request(actor string, catalogue []fleet.Image) (*fleet.InstallRequest, error) {
	image, err := i.image(catalogue)
	if err != nil {
		return nil, err
	}
	image.Kexec = i.Kexec
	data, err := i.readFirstBootData()
	if err != nil {
		return nil, err
	}
	seenUp, err := i.seenUp()
	if err != nil {
		return nil, err
	}
	return &fleet.InstallRequest{
		Generation: 1, Actor: actor,
		Image: image, RootDisk: i.RootDisk, FirstBootData: data, SeenUp: seenUp,
	}, nil
}

// Caveats says what may go wrong with a configuration that is right, in one sentence each: with the
// database's address, and of each provider's install what may keep its systems from being seen as
// up.
func (c Config) Caveats() (caveats []string) {
	if caveat := c.Database.Caveat(); caveat != "" {
		caveats = append(caveats, fmt.Sprintf("Mind that %s.", caveat))
	}
	for n, p := range c.Providers {
		if p.Install == nil {
			continue
		}
		image, _ := p.Install.image(c.Catalogue()) // checked
		q := fleet.InstallRequest{Image: image, SeenUp: fleet.ParseSeenUp(p.Install.SeenUp)}
		if caveat := q.Caveat("seen_up: ssh"); caveat != "" {
			caveats = append(caveats, fmt.Sprintf("Of providers[%d].install, mind that %s.", n, caveat))
		}
		s, _ := p.Install.seenUp() // checked
		for _, c := range s.Authorities() {
			if secret.ExpiresSoon(c.NotBefore, c.NotAfter, time.Now()) {
				caveats = append(caveats, fmt.Sprintf("Of providers[%d].install, mind that a certificate of seen_up_ca_file (%s) ends at %s: no system that is verified by it can be asked whether it is up from then on, "+
					"so put the next one into the file beside it.", n, c.Subject, fleet.Instant(c.NotAfter)))
			}
		}
	}
	return caveats
}
