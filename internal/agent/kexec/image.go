package kexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// errPacked says that an image would have to be decompressed first.
var errPacked = errors.New("the image is compressed")

// kernel finds the image of the kernel that runs on that architecture.
func (p *Plan) kernel(architecture string) error {
	p.Release = p.text("proc/sys/kernel/osrelease")
	if p.Release == "" || strings.ContainsAny(p.Release, "/ ") {
		p.Release = ""
		return errors.New("the running kernel does not tell its release")
	}
	running := p.text("proc/sys/kernel/version")
	var others []string
	packed := ""
	for _, candidate := range p.candidates() {
		// An image of another architecture than x86 does not tell its version; its name must do.
		if architecture != "amd64" && !strings.Contains(candidate, p.Release) {
			continue
		}
		version, err := imageVersion(p.path(candidate), architecture)
		if errors.Is(err, errPacked) {
			packed = candidate
		}
		if err != nil {
			continue
		}
		if version != "" && !sameKernel(version, p.Release, running) {
			others = append(others, fmt.Sprintf("%s is %s", candidate, firstWord(version)))
			continue
		}
		p.Image = candidate
		return nil
	}
	if len(others) > 0 {
		return fmt.Errorf("the image of the running kernel (%s %s) is not there any more (%s): restart the machine into the newer one",
			p.Release, running, strings.Join(others, ", "))
	}
	if packed != "" {
		return fmt.Errorf("the image of the running kernel (%s) is compressed, and kexec starts only one that is not on %s: unpack it as /boot/Image-%s",
			packed, architecture, p.Release)
	}
	return fmt.Errorf("the image of the running kernel was found neither as %s nor in the boot loader's words: put it there, from the package of that very version, "+
		"or, in a rescue system, start the machine from its disk", strings.Join(p.candidates(), ", "))
}

// candidates are where distributions put the image of a release.
func (p *Plan) candidates() []string {
	paths := []string{
		"/boot/vmlinuz-" + p.Release, "/lib/modules/" + p.Release + "/vmlinuz", "/usr/lib/modules/" + p.Release + "/vmlinuz",
		"/boot/Image-" + p.Release, "/boot/vmlinux-" + p.Release, "/boot/kernel-" + p.Release, "/usr/lib/kernel/vmlinuz-" + p.Release,
	}
	for _, word := range strings.Fields(p.text("proc/cmdline")) {
		if image, ok := strings.CutPrefix(word, "BOOT_IMAGE="); ok {
			if i := strings.LastIndexByte(image, ')'); i >= 0 { // GRUB's device
				image = image[i+1:]
			}
			paths = append(paths, image, "/boot"+image)
		}
	}
	return append(paths, "/boot/vmlinuz-linux", "/boot/vmlinuz")
}

// sameKernel compares what an image says of itself ("6.1.0-1-amd64 (builder) #1 SMP Debian …") with
// release and version of the running kernel.
func sameKernel(image, release, version string) bool {
	return firstWord(image) == release && (version == "" || strings.HasSuffix(strings.TrimSpace(image), version))
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// imageVersion returns the version in the header of an x86 image (Documentation/arch/x86/boot.rst,
// kernel_version), "" for an image that has no such header. A file that cannot be an image is an
// error. One of arm64 has a magic (Documentation/arch/arm64/booting.rst), unless it is compressed
// with gzip, or as an EFI application that unpacks itself (drivers/firmware/efi/libstub).
func imageVersion(path, architecture string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(errors.New("it is no file"), err)
	}
	header := make([]byte, 64<<10)
	n, err := io.ReadFull(file, header)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	header = header[:n]
	if architecture == "arm64" && (n < 64 || string(header[56:60]) != "ARM\x64") {
		if n >= 64 && (string(header[:2]) == "\x1f\x8b" || string(header[4:8]) == "zimg") {
			return "", errPacked
		}
		return "", errors.New("it is no image for arm64")
	}
	if n < 0x210 || !bytes.Equal(header[0x202:0x206], []byte("HdrS")) {
		return "", nil
	}
	offset := int(header[0x20e]) | int(header[0x20f])<<8
	if offset == 0 || offset+0x200 >= n {
		return "", nil
	}
	text, _, _ := bytes.Cut(header[offset+0x200:], []byte{0})
	return string(text), nil
}
